"""Carry out a study in this process: every algorithm with every seed, into a run folder, resumable at any round.

A task is one algorithm with one seed. Everything random is keyed by seed, client and round, so what is computed again
after an interruption is the same to the bit, and tasks may be shared out over processes (processes.py): each takes the
tasks that no other one has taken.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from proxfed.engine.loop import Row
from proxfed.engine.measures import Measures
from proxfed.engine.network import Network, Stacked
from proxfed.engine.race import Race
from proxfed.engine.ranks import Ranks
from proxfed.engine.running import Running
from proxfed.engine.start import run_of
from proxfed.epochs import epochs_of
from proxfed.errors import ProxfedError
from proxfed.harness.folder.checkpoint import Checkpoint, TaskFolder
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.follow import Records, follow
from proxfed.harness.protection import Privacy
from proxfed.harness.study import CompleteEntry, Study, Task
from proxfed.hooks import About, begun
from proxfed.report.columns import RunStatus, parse
from proxfed.report.progress import Progress
from proxfed.simulate import Clock, clock
from proxfed.types import Algorithm, Participation, Problem, Topology

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of a task in this process."""

    DONE = "done"  # now or before
    STOPPED = "stopped"  # on the way
    ASIDE = "aside"  # put aside at the round where this process was to end
    TAKEN = "taken"  # by another process


OUTCOMES = {RunStatus.STOPPED: Outcome.STOPPED, RunStatus.ASIDE: Outcome.ASIDE}
"""Of a run that is not done."""


@dataclass
class Execution:
    """The tasks of a study that this process carries out."""

    study: Study
    folder: RunFolder | None
    """Where the leader keeps the records; None in the other ranks."""
    only: Collection[str] = ()
    """Labels of the algorithms that are run; all if empty."""
    distributed: bool = False
    watch: Callable[[Progress], None] = lambda progress: None
    stop: Callable[[], bool] = lambda: False
    """Asked after every round: should we stop here?"""
    checkpoint_seconds: float = 5.0
    """A checkpoint is written after the first round that ends this long after the last one."""
    resumed: bool = False
    """The folder was there before: if versions have changed since, that is noted."""
    reference: Tensor | None = None
    """The minimiser, if it has been computed."""
    case: str = ""
    """Of an experiment with several cases."""
    until: int | None = None
    """A task that is not done by this round is put aside with its checkpoint, to be gone on with another time."""
    engine: Callable[[Task, CompleteEntry], Running] | None = None
    """The run of a task, if its clients do not live in this process or its ranks."""
    _of_seed: tuple[int, Problem] | None = field(default=None, init=False)
    """The seed that was run last, and its problem, if each seed has its own."""

    def run(self) -> bool:
        """True when every task that was asked for is done here; False if some are not, or are another process's."""
        done = True
        for k, task in enumerate(self.study.tasks):
            if self.only and task.label not in self.only:
                continue
            outcome = self._take(k, task)
            if outcome is Outcome.STOPPED:
                return False
            done = done and outcome is Outcome.DONE
        return done

    def waiting(self) -> list[Task]:
        """The tasks that were asked for and are not done."""
        asked = [task for task in self.study.tasks if not self.only or task.label in self.only]
        return [task for task in asked if self.folder is None or not self.folder.is_done(*task)]

    def network(self, topology: Topology | None) -> Network:
        p = self.study.problem
        return (Ranks if self.distributed else Stacked)(p.f.n, p.f.d, topology)

    def solution(self) -> Tensor | None:
        """The minimiser, where the study asks for it; computed once."""
        if self.study.reference and self.reference is None:
            self.reference = self.study.problem.solve()
        return self.reference

    # ---- one task ----------------------------------------------------------------------------------------------

    def _take(self, k: int, task: Task) -> Outcome:
        with ExitStack() as held:
            files, found, outcome = None, None, None
            if self.folder is not None and self.folder.is_done(*task):
                outcome = Outcome.DONE
            elif self.folder is not None:
                files = self.folder.task(*task, self.study.own_measures)
                free = held.enter_context(files.taken())
                outcome = Outcome.TAKEN if not free else Outcome.DONE if self.folder.is_done(*task) else None
                found = files.load() if outcome is None else None
            outcome, found = self._agree(outcome, found)
            with _of(task):
                return outcome or self._carry_out(k, task, files, found)

    def _agree(self, outcome: Outcome | None, found: Checkpoint | None) -> tuple[Outcome | None, Checkpoint | None]:
        """All ranks learn what the leader knows; their state they get from `load`."""
        if not self.distributed:
            return outcome, found
        known = (None, *Outcome)
        here = torch.tensor([known.index(outcome), -1 if found is None else found.round], dtype=torch.float64)
        code, t = (int(x) for x in self.network(None).from_leader(here).tolist())
        if self.folder is None and t >= 0:
            found = Checkpoint(t, 0, {"wall_seconds": 0.0}, {})
        return known[code], found

    def _entry(self, task: Task) -> CompleteEntry:
        """The algorithm with the problem of its seed; the settings are the same for all seeds."""
        entry, decayed = self.study.complete[task.label], self.study.entries[task.label].problem
        if self.study.problem_of is None:
            return entry
        if self._of_seed is None or self._of_seed[0] != task.seed:
            self._of_seed = task.seed, self.study.problem_of(task.seed)
        problem = self._of_seed[1]
        if decayed is not None:  # with a weight decay of its own, a number
            problem = replace(problem, f=problem.f.with_l2(decayed.f.l2 or 0.0))
        return entry._replace(problem=problem)

    def _begin(self, task: Task, entry: CompleteEntry) -> Running:
        net = self.network(entry.topology)
        known = entry.problem, net, entry.participation, task.seed, entry.rounds, self.study.privacy
        return begin(entry.algorithm, *known)

    def _carry_out(self, k: int, task: Task, files: TaskFolder | None, found: Checkpoint | None) -> Outcome:
        study, entry = self.study, self._entry(task)
        run = (self.engine or self._begin)(task, entry)
        net = run.network
        measures = Measures(entry.problem, net, self.solution(), study.stationarity_step, tuple(study.measures))
        records, done = TaskRecords(study, task, entry, files, found), -1
        if found is not None:
            done = found.round
            run.load(found.tensors if net.leader else None, found.counters)
        if self.folder is not None:
            if self.resumed:
                self.folder.note_versions({"algorithm": task.label, "seed": task.seed, "round": max(done, 0)})
            self.folder.note(*task, RunStatus.RUNNING, max(done, 0))
            log.info("%s, seed %d: %s", *task, "begins" if done < 0 else f"resumes after round {done}")
        last = entry.rounds if self.until is None else min(self.until, entry.rounds)
        about = self._about(task, entry, records)
        with begun(study.hooks if net.leader else (), about) as hooks:
            ended = follow(
                run,
                entry.problem,
                measures,
                records,
                hooks,
                entry.rounds,
                every=study.every,
                done=done,
                until=self.until,
                show=lambda t, row: self.watch(Progress(k, len(study.tasks), *task, t, last, row, self.case)),
                stop=self.stop,
                checkpoint_seconds=self.checkpoint_seconds,
            )
        outcome = OUTCOMES.get(ended.status, Outcome.DONE)
        if net.leader:
            said = f": {ended.message}" if ended.message else ""
            log.info("%s, seed %d: %s in round %d%s", *task, ended.status, ended.t, said)
        if outcome is Outcome.DONE:
            message = "; ".join(filter(None, [ended.message, "" if found is None else found.passed_over]))
            x = run.model() if ended.x is None else ended.x  # of all ranks
            if self.folder is not None and files is not None:
                self.folder.finish(files, *task, ended.status, ended.t, message, x, entry.problem.f.blocks)
        elif self.folder is not None:
            self.folder.note(*task, ended.status, ended.t)
        return outcome

    def _about(self, task: Task, entry: CompleteEntry, records: Records) -> About:
        study, folder = self.study, None if self.folder is None else self.folder.path
        settings = study.settings if study.hooks else {}
        return About(
            *task, entry.rounds, study.name, self.case, settings, tuple(records.rows), folder, study.directions
        )


def begin(
    algorithm: Algorithm, problem: Problem, network: Network, participation: Participation, seed: int, rounds: int,
    privacy: Privacy | None = None,
) -> Running:  # fmt: skip
    """A run; or, if it has steps to find, a race that ends after so many rounds."""
    if algorithm.to_find:
        return Race(problem, algorithm, network, participation, seed, rounds)
    return run_of(problem, algorithm, network, participation, seed, privacy=privacy)


@contextmanager
def _of(task: Task) -> Iterator[None]:
    """An error says which task it came from; one that is no ProxfedError stays what it is, with a note."""
    where = f"{task.label}, seed {task.seed}"
    try:
        yield
    except ProxfedError as e:
        raise type(e)(f"{where}: {e}") from e
    except Exception as e:
        e.add_note(f"(in {where})")
        raise


class TaskRecords(Records):
    """What the leader keeps of one task in its folder; the other ranks keep rows in memory, and no checkpoint."""

    def __init__(
        self, study: Study, task: Task, entry: CompleteEntry, files: TaskFolder | None, found: Checkpoint | None
    ) -> None:
        super().__init__()
        self.files, self.clock = files, None if files is None else _clock(study, task, entry)
        self.of = {"run": study.name, "algorithm": task.label, "seed": task.seed}
        if files is not None and found is not None:
            for cells in csv.reader(io.StringIO(files.rows().decode())):
                row = {name: parse(name, cell) for name, cell in zip(files.columns, cells, strict=True)}
                self._timed(row)
                self.rows.append(row)

    def _timed(self, row: Row) -> None:
        """With simulated seconds; the clock advances with every row."""
        if self.clock is not None:
            row["sim_seconds"] = self.clock(row)

    def add(self, row: Row) -> None:
        self._timed(row)
        super().add(row)
        if self.files is not None:
            self.files.append(self.of | row)

    def save(self, t: int, run: Running) -> None:
        changes = run.changes()
        tensors = run.dump(clients=changes is None)
        counters = run.counters() | {"wall_seconds": run.seconds}  # of all ranks
        if self.files is not None:
            self.files.save(t, counters, tensors, changes)
            log.debug("%s, seed %d: checkpoint after round %d", self.of["algorithm"], self.of["seed"], t)
        else:
            for _ in changes or ():  # the leader gets them
                pass


def _clock(study: Study, task: Task, entry: CompleteEntry) -> Clock | None:
    """Simulated time."""
    if study.timing is None:
        return None
    epochs, f = epochs_of(entry.algorithm), entry.problem.f
    own_steps = None if epochs is None else epochs.steps(f)
    return clock(study.timing, entry.algorithm, entry.participation, entry.topology, f.n, task.seed, own_steps)
