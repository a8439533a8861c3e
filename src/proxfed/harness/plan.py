"""What is going to be run, checked: a study in its run folder, or all cases of an experiment, each in its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxfed.engine import ranks as network
from proxfed.errors import MissingData, nearest, require, whole
from proxfed.harness.agreement import require_alike
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution, check_folder, open_folder, threads
from proxfed.harness.processes import run_jobs, run_ranks, share_cores
from proxfed.harness.progress import watching
from proxfed.harness.remarks import of_data, steps_of_theory, unprotected
from proxfed.harness.results import Results
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.study import Study

KEPT_BYTES = 1 << 30


@dataclass
class Planned:
    """A study and its folder."""

    study: Study
    path: Path
    resume: bool = False
    """Go on with what is there, if there is something."""
    force: bool = False
    """Replace what is there."""
    only: Collection[str] = ()
    """Labels of the algorithms that are run; all if empty."""
    case: str = ""
    """Of an experiment with several cases."""
    until: int | None = None
    """Put tasks aside after this round (execute.py)."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before anything is written."""
        for label in self.only:
            known = list(self.study.entries)
            require(label in known, f"--only: no algorithm has the label {label!r}; {nearest(label, known)}")
        self.study.check()
        self.folder = RunFolder(self.path)
        self.begun = self.folder.exists()
        self.remark = ""
        """What should be said before it begins."""
        self.world = network.world()
        if self.leads:
            check_folder(self.study, self.folder, self.resume, self.force)
            if self.begun and self.resume and not self.folder.has_checksums():
                self.remark = f"{self.path} had no checksums and gets them; what was under way there begins anew"

    @property
    def leads(self) -> bool:
        """This process keeps the records."""
        return self.world is None or self.world[0] == 0

    def execution(self, **how: Any) -> Execution:
        folder = self.folder if self.leads else None
        return Execution(self.study, folder, self.only, case=self.case, until=self.until, **how)

    def open(self) -> bool:
        """Make the folder if need be; whether it was there before."""
        return self.leads and open_folder(self.study, self.folder, self.resume, self.force)


def carry_out(
    studies: Sequence[Planned], stop: Callable[[], bool], *, jobs: int | None = None, ranks: int = 1,
    progress: bool = True, checkpoint_seconds: float = 5.0, timeout: float = 60.0,
) -> list[Results]:  # fmt: skip
    """Carry out one or several studies, in this process and as many others as were asked for.

    Of several ranks, only the first one returns rows.
    """
    require(whole(ranks) and ranks >= 1, f"ranks = {ranks!r} must be a whole number >= 1")
    require(ranks == 1 or jobs in (None, 1), f"jobs = {jobs!r} and ranks = {ranks!r} exclude each other")
    for n in (planned.study.problem.n for planned in studies):
        require(ranks <= n, f"{ranks} ranks for {n} clients: at most one rank per client")
    with ExitStack() as held:
        watch = held.enter_context(watching(progress and studies[0].leads))
        how: dict[str, Any] = {"watch": watch, "stop": stop, "checkpoint_seconds": checkpoint_seconds}
        if studies[0].world is not None:
            return _as_rank(studies, timeout, **how)
        share = share_cores(jobs, *_size(studies))
        share = share._replace(threads=_threads(studies, share.threads))
        held.enter_context(threads(share.threads))
        executions = [planned.execution(resumed=planned.open(), **how) for planned in studies]
        if ranks != 1:
            run_ranks(executions, ranks, timeout)
        else:
            run_jobs(executions, share)
        return [Results.read(planned.folder) for planned in studies]


def _as_rank(studies: Sequence[Planned], timeout: float, **how: Any) -> list[Results]:
    """One of several processes that torchrun or srun has started."""
    network.connect(timeout)
    try:
        require_alike((planned.study, planned.only, planned.until) for planned in studies)
        for planned in studies:
            if not planned.execution(resumed=planned.open(), distributed=True, **how).run():
                break
    finally:
        network.disconnect()
    return [Results.read(planned.folder) if planned.leads else Results([]) for planned in studies]


def _size(studies: Sequence[Planned]) -> tuple[int, int]:
    """(how many tasks are asked for, the coordinates of all clients of the largest)"""
    tasks = sum(len(p.only or p.study.entries) * len(p.study.seeds) for p in studies)
    return tasks, max(p.study.problem.n * p.study.problem.d for p in studies)


def _threads(studies: Sequence[Planned], wanted: int) -> int:
    """Of a run that is taken up, as many as it was begun with: the number of threads decides the last bits."""
    begun = next((p for p in studies if p.resume and p.begun), None)
    if begun is None or "OMP_NUM_THREADS" in os.environ:
        return wanted
    return int(begun.folder.versions().get("threads", wanted))


@dataclass
class Plan:
    """The cases of an experiment: all refused or none, then carried out."""

    cases: Mapping[str, Any]
    """What `build` makes a study of: the experiment of a case."""
    folders: dict[str, Path]
    data: str | None = None
    """The data directory."""
    resume: bool = False
    """Go on with the cases that have begun."""
    force: bool = False
    """Replace what is there."""
    leave_out: bool = False
    """Whether cases whose data are not there are left out, instead of refused; `missing` says why."""
    only: Collection[str] = ()
    keep: int = KEPT_BYTES
    """Bytes of data that may be kept from the check of a case until it is run; others are loaded again."""
    build: Callable[[Any, str | None], Study] = build_study
    """From a case and the data directory to the study."""
    missing: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be run before the first case begins."""
        self._ready: dict[str, Planned] = {}
        self.begun = False
        """Some case has a run folder already."""
        self.remarks: list[str] = []
        """What should be said before the first case begins."""
        room = self.keep
        for name in self.cases:
            try:
                planned = self._planned(name)
            except MissingData as e:
                if not self.leave_out:
                    raise
                self.missing[name] = str(e)
                continue
            self.begun = self.begun or planned.begun
            study = planned.study
            said = [*filter(None, [planned.remark]), *of_data(study), *steps_of_theory(study), *unprotected(study)]
            self.remarks += [remark for remark in said if remark not in self.remarks]  # of all cases, each once
            room -= _nbytes(planned.study)
            if room > 0:
                self._ready[name] = planned

    def _planned(self, name: str) -> Planned:
        study = self.build(self.cases[name], self.data)
        return Planned(study, self.folders[name], self.resume, self.force, self.only, name)

    def run(self, stop: Callable[[], bool], **how: Any) -> dict[str, Results]:
        """What came out, case by case (`carry_out` says how it can be done); without those that were not begun."""
        names = [name for name in self.cases if name not in self.missing]
        ready = [name for name in names if name in self._ready]
        found: dict[str, Results] = {}
        for some in [ready, *([name] for name in names if name not in self._ready)]:
            if some and not stop():
                planned = [self._ready.pop(name) if name in self._ready else self._planned(name) for name in some]
                found |= dict(zip(some, carry_out(planned, stop, **how), strict=True))
        return {name: found[name] for name in names if name in found}


def _nbytes(study: Study) -> int:
    data = study.problem.data
    return 0 if data is None else int(data.features.nbytes)
