"""Validated plans of runs: a study in its run folder, or all cases of an experiment, each in its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from proxfed.engine.network import world
from proxfed.engine.ranks import connect, disconnect
from proxfed.engine.tuning import PARALLEL_FROM
from proxfed.errors import MissingData, nearest, option, require, whole
from proxfed.files import is_held, locked
from proxfed.harness.agreement import require_alike
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution
from proxfed.harness.folder.run_folder import MADE, RunFolder
from proxfed.harness.processes import run_jobs, run_ranks
from proxfed.harness.remarks import beforehand
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import first_difference, settings_mismatch
from proxfed.harness.study import Study, Task
from proxfed.hooks import stays_here
from proxfed.machine import threads, versions
from proxfed.registry import Table
from proxfed.report.client_stats import ClientStats
from proxfed.report.columns import RunStatus
from proxfed.report.progress import watching

KEPT_BYTES = 1 << 30


@dataclass
class Planned:
    """A study and its folder."""

    study: Study
    folder: RunFolder
    resume: bool = False
    """Resume the run in the folder, if there is one."""
    force: bool = False
    """Replace the contents of the folder, even with `resume`."""
    only: Collection[str] = ()
    """Labels of the algorithms to run; all if empty."""
    case: str = ""
    """The case, in an experiment with several."""
    until: int | None = None
    """Pause tasks after this round (execute.py)."""

    def __post_init__(self) -> None:
        """Refuse an invalid plan before anything is written."""
        self.resume = self.resume and not self.force
        for label in self.only:
            known = list(self.study.entries)
            require(label in known, f"{option('only')}: no algorithm has the label {label!r}; {nearest(label, known)}")
        self.study.check()
        self.remark = ""
        """Remarks to show before it begins."""
        self.world = world()
        self.begun = False
        """Whether there is a run in the folder already; checked by the leader."""
        if self.leads:
            self.begun = check_folder(self.study, self.folder, self.resume, self.force, some=bool(self.only))
            if self.begun and self.resume and not all(self.folder.is_done(*task) for task in self.study.tasks):
                self.remark = _other_versions(self.folder)

    @property
    def leads(self) -> bool:
        """This process keeps the records."""
        return self.world is None or self.world[0] == 0

    def execution(self, **how: Any) -> Execution:
        folder = self.folder if self.leads else None
        return Execution(self.study, folder, self.only, case=self.case, until=self.until, **how)

    def open(self) -> bool:
        """Create the folder if necessary; returns whether it existed."""
        return self.leads and open_folder(self.study, self.folder, self.resume, self.force, some=bool(self.only))


def carry_out(
    studies: Sequence[Planned], stop: Callable[[], bool], *, jobs: int | None = None, ranks: int = 1,
    progress: bool = True, checkpoint_seconds: float = 5.0, timeout: float = 60.0,
) -> list[Results]:  # fmt: skip
    """Run one or several studies, in this process and the requested number of others.

    With several ranks, only the first one returns rows.
    """
    require(whole(ranks) and ranks >= 1, f"ranks = {ranks!r} must be a whole number >= 1")
    check_seconds(checkpoint_seconds, timeout)
    if ranks > 1:
        _check_ranks(ranks, jobs, min(planned.study.problem.f.n for planned in studies))
    with ExitStack() as held:
        watch = held.enter_context(watching(progress and studies[0].leads))
        how: dict[str, Any] = {"watch": watch, "stop": stop, "checkpoint_seconds": checkpoint_seconds}
        if studies[0].world is not None:
            return _as_rank(studies, timeout, **how)
        if jobs is None and any(stays_here(planned.study.hooks) for planned in studies):
            jobs = 1
        share = share_cores(jobs, *_size(studies))
        share = share._replace(threads=_threads(studies, share.threads))
        held.enter_context(threads(share.threads))
        executions = [planned.execution(resumed=planned.open(), **how) for planned in studies]
        if ranks > 1:
            run_ranks(executions, ranks, timeout)
        elif share.jobs > 1:
            run_jobs(executions, share)
        else:
            for execution in executions:
                if not stop():
                    execution.run()
        return [Results.read(planned.folder) for planned in studies]


def check_seconds(checkpoint: float, timeout: float) -> None:
    """Refuse what is no time to wait."""
    require(checkpoint >= 0, f"--checkpoint {checkpoint} must be a number of seconds >= 0")
    require(timeout > 0, f"--timeout {timeout} must be a number of seconds > 0")


def _check_ranks(ranks: int, jobs: int | None, n: int) -> None:
    require(jobs in (None, 1), f"jobs = {jobs!r} and ranks = {ranks!r} exclude each other")
    require(ranks <= n, f"{ranks} ranks for {n} clients: at most one rank per client")


def _as_rank(studies: Sequence[Planned], timeout: float, **how: Any) -> list[Results]:
    """Run as one of several processes started by torchrun or srun."""
    connect(timeout)
    try:
        require_alike((planned.study, planned.only, planned.until) for planned in studies)
        for planned in studies:
            if not planned.execution(resumed=planned.open(), distributed=True, **how).run():
                break
    finally:
        disconnect()
    return [Results.read(planned.folder) if planned.leads else Results([]) for planned in studies]


@dataclass
class Plan:
    """The cases of an experiment, which are validated together and then run."""

    cases: Mapping[str, Any]
    """The experiment of each case, from which `build` makes a study."""
    folders: Mapping[str, RunFolder]
    data: str | None = None
    """The data directory."""
    resume: bool = False
    """Resume the cases that have begun."""
    force: bool = False
    """Replace the contents of the folders."""
    leave_out: bool = False
    """Whether cases with missing data are skipped instead of refused; `missing` has the reasons."""
    only: Collection[str] = ()
    keep: int = KEPT_BYTES
    """Bytes of data to keep in memory from validation until the run; other data are loaded again."""
    build: Callable[[Any, str | None], Study] = build_study
    """The function from a case and the data directory to the study."""
    missing: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse invalid cases before the first one begins."""
        self._ready: dict[str, Planned] = {}
        self.begun = False
        """Whether some case has a run folder already."""
        self.leads = True
        """This process keeps the records."""
        self.remarks: list[str] = []
        """Remarks to show before the first case begins."""
        room = self.keep
        for name in self.cases:
            try:
                planned = self._planned(name)
            except MissingData as e:
                if not self.leave_out:
                    raise
                self.missing[name] = str(e)
                continue
            self.begun, self.leads = self.begun or planned.begun, planned.leads
            said = [*filter(None, [planned.remark]), *beforehand(planned.study)]
            self.remarks += [remark for remark in said if remark not in self.remarks]  # each remark once
            room -= _nbytes(planned.study)
            if room > 0:
                self._ready[name] = planned

    def _planned(self, name: str) -> Planned:
        study = self.build(self.cases[name], self.data)
        return Planned(study, self.folders[name], self.resume, self.force, self.only, name)

    def run(self, stop: Callable[[], bool], **how: Any) -> dict[str, Results]:
        """Run the cases with the options of `carry_out`; returns the results of those that were begun."""
        names = [name for name in self.cases if name not in self.missing]
        ready = [name for name in names if name in self._ready]
        found: dict[str, Results] = {}
        for some in [ready, *([name] for name in names if name not in self._ready)]:
            if some and not stop():
                planned = [self._ready.pop(name) if name in self._ready else self._planned(name) for name in some]
                found |= dict(zip(some, carry_out(planned, stop, **how), strict=True))
        return {name: found[name] for name in names if name in found}


def _nbytes(study: Study) -> int:
    data = study.problem.f.data
    return 0 if data is None else int(data.features.nbytes)


# ---- the cores ------------------------------------------------------------------------------------------------------


class Share(NamedTuple):
    """The division of the cores: the number of parallel jobs, and of threads per job."""

    jobs: int
    threads: int
    at_once: bool
    """Whether all jobs are started at once, instead of only when they pay off (further_jobs.py)."""


def share_cores(jobs: int | None, tasks: int, size: int) -> Share:
    """The requested number of jobs; by default one job per core if the tasks are too small for several cores.

    `size` is the number of coordinates of all clients together. The cores are those that torch would use, which
    respects OMP_NUM_THREADS and torch.set_num_threads.
    """
    cores = torch.get_num_threads()
    if jobs is not None:
        require(whole(jobs) and jobs >= 1, f"jobs = {jobs!r} must be a whole number >= 1")
        used = min(jobs, max(1, tasks))
        return Share(used, max(1, cores // used), True)
    used = min(cores, tasks) if size < PARALLEL_FROM else 1
    return Share(max(1, used), max(1, cores // max(1, used)), False)


def _size(studies: Sequence[Planned]) -> tuple[int, int]:
    """(number of tasks, coordinates of all clients in the largest task)"""
    tasks = sum(len(p.only or p.study.entries) * len(p.study.seeds) for p in studies)
    return tasks, max(p.study.problem.f.n * p.study.problem.f.d for p in studies)


def _threads(studies: Sequence[Planned], wanted: int) -> int:
    """A resumed run keeps its number of threads, because the last bits of results depend on it."""
    begun = next((p for p in studies if p.resume and p.begun), None)
    if begun is None or "OMP_NUM_THREADS" in os.environ:
        return wanted
    return int(begun.folder.versions().get("threads", wanted))


def _other_versions(folder: RunFolder) -> str:
    """One sentence if a run is resumed with other versions than it was begun with."""
    then, now = folder.other_versions(), versions()
    if "OMP_NUM_THREADS" not in os.environ:  # then threads are set as in the run
        then.pop("threads", None)
    changed = ", ".join(f"{name} {old} (now {now[name]})" for name, old in then.items())
    return changed and f"{folder.path} was begun with {changed}: last digits may differ from those of a run in one go"


# ---- the folder of a study -------------------------------------------------------------------------------------------


def open_folder(study: Study, folder: RunFolder, resume: bool, force: bool, some: bool = False) -> bool:
    """Create the study's run folder if necessary; returns whether it existed. `some`: it may have more algorithms."""
    with folder.alone() as there:
        if there:
            if resume:
                check_folder(study, folder, resume, force, some)  # another process may have made it meanwhile
                longer = finished_before(study, folder)
                if longer:
                    folder.remove_leftovers()
                    folder.reopen(longer, study.every)
                settings = _with_others(folder.config(), study.settings) if some else study.settings
                if folder.config() != settings:
                    folder.write_config(settings)  # with more seeds, more algorithms or another description
                folder.remove_leftovers()
                return True
            _require_free(folder)
        folder.create(study.settings, _client_stats(study), study.own_measures)
    return False


def _require_free(folder: RunFolder) -> None:
    busy = any(map(is_held, (folder.path / "checkpoint").glob("*/")))
    require(not busy, f"{folder.path}: another process is writing this run")


def check_folder(study: Study, folder: RunFolder, resume: bool, force: bool, some: bool = False) -> bool:
    """Whether there is a run already; a folder with other contents is refused. Writes nothing."""
    path = folder.path
    if path.is_dir() and not folder.exists():
        with locked(path):  # another process may just be making it
            pass
    if not resume or not folder.exists():
        strange = folder.strangers()
        which = f"{strange[0]}, which was not written by a run" if strange else ""
        require(not strange, f"{path} cannot be replaced, for it holds {which}; choose another --out")
    if not folder.exists():
        empty = not path.exists() or (path.is_dir() and all(map(_half_made, path.iterdir())))
        require(empty or force, f"{path} exists and is not a run folder; choose another {option('out')}")
        return False
    if not resume:
        ways = f"{option('resume', True)} continues it, {option('force', True)} replaces it"
        require(force, f"{path} holds a run already: {ways}, or choose another {option('out')}")
        return True
    settings = _with_others(folder.config(), study.settings) if some else study.settings
    if difference := first_difference(_with_additions(folder.config(), settings), settings):
        raise settings_mismatch(path, difference)
    then, now = folder.clients(), _client_stats(study)
    same = then is None or now is None or then.same(now)
    require(same, f"the data are not those that the run in {path} was started with")
    return True


def finished_before(study: Study, folder: RunFolder) -> list[Task]:
    """The tasks that are finished with fewer rounds than the study has now."""
    ended = {Task(s["algorithm"], s["seed"]): s for s in folder.status() if s["status"] == RunStatus.FINISHED}
    return [t for t in study.tasks if t in ended and ended[t]["round"] < study.complete[t.label].rounds]


def _half_made(child: Path) -> bool:
    """Whether it belongs to a run folder whose creation was interrupted."""
    half_written = child.suffix == ".new" and child.name.rsplit(".", 2)[0] in {*MADE, "config.toml"}
    return child.name in MADE or half_written


def _client_stats(study: Study) -> ClientStats | None:
    data = study.problem.f.data
    return None if data is None else ClientStats.of(data)


def _with_others(old: Table, new: Table) -> Table:
    """The new settings plus the algorithms that only the old settings have, in the old order."""
    mine = {table["label"]: table for table in new["algorithms"]}
    had = [mine.pop(table["label"], table) for table in old["algorithms"]]
    return new | {"algorithms": [*had, *mine.values()]}


def _with_additions(old: Table, new: Table) -> Table:
    """The old settings plus the seeds, algorithms and rounds that only the new settings have."""
    now = {table["label"]: table["rounds"] for table in new["algorithms"]}
    had = {table["label"]: _longer(table, now.get(table["label"], 0)) for table in old["algorithms"]}
    labels = [table["label"] for table in new["algorithms"]]
    both = _longer(old, new["rounds"])
    if {*old["seeds"]} <= {*new["seeds"]}:
        both["seeds"] = new["seeds"]
    if {*had} <= {*labels}:
        both["algorithms"] = [had.get(table["label"], table) for table in new["algorithms"]]
    return both


def _longer(table: Table, rounds: int) -> Table:
    """A table with this number of rounds, if it is larger."""
    return {**table, "rounds": max(table["rounds"], rounds)}
