"""The two functions that most people need: `run` one algorithm in memory, `compare` several, with everything kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from proxfed.auto import Auto, example
from proxfed.engine.compatibility import check_combination
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked, world
from proxfed.engine.run import Row
from proxfed.engine.run import rounds as steps
from proxfed.engine.state_measures import check_names
from proxfed.errors import RunError, require, whole
from proxfed.harness.execute import begin
from proxfed.harness.experiment import slug
from proxfed.harness.plan import Planned, carry_out
from proxfed.harness.remarks import control_variates, remarks
from proxfed.harness.results import Cases, Results
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.study import Entry, Study, names
from proxfed.participation import Full
from proxfed.report.terminal import Progress, stop_on_signal, watching
from proxfed.simulate import Timing, profiles
from proxfed.types import Algorithm, Participation, Problem, Topology


class Diverged(RunError):
    """A run that left for infinity, for those who ask for an exception; `result` is what there is of it."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of one run."""

    status: str
    """'finished', 'diverged', or 'stopped' by Ctrl-C."""
    message: str
    """Why, where it is not finished; else what should be known of its steps, if anything."""
    model: Tensor
    """The point after the last round, (d,)."""
    rows: list[Row]
    """A row of measures for each evaluation: round, gradients, bytes_up, objective, ..."""
    state: Any = field(repr=False)
    """The states of clients and server after the last round."""
    seed: int = 0
    seconds: float = 0.0
    """Spent in rounds; evaluations apart."""
    algorithm: Algorithm | None = None
    """With the steps that it ended with, where they were to be found."""

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        return Results(self.rows).to_pandas()

    def __repr__(self) -> str:
        last = {k: v for k, v in self.rows[-1].items() if k in ("round", "objective", "gap", "accuracy", "nonzeros")}
        said = f", {self.message}" if self.message else ""
        return f"Result({self.status}{said}: {', '.join(f'{k} {v:.6g}' for k, v in last.items() if v is not None)})"


def run(
    problem: Problem,
    algorithm: Algorithm | Auto,
    rounds: int,
    *,
    topology: Topology | None = None,
    participation: Participation = Full(),
    seed: int = 0,
    every: int = 1,
    reference: Tensor | None = None,
    measures: Sequence[str] = (),
    watch: Callable[[int, Row | None], object] = lambda t, row: None,
    progress: bool = True,
    throw: bool = False,
) -> Result:
    """Run `algorithm` on `problem` in this process; a row of measures every `every` rounds and at both ends.

    `reference` is the solution, so that rows have the gap and the error; `measures` are more, by name, such as those
    of the clients' states; `watch(t, row)` is called after every round. A run that diverges has the status 'diverged',
    or raises Diverged with throw=True. Ctrl-C ends it after the current round, with what there is.
    """
    for key, value, least in (("rounds", rounds, 0), ("every", every, 1)):
        require(whole(value) and value >= least, f"{key} = {value!r} must be a whole number >= {least}")
    require(whole(seed), f"seed = {seed!r} must be a whole number")
    require(callable(watch), f"watch = {watch!r} must be a function of the round and its row")
    Entry(algorithm)
    check_combination(problem, example(algorithm), topology, participation)
    if asked := names(measures):
        check_names(asked, [example(algorithm)], problem)
    fits = reference is None or (isinstance(reference, Tensor) and reference.shape == (problem.d,))
    require(fits, f"reference = {reference!r:.80} must be a tensor of shape ({problem.d},), or None")
    net = Stacked(problem.n, problem.d, topology)
    going = begin(algorithm, problem, net, participation, seed, rounds)
    rows: list[Row] = []
    status, message, x = "finished", "", going.x0
    name, variates = type(example(algorithm)).__name__, control_variates(going)
    with stop_on_signal() as stop, watching(progress) as show:
        for step in steps(going, Measures(problem, net, reference, more=tuple(measures)), -1, rounds, every):
            rows += [] if step.row is None else [step.row]
            if variates is not None and step.row is not None and step.t > 0:
                variates.begin(step.t)
            x = x if step.x is None else step.x
            watch(step.t, step.row)
            show(Progress(0, 1, name, seed, step.t, rounds, step.row))
            if step.diverged:
                status, message = "diverged", step.diverged
            elif stop():
                status, message = "stopped", f"stopped by a signal after round {step.t} of {rounds}"
                x = x if step.x is not None else going.model()
                break
    message = remarks(problem, going, variates, rows[0], rows[-1], message)
    result = Result(status, message, x, rows, going.state, seed, going.seconds, going.algorithm)
    if throw and status == "diverged":
        raise Diverged(result)
    return result


def compare(
    problem: Problem | Mapping[str, Problem],
    algorithms: Mapping[str, Algorithm | Auto | Entry],
    rounds: int,
    *,
    seeds: Sequence[int] | int = (0,),
    name: str | None = None,
    topology: Topology | None = None,
    participation: Participation = Full(),
    every: int = 1,
    reference: bool = False,
    measures: Sequence[str] = (),
    targets: Mapping[str, Any] | None = None,
    timing: Timing | str | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    resume: bool = True,
    force: bool = False,
    only: Collection[str] | str = (),
    jobs: int | None = None,
    ranks: int = 1,
    progress: bool = True,
) -> Results | Cases:
    """Run every algorithm with every seed, and return all that came out.

    problem         one, or several by name: then there are results and a folder for each of these cases
    algorithms      by label; an Entry has a topology, participation or rounds of its own
    seeds           a list, or how many
    reference       compute the solution first, so that rows have the gap and the error
    measures        more, by name: of the clients' states 'consensus_y', ..., or 'train_accuracy'
    targets         {measure: values} whose first round and bytes the tables show
    timing          devices and links for simulated seconds: a Timing, or the name of a profile
    out             the run folder; without one nothing is left on the disk
    resume          take up what is there with the same settings; more seeds and algorithms are added to it
    force           replace what is there
    only            labels of the algorithms to run now
    jobs            algorithms and seeds in so many processes at a time; None: what suits the machine
    ranks           spread the clients over so many processes

    Ctrl-C stops after the current round and returns what there is; the same call goes on from there.
    """
    require(isinstance(algorithms, Mapping), f"algorithms = {algorithms!r:.80} must be a dict of labels and algorithms")
    place = folder_of(out)
    require(not whole(seeds) or seeds >= 1, f"seeds = {seeds!r} must be a list of whole numbers, or how many")  # type: ignore[operator]
    called = name if name is not None else "study" if place is None else place.resolve().name
    problems = problem if isinstance(problem, Mapping) else {"": problem}
    require(len(problems) > 0, "problem = {}: give one, or several by name")
    slugs = [slug(str(case)) for case in problems]
    apart = len({*slugs}) == len(slugs) and (all(slugs) or not isinstance(problem, Mapping))
    require(apart, f"problem: the names {list(problems)} must give each a folder of its own")
    timed = _timing(timing)
    studies = {
        str(case): Study(
            one,
            algorithms,  # type: ignore[arg-type]
            rounds,
            range(seeds) if whole(seeds) else seeds,  # type: ignore[arg-type]
            called,
            topology=topology,
            participation=participation,
            every=every,
            reference=reference,
            measures=measures,
            targets={} if targets is None else targets,
            timing=timed,
        )
        for case, one in problems.items()
    }
    found = _run(studies, place, resume, force, only, jobs=jobs, ranks=ranks, progress=progress)
    return Cases(found) if isinstance(problem, Mapping) else found[""]


def folder_of(out: Path | str | None) -> Path | None:
    good = out is None or isinstance(out, (str, os.PathLike))
    require(good, f"out = {out!r} must be the path of a folder, or None")
    return None if out is None else Path(out)


def _timing(given: Timing | str | Mapping[str, Any] | None) -> Timing | None:
    if given is None or isinstance(given, Timing):
        return given
    good = isinstance(given, (str, Mapping))
    require(good, f"timing = {given!r} must be a Timing, a table, or the name of a profile ({', '.join(profiles())})")
    return Timing.read({"profile": given} if isinstance(given, str) else dict(given))


def run_study(
    study: Study,
    out: Path | str | None = None,
    *,
    resume: bool = True,
    force: bool = False,
    only: Collection[str] | str = (),
    jobs: int | None = None,
    ranks: int = 1,
    progress: bool = True,
) -> Results:
    """Carry out a study and return what came out; see `compare`.

    Started as one of several ranks, by torchrun or srun, it works with the others. The first of them keeps the records
    and returns them; the others return results without rows.
    """
    require(isinstance(study, Study), f"study = {study!r:.80} will not do: give a Study")
    return _run({"": study}, folder_of(out), resume, force, only, jobs=jobs, ranks=ranks, progress=progress)[""]


def _run(
    studies: Mapping[str, Study],
    out: Path | None,
    resume: bool,
    force: bool,
    only: Collection[str] | str,
    **how: Any,
) -> dict[str, Results]:
    """Studies by the name of their case; one without a name has the folder for itself."""
    listed = isinstance(only, Collection) and all(isinstance(label, str) for label in only)
    require(listed, f"only = {only!r} must be a label, or a list of labels")
    alone = out is not None or world() is None
    require(alone, "out = None: several ranks need a folder, where the first of them keeps the records")
    labels = [only] if isinstance(only, str) else list(only)
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="proxfed-")) if out is None else out)
        folders = {case: RunFolder(place / slug(case)) for case in studies}
        planned = [Planned(s, folders[case], resume, force, labels, case) for case, s in studies.items()]
        stop = held.enter_context(stop_on_signal())
        found = dict(zip(studies, carry_out(planned, stop, **how), strict=True))
        if out is None:  # the folder is gone when they are looked at
            for case, results in found.items():
                results.models.load()
                found[case] = replace(results, name=case or studies[case].name, folder=None)
        return found
