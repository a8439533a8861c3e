"""Carry out a study in this process: every algorithm with every seed, into a run folder, resumable at any round.

A task is one algorithm with one seed. Everything random is keyed by seed, client and round, so what is computed again
after an interruption is the same to the bit, and tasks may be shared out over processes (processes.py): each takes the
tasks that no other one has taken.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from proxfed.auto import Auto
from proxfed.engine.measures import Measures
from proxfed.engine.network import Network, Stacked
from proxfed.engine.race import Race
from proxfed.engine.ranks import Ranks
from proxfed.engine.run import Run, Step, rounds
from proxfed.errors import ProxfedError
from proxfed.harness.checkpoint import Checkpoint, TaskFolder
from proxfed.harness.remarks import control_variates, remarks
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.study import CompleteEntry, Study, Task
from proxfed.report.columns import Row, parse
from proxfed.report.terminal import Progress
from proxfed.simulate import Clock, clock
from proxfed.types import Algorithm, Participation, Problem, Topology


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
    engine: Callable[[Task, CompleteEntry], tuple[Network, Run | Race]] | None = None
    """What carries out a task, and its network, if that is not this process or its ranks."""

    def run(self) -> bool:
        """True when every task that was asked for is done here; False if some are not, or are another process's."""
        done = True
        for k, task in enumerate(self.study.tasks):
            if self.only and task.label not in self.only:
                continue
            outcome = self._take(k, task)
            if outcome == "stopped":
                return False
            done = done and outcome == "done"
        return done

    def network(self, topology: Topology | None) -> Network:
        p = self.study.problem
        return (Ranks if self.distributed else Stacked)(p.n, p.d, topology)

    def solution(self) -> Tensor | None:
        """The minimiser, where the study asks for it; computed once."""
        if self.study.reference and self.reference is None:
            self.reference = self.study.problem.solve()
        return self.reference

    # ---- one task ----------------------------------------------------------------------------------------------

    def _take(self, k: int, task: Task) -> str:
        """'done', now or before; 'stopped' on the way; put 'aside'; or 'taken' by another process."""
        with ExitStack() as held:
            files, found, outcome = None, None, ""
            if self.folder is not None and self.folder.is_done(*task):
                outcome = "done"
            elif self.folder is not None:
                files = self.folder.task(*task, self.study.own_measures)
                free = held.enter_context(files.taken())
                outcome = "taken" if not free else "done" if self.folder.is_done(*task) else ""
                found = files.load() if not outcome else None
            outcome, found = self._agree(outcome, found)
            with _of(task):
                return outcome or self._carry_out(k, task, files, found)

    def _agree(self, outcome: str, found: Checkpoint | None) -> tuple[str, Checkpoint | None]:
        """All ranks learn what the leader knows; their state they get from `Run.load`."""
        if not self.distributed:
            return outcome, found
        names = ("", "done", "taken")
        here = torch.tensor([names.index(outcome), -1 if found is None else found.round], dtype=torch.float64)
        code, t = (int(x) for x in self.network(None).from_leader(here).tolist())
        if self.folder is None and t >= 0:
            found = Checkpoint(t, 0, {"wall_seconds": 0.0}, {})
        return names[code], found

    def _anybody(self, net: Network, *asked: bool) -> Sequence[bool]:
        """Which of these some rank says."""
        return (net.all_sum(torch.tensor(asked, dtype=torch.float64)) > 0).tolist() if self.distributed else asked

    def _begin(self, task: Task, entry: CompleteEntry) -> tuple[Network, Run | Race]:
        net = self.network(entry.topology)
        return net, begin(entry.algorithm, entry.problem, net, entry.participation, task.seed, entry.rounds)

    def _carry_out(self, k: int, task: Task, files: TaskFolder | None, found: Checkpoint | None) -> str:
        study, entry = self.study, self.study.complete[task.label]
        net, run = (self.engine or self._begin)(task, entry)
        measures = Measures(entry.problem, net, self.solution(), study.stationarity_step, tuple(study.measures))
        records = _Records(study, task, entry, self.folder, files, found)
        t = -1
        if found is not None:
            t = found.round
            run.load(found.tensors if net.leader else None, found.counters)
        if self.folder is not None:
            if self.resumed:
                self.folder.note_versions({"algorithm": task.label, "seed": task.seed, "round": max(t, 0)})
            self.folder.note(*task, "running", max(t, 0))
        saved, x, diverged, variates = time.monotonic(), None, "", control_variates(run)
        last = entry.rounds if self.until is None else min(self.until, entry.rounds)
        for step in rounds(run, measures, t, last, study.every):
            t, x, diverged = step.t, step.x, step.diverged
            records.add(step)
            if variates is not None and step.row is not None and t > 0:
                variates.begin(t)
            self.watch(Progress(k, len(study.tasks), *task, t, last, step.row, self.case))
            if diverged:
                break
            stop, due = self._anybody(net, self.stop(), time.monotonic() - saved >= self.checkpoint_seconds)
            aside = t >= last and t < entry.rounds
            if stop or aside or (due and t < entry.rounds):
                records.save(t, run)
                saved = time.monotonic()
            if stop or aside:
                records.stopped(t)
                return "stopped" if stop else "aside"
        if not diverged and t < entry.rounds:  # it was put aside here before, and then did not get to its status
            records.stopped(t)
            return "aside"
        said = remarks(entry.problem, run, variates, records.first, records.last, diverged)
        said = "; ".join(filter(None, [said, "" if found is None else found.passed_over]))
        records.finish("diverged" if diverged else "finished", t, said, run.model() if x is None else x)
        return "done"


def begin(
    algorithm: Algorithm | Auto, problem: Problem, network: Network, participation: Participation, seed: int,
    rounds: int,
) -> Run | Race:  # fmt: skip
    """A run; or, if it has steps to find, a race that ends after so many rounds."""
    if isinstance(algorithm, Auto):
        return Race(problem, algorithm, network, participation, seed, rounds)
    return Run(problem, algorithm, network, participation, seed)


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


class _Records:
    """What is kept of one task, by the leader; the other ranks keep nothing."""

    def __init__(
        self, study: Study, task: Task, entry: CompleteEntry, folder: RunFolder | None, files: TaskFolder | None,
        found: Checkpoint | None,
    ) -> None:  # fmt: skip
        self.study, self.task, self.entry, self.folder, self.files = study, task, entry, folder, files
        self.first: Row | None = None
        self.last: Row | None = None
        self.clock = self._clock()
        if files is not None and found is not None:
            for cells in csv.reader(io.StringIO(files.rows().decode())):
                self._pass({name: parse(name, cell) for name, cell in zip(files.columns, cells, strict=True)})

    def _clock(self) -> Clock | None:
        """Simulated time."""
        s, e = self.study, self.entry
        if s.timing is None or self.files is None:
            return None
        return clock(s.timing, e.algorithm, e.participation, e.topology, s.problem.n, self.task.seed)

    def _pass(self, row: Row) -> float | None:
        """The clock goes on, to the seconds that it returns; the first row and the last are remembered."""
        self.first, self.last = self.first or row, row
        return None if self.clock is None else self.clock(row)

    def add(self, step: Step) -> None:
        if step.row is not None and self.files is not None:
            row = {"run": self.study.name, "algorithm": self.task.label, "seed": self.task.seed} | step.row
            seconds = self._pass(row)
            if seconds is not None:
                row["sim_seconds"] = step.row["sim_seconds"] = seconds
            self.files.append(row)

    def save(self, t: int, run: Run | Race) -> None:
        changes = run.changes() if isinstance(run, Run) else None
        tensors = run.dump() if not isinstance(run, Run) else run.dump(clients=changes is None)
        counters = run.counters() | {"wall_seconds": run.seconds}  # of all ranks
        if self.files is not None:
            self.files.save(t, counters, tensors, changes)
        else:
            for _ in changes or ():  # the leader gets them
                pass

    def stopped(self, t: int) -> None:
        if self.folder is not None:
            self.folder.note(*self.task, "stopped", t)

    def finish(self, status: str, t: int, message: str, x: Tensor) -> None:
        if self.folder is not None and self.files is not None:
            self.folder.finish(self.files, *self.task, status, t, message, x, self.entry.problem.blocks)
