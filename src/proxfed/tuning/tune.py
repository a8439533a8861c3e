"""`tune`: choose the settings of several algorithms with the same effort for each."""

from __future__ import annotations

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from proxfed import files
from proxfed.errors import InputError, RunError, finite, of_kind, option, require, whole
from proxfed.harness.compare import folder_of
from proxfed.harness.settings_diff import first_changed, flat, settings_mismatch
from proxfed.harness.study import Study
from proxfed.registry import Table
from proxfed.report.terminal import stop_on_signal
from proxfed.tuning import with_optuna
from proxfed.tuning.criterion import Judge, judge
from proxfed.tuning.halving import Ladder, ladder
from proxfed.tuning.held_out import hold_out, on_validation
from proxfed.tuning.keys import algorithm_keys, present
from proxfed.tuning.points import Values, size, spread
from proxfed.tuning.space import Around, Space, read_space
from proxfed.tuning.trials import Search, Stopped, Trial, name_trials
from proxfed.tuning.tuned import Tuned, applied, record

TIMES = 5
"""The default budget, in multiples of the study's rounds."""
GENERATIONS = 10
"""The maximum number of generations of proposals, each of which learns from those before."""

Spaces = dict[str, dict[str, Space]]
"""The search spaces by the label of the algorithm and the key of the setting."""


def tune(
    study: Study,
    over: Mapping[str, Any],
    budget: int | None = None,
    *,
    measure: str | None = None,
    target: str | Mapping[str, float] | None = None,
    axis: str | None = None,
    rounds: int | None = None,
    seeds: int = 1,
    validation: float = 0.2,
    search: str = "halving",
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = True,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 5.0,
) -> Tuned:
    """Tune settings of a study's algorithms, with the same number of configurations and rounds for each algorithm.

    Ctrl-C stops the search; the same call resumes it.

    Parameters
    ----------
    study : Study
        From `read_study`, or made in Python.
    over : mapping
        {"FedAvg.eta": "log(1e-3, 1)", "*.K": [1, 5, 20]}: the settings and their search spaces; * stands for every
        algorithm that has the setting.
    budget : int, optional
        Rounds per algorithm, over all its configurations; None: five times the rounds of the study.
    measure : str, optional
        The measure to optimise, at the last round; None: the problem's first measure on held-out data, or else the
        objective.
    target : str or mapping, optional
        {measure: value} instead of `measure`: a configuration that reaches it with less of `axis` is better.
    axis : str, optional
        'round', 'bytes', 'sim_seconds' or 'steps'; None: simulated seconds if the study has them, else rounds.
    rounds : int, optional
        Rounds of a configuration that reaches the last rung; None: the rounds of the study.
    seeds : int
        The number of seeds per configuration, counted in the budget; they differ from the study's own seeds.
    validation : float
        The fraction of every client's training rows that is held out for measures on held-out data. The test data are
        not used, and the tuned study trains with all training data.
    search : str
        'halving': evenly spread points; 'optuna': points that learn from earlier ones. Both use the same rungs.
    seed : int
        Seed of the random search (only with search = 'optuna').
    out : Path | str, optional
        The run folder; None: nothing is kept on disk.
    resume : bool
        Resume the run in the folder, if the settings are the same; seeds and algorithms may be added.
    force : bool
        Replace the contents of the folder, even with `resume`.
    jobs : int, optional
        The number of processes that run algorithms and seeds in parallel; None: chosen for the machine, or one if a
        hook is a plain function.
    progress : bool
        Show the progress in the terminal.
    checkpoint_seconds : float
        Seconds between checkpoints.

    Returns
    -------
    Tuned
        The study with the best settings, and all trials.
    """
    of_kind("study", study, Study, "a Study")
    job = _Job(study, over, budget, judge(study, measure, target, axis, _part(validation)), rounds, seeds, search, seed)
    place = folder_of(out)
    with ExitStack() as held:
        path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="proxfed-"))) if place is None else place
        first = job.search_at(path, 0, [])
        _open(path, job.request, resume, force)
        if progress:
            print(job.plan, file=sys.stderr, flush=True)
        stop = held.enter_context(stop_on_signal())
        how = {"jobs": jobs, "progress": progress, "checkpoint_seconds": checkpoint_seconds}
        try:
            trials = first.run(stop, **how)
            for generation in range(1, job.generations):
                trials += job.search_at(path, generation, trials).run(stop, **how)
        except Stopped:
            raise RunError("the tuning was stopped; the same call with the same settings resumes it") from None
        tuned = job.tuned(trials, place)
        if place is not None:
            tuned.write(place)
        return tuned


def _part(validation: Any) -> float:
    good = finite(validation) and 0 < validation < 1
    require(good, f"validation = {validation!r} must be a fraction of the training rows, between 0 and 1")
    return float(validation)


class _Job:
    """The validated request."""

    def __init__(
        self, study: Study, over: Mapping[str, Any], budget: int | None, judged: Judge, rounds: int | None, seeds: int,
        search: str, seed: int,
    ) -> None:  # fmt: skip
        for key, value in (("budget", budget), ("rounds", rounds), ("seeds", seeds)):
            good = (value is None and key != "seeds") or (whole(value) and value >= 1)  # type: ignore[operator]
            require(good, f"{key} = {value!r} must be a whole number >= 1")
        require(whole(seed), f"seed = {seed!r} must be a whole number")
        require(search in ("halving", "optuna"), f"search = {search!r} is not one of 'halving', 'optuna'")
        if search == "optuna":
            with_optuna.available()
        self.study, self.judge, self.search, self.seed = study, judged, search, seed
        self.spaces = read_over(study, over)
        self.rounds = study.rounds if rounds is None else int(rounds)
        self.budget = TIMES * self.rounds * seeds if budget is None else int(budget)
        self.ladder, self.generations = self._ladder(seeds)
        after = max(study.seeds) + 1
        self.judged_study = self._judged(range(after, after + seeds))
        self.given = {label: {k: str(space) for k, space in own.items()} for label, own in self.spaces.items()}
        self.request: Table = {
            "budget": self.budget, "rounds": self.rounds, "seeds": int(seeds), "search": search, "seed": int(seed),
            **judged.table(), "over": self.given,
        }  # fmt: skip

    def _ladder(self, seeds: int) -> tuple[Ladder, int]:
        """(the rungs of a generation, how many generations)"""
        sizes = [size(own) for own in self.spaces.values()]
        most = None if None in sizes else max(s for s in sizes if s is not None)
        whole_budget = ladder(self.budget, self.rounds, seeds, most)
        if self.search == "halving" or most == whole_budget.configurations:  # nothing to learn if all points are tried
            return whole_budget, 1
        for generations in range(GENERATIONS, 1, -1):
            try:
                return ladder(self.budget // generations, self.rounds, seeds), generations
            except InputError:
                continue
        return whole_budget, 1

    def _judged(self, seeds: range) -> Study:
        """The study on the data used for scoring."""
        s, j = self.study, self.judge
        problem, entries = s.problem, dict(s.entries)
        if j.validation:
            data = None if s.problem.f.data is None else hold_out(s.problem.f.data, j.validation)
            problem = on_validation(s.problem, data)
            for label, e in entries.items():
                if e.problem is not None:
                    entries[label] = replace(e, problem=on_validation(e.problem, data))
        about = f"The trials of tuning {s.name}, judged by {j}."
        reference = j.measure in ("gap", "error")
        changes: Table = {"description": about, "rounds": self.rounds, "reference": reference, "targets": {}}
        written = None
        if s.written is not None:
            kept = {k: v for k, v in s.written.items() if k not in ("paper", "claims", "reported")}
            written = kept | changes
        changes |= {"problem": problem, "entries": entries, "seeds": seeds, "written": written, "asked": ()}
        return replace(s, **changes)

    @property
    def plan(self) -> str:
        """A description of the search, shown before it starts."""
        each = "; ".join(
            f"{label}: {', '.join(f'{k} in {v}' for k, v in own.items())}" for label, own in self.given.items()
        )
        times = "" if self.generations == 1 else f" in each of {self.generations} generations"
        seeds = "" if self.ladder.seeds == 1 else f" with {self.ladder.seeds} seeds"
        cost = self.generations * self.ladder.cost()
        return (
            f"tuning {each}\n{self.ladder.configurations} configurations per algorithm{times}{seeds}: {self.ladder}; "
            f"at most {cost} rounds of a budget of {self.budget} per algorithm\njudged by {self.judge}"
        )

    def search_at(self, path: Path, generation: int, known: list[Trial]) -> Search:
        """The search over the configurations of a generation."""
        trials: list[Trial] = []
        for place, (label, own) in enumerate(self.spaces.items()):
            mine = [trial for trial in known if trial.algorithm == label]
            trials += name_trials(label, self._points(own, mine, place, generation))
        where = path / "trials" / str(generation + 1)
        return Search(
            self.judged_study,
            trials,
            self.ladder,
            self.judge,
            where,
            f"generation {generation + 1}" * (self.generations > 1),
        )

    def _points(self, spaces: Mapping[str, Space], known: list[Trial], place: int, generation: int) -> list[Values]:
        count = self.ladder.configurations
        few = size(spaces)
        if self.search == "halving" or (few is not None and few <= count and not known):
            return spread(spaces, count)
        return with_optuna.propose(spaces, known, count, self.seed, place, generation)

    def tuned(self, trials: list[Trial], folder: Path | None) -> Tuned:
        best: dict[str, Values] = {}
        records: dict[str, Table] = {}
        for label, own in self.spaces.items():
            mine = sorted((t for t in trials if t.algorithm == label), key=lambda t: t.order)
            best[label] = {} if mine[0].score.diverged else dict(mine[0].values)
            records[label] = record(mine, own, self.request)
        study = applied(self.study, best, records)
        return Tuned(study, self.study, trials, self.judge, self.ladder, self.budget, self.spaces, folder)


def read_over(study: Study, over: Mapping[str, Any]) -> Spaces:
    """The search space of each setting of each algorithm; refused if one is unknown or given twice."""
    require(
        isinstance(over, Mapping) and len(over) > 0,
        f"over = {over!r} must say what to tune, e.g. {{'FedAvg.eta': 'log(1e-3, 1)'}}",
    )
    found: Spaces = {}
    own_key: set[tuple[str, str]] = set()
    for key, given in over.items():
        where, of_all = f"over {key}", key.removeprefix("algorithms.").startswith("*.")
        space = read_space(given, where)
        for label, path in algorithm_keys(study, key, where):
            own = found.setdefault(label, {})
            if of_all and (label, path) in own_key:
                continue  # a key of one algorithm overrides a key of all
            twice = path in own and (of_all or (label, path) in own_key)
            require(not twice, f"{where}: {label}.{path} is given twice")
            own[path] = space.of(present(study.complete[label], path), where) if isinstance(space, Around) else space
            own_key |= set() if of_all else {(label, path)}
    return {label: found[label] for label in study.entries if label in found}


def _open(path: Path, request: Table, resume: bool, force: bool) -> None:
    """Create the folder of a tuning, or refuse a folder with other contents."""
    note, trials = path / "tuning.toml", path / "trials"
    if force:
        shutil.rmtree(trials, ignore_errors=True)
    elif note.exists():
        ways = f"{option('resume', True)} continues it, {option('force', True)} replaces it"
        require(resume, f"{path} holds a tuning already: {ways}, or choose another {option('out')}")
        try:
            before = tomllib.loads(files.read(note).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
            raise InputError(f"{note} is damaged: {e}") from e
        if difference := first_changed(flat(before), flat(request)):
            raise settings_mismatch(path, difference)
        return
    else:
        empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        require(empty, f"{path} exists and is not the folder of a tuning; choose another {option('out')}")
    with files.writing(path):
        path.mkdir(parents=True, exist_ok=True)
    files.replace(note, tomli_w.dumps(request).encode())
