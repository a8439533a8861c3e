"""`sweep`: run a study over a grid of any of its settings, in one folder.

Settings of algorithms become entries, "FedAvg eta=0.1"; an algorithm without the setting is run once. All other
settings become cases, each with its own subfolder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from proxfed.errors import RunError, of_kind, require
from proxfed.harness.compare import folder_of
from proxfed.harness.experiment import slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Plan
from proxfed.harness.study import Entry, Study
from proxfed.report.terminal import stop_on_signal
from proxfed.tuning.criterion import judge
from proxfed.tuning.keys import algorithm_keys, changed, is_of_algorithm, short_names, written
from proxfed.tuning.points import Values
from proxfed.tuning.space import read_values
from proxfed.tuning.study_keys import check_key, with_settings
from proxfed.tuning.swept import Line, Swept


def sweep(
    study: Study,
    over: Mapping[str, Any],
    *,
    measure: str | None = None,
    target: str | Mapping[str, float] | None = None,
    axis: str | None = None,
    out: Path | str | None = None,
    resume: bool = True,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 5.0,
) -> Swept:
    """Run a study for every combination of these settings.

    Parameters
    ----------
    study : Study
        From `read_study`, or made in Python.
    over : mapping
        {"FedAvg.eta": [0.1, 1.0], "*.K": "1..4", "problem.l2": "log(1e-4, 1e-1, 4)"}: settings of algorithms (* stands
        for every algorithm that has the setting) or of the study: problem, regulariser, data, topology, participation,
        rounds, ...; settings of data only in a study that was read from a file.
    measure : str, optional
        The measure in heat maps and curves, at the last round; None: the problem's first measure on held-out data, or
        else the objective.
    target : str or mapping, optional
        {measure: value} instead of `measure`: they show the cost in `axis` to reach it.
    axis : str, optional
        'round', 'bytes', 'sim_seconds' or 'steps'; None: simulated seconds if the study has them, else rounds.
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
    Swept
        The results of every case.
    """
    of_kind("study", study, Study, "a Study")
    grid = _Grid.read(study, over)
    judged = judge(study, measure, target, axis, 0.0, "compare", solve=False)
    place = folder_of(out)
    with ExitStack() as held:
        path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="proxfed-"))) if place is None else place
        folders = {case: RunFolder(path / name) for case, name in grid.folders().items()}
        plan = Plan(grid.cases, folders, None, resume, force, build=grid.build)
        stop = held.enter_context(stop_on_signal())
        how = {"jobs": jobs, "progress": progress, "checkpoint_seconds": checkpoint_seconds}
        found = plan.run(stop, **how)
        if stop():
            raise RunError("the sweep was stopped; the same call with the same settings resumes it")
        if place is None:
            for case, results in found.items():
                results.models.load()
                found[case] = replace(results, name=case or study.name, folder=None)
        swept = Swept(found, list(grid.short.values()), grid.lines(), judged, study.name)
        if place is not None:
            swept.page = swept.report(place / "sweep.html")
        return swept


@dataclass(frozen=True)
class _Grid:
    """The settings and their values, of the study and of its algorithms."""

    study: Study
    of_study: dict[str, list[Any]]
    of_algorithms: dict[str, dict[str, list[Any]]]
    """By label, then by key."""
    short: dict[str, str]
    """The name of each key in labels and columns."""

    @classmethod
    def read(cls, study: Study, over: Mapping[str, Any]) -> _Grid:
        given = isinstance(over, Mapping) and len(over) > 0
        require(given, f"over = {over!r} must say what to sweep, e.g. {{'FedAvg.eta': [0.1, 1.0]}}")
        of_study: dict[str, list[Any]] = {}
        of_algorithms: dict[str, dict[str, list[Any]]] = {}
        for key, values in over.items():
            where = f"over {key}"
            listed = read_values(values, where)
            if not is_of_algorithm(study, key):
                check_key(study, key, where)
                of_study[key] = listed
                continue
            for label, path in algorithm_keys(study, key, where):
                own = of_algorithms.setdefault(label, {})
                require(path not in own, f"{where}: {label}.{path} is given twice")
                own[path] = listed
        paths = [path for own in of_algorithms.values() for path in own]
        return cls(study, of_study, of_algorithms, short_names([*of_study, *paths]))

    @property
    def cases(self) -> dict[str, Values]:
        """The settings of the study in every case, by the name of the case."""
        points = [dict(zip(self.of_study, values, strict=True)) for values in product(*self.of_study.values())]
        return {self._name(point): point for point in points}

    def folders(self) -> dict[str, str]:
        """The subfolder of each case; with a number in front if the names differ only in signs."""
        slugs = [slug(case) for case in self.cases]
        apart = len({*slugs}) == len(slugs)
        return {case: s if apart else f"{k:03d}-{s}" for k, (case, s) in enumerate(zip(self.cases, slugs, strict=True))}

    def build(self, point: Values, directory: str | None = None) -> Study:
        """The study at a point, with an entry for each combination of the algorithms' settings."""
        here = with_settings(self.study, point, self._name(point)) if point else self.study
        entries: dict[str, Entry] = {}
        for label in here.entries:
            for name, values in self._points(label).items():
                entries[name] = changed(here, label, values) if values else here.entries[label]
        return replace(here, entries=entries, again=None, asked=())

    def lines(self) -> list[Line]:
        """Every algorithm at every point, in the order of the table."""
        found = []
        for case, point in self.cases.items():
            for label in self.study.entries:
                for name, values in self._points(label).items():
                    named = {self.short[key]: value for key, value in {**point, **values}.items()}
                    found.append(Line(case, name, label, named))
        return found

    def _points(self, label: str) -> dict[str, Values]:
        """The values of an algorithm's swept settings, by the labels of its entries; one empty point if it has none."""
        own = self.of_algorithms.get(label, {})
        points = [dict(zip(own, values, strict=True)) for values in product(*own.values())]
        return {f"{label} {self._name(point)}" if point else label: point for point in points}

    def _name(self, values: Values) -> str:
        return ", ".join(f"{self.short[key]}={written(value)}" for key, value in values.items())
