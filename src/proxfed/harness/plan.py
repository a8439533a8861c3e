"""What is going to be run, checked: a study in its run folder, or all cases of an experiment, each in its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from proxfed.engine import ranks as network
from proxfed.errors import MissingData, nearest, require, whole
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution, check_folder, open_folder, threads
from proxfed.harness.processes import run_jobs, run_ranks, share_cores
from proxfed.harness.progress import watching
from proxfed.harness.results import Results
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.schema import Experiment
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

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before anything is written."""
        for label in self.only:
            known = list(self.study.entries)
            require(label in known, f"--only: no algorithm has the label {label!r}; {nearest(label, known)}")
        self.study.check()
        self.folder = RunFolder(self.path)
        self.begun = self.folder.exists()
        self.world = network.world()
        if self.leads:
            check_folder(self.study, self.folder, self.resume, self.force)

    @property
    def leads(self) -> bool:
        """This process keeps the records."""
        return self.world is None or self.world[0] == 0

    def run(
        self, stop: Callable[[], bool], *, jobs: int | None = None, ranks: int = 1, progress: bool = True,
        title: str = "", checkpoint_seconds: float = 5.0, timeout: float = 60.0,
    ) -> Results:  # fmt: skip
        """Carry it out, in this process and as many others as were asked for."""
        study = self.study
        require(whole(ranks) and ranks >= 1, f"ranks = {ranks!r} must be a whole number >= 1")
        require(ranks == 1 or jobs in (None, 1), f"jobs = {jobs!r} and ranks = {ranks!r} exclude each other")
        n = study.problem.n
        require(ranks <= n, f"{ranks} ranks for {n} clients: at most one rank per client")
        with ExitStack() as held:
            watch = held.enter_context(watching(title, progress and self.leads))
            e = Execution(study, None, self.only, watch=watch, stop=stop, checkpoint_seconds=checkpoint_seconds)
            if self.world is not None:
                self._as_rank(e, timeout)
                return Results.read(self.folder) if self.leads else Results([])
            asked = len(self.only or study.entries) * len(study.seeds)
            share = share_cores(jobs, asked, study.problem.n * study.problem.d)
            share = share._replace(threads=self._threads(share.threads))
            held.enter_context(threads(share.threads))
            e.folder, e.resumed = self.folder, open_folder(study, self.folder, self.resume, self.force)
            if ranks != 1:
                run_ranks(e, ranks, timeout)
            else:
                run_jobs(e, share)
            return Results.read(self.folder)

    def _as_rank(self, e: Execution, timeout: float) -> None:
        """One of several processes that torchrun or srun has started."""
        network.connect(timeout)
        try:
            if self.leads:
                e.folder, e.resumed = self.folder, open_folder(e.study, self.folder, self.resume, self.force)
            e.distributed = True
            e.run()
        finally:
            network.disconnect()

    def _threads(self, wanted: int) -> int:
        """Of a run that is taken up, as many as it was begun with: the number of threads decides the last bits."""
        if self.resume and self.begun and "OMP_NUM_THREADS" not in os.environ:
            return int(self.folder.versions().get("threads", wanted))
        return wanted


@dataclass
class Plan:
    """The cases of an experiment: all refused or none, then carried out one after the other."""

    cases: dict[str, Experiment]
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
    missing: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be run before the first case begins."""
        self._ready: dict[str, Planned] = {}
        self.begun = False
        """Some case has a run folder already."""
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
            room -= _nbytes(planned.study)
            if room > 0:
                self._ready[name] = planned

    def _planned(self, name: str) -> Planned:
        study = build_study(self.cases[name], self.data)
        return Planned(study, self.folders[name], self.resume, self.force, self.only)

    def run(
        self, stop: Callable[[], bool], *, jobs: int | None = None, ranks: int = 1, progress: bool = True,
        checkpoint_seconds: float = 5.0, timeout: float = 60.0,
    ) -> dict[str, Results]:  # fmt: skip
        """What came out, case by case; a case that was asked to stop on the way is the last."""
        found = {}
        for name in (name for name in self.cases if name not in self.missing):
            planned = self._ready.pop(name, None) or self._planned(name)
            found[name] = planned.run(
                stop,
                jobs=jobs,
                ranks=ranks,
                progress=progress,
                title=name,
                checkpoint_seconds=checkpoint_seconds,
                timeout=timeout,
            )
            if stop():
                break
        return found


def _nbytes(study: Study) -> int:
    data = study.problem.data
    return 0 if data is None else int(data.features.nbytes)
