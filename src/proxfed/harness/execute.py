"""Carry out an experiment: every algorithm with every seed, into a run folder, resumable at any round.

A task is one algorithm; it is carried out with each seed. The checkpoint says which of these pairs is under way and
after which round; pairs before it are done, and the rows written since are cut off and computed again. Everything
random is keyed by seed, client and round, so what is computed again is the same to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxfed.data.client_stats import ClientStats
from proxfed.engine.allocator import keep_memory
from proxfed.engine.compatibility import check_combination
from proxfed.engine.measures import Measures, check_names
from proxfed.engine.network import Network
from proxfed.engine.ranks import Ranks
from proxfed.engine.run import Diverged, Run, rounds_and_rows
from proxfed.engine.stacked import Stacked
from proxfed.errors import MissingData, nearest, require
from proxfed.harness.build import Resolved, Task
from proxfed.harness.run_folder import COLUMNS, MEASURED, Checkpoint, Row, RunFolder
from proxfed.harness.schema import Experiment
from proxfed.harness.settings_diff import DESCRIPTIVE_KEYS, first_difference, result_settings, settings_mismatch
from proxfed.report.targets import COMPUTED
from proxfed.simulate import Clock, clock
from proxfed.types import Topology


class Progress(NamedTuple):
    """What is told to the one who watches."""

    task: int  # a task with a seed, counted from 0
    tasks: int
    label: str
    seed: int
    round: int
    rounds: int
    row: Row | None


@dataclass
class Execution:
    """One execution of an experiment, new or resumed."""

    resolved: Resolved
    folder: RunFolder | None
    """Where the leader keeps the records; None in the other processes."""
    distributed: bool = False
    watch: Callable[[Progress], None] = lambda progress: None
    stop: Callable[[], bool] = lambda: False
    """Asked after every round: should we stop here?"""
    checkpoint_seconds: float = 5.0
    """A checkpoint is written after the first round that ends this long after the last one."""

    def __post_init__(self) -> None:
        # Seed by seed, so that seeds which are added later come after all that has been done.
        self.pairs = [(task, seed) for seed in self.resolved.experiment.seeds for task in self.resolved.tasks]
        self.models: dict[str, Tensor] = {}
        self.status: list[dict[str, Any]] = []
        for task in self.resolved.tasks:
            check_combination(task.problem, task.algorithm, task.topology, task.participation)
        r = self.resolved
        solvable = not r.experiment.reference or r.problem.solvable
        require(solvable, f"reference = true, but there is no solver for the problem {r.experiment.problem['name']!r}")
        check_names(r.experiment.measures, [task.algorithm for task in r.tasks], r.problem)
        if self.folder is not None:
            self._check_asked()

    def network(self, topology: Topology | None) -> Network:
        p = self.resolved.problem
        return (Ranks if self.distributed else Stacked)(p.n, p.d, topology)

    def run(self, resume: bool = False) -> bool:
        """True when every task is done, False if it was asked to stop on the way."""
        if self.folder is None:
            return self._run(resume)
        with self.folder.locked():
            return self._run(resume)

    def _run(self, resume: bool) -> bool:
        keep_memory()
        e, problem = self.resolved.experiment, self.resolved.problem
        done = self._resume() if resume else None
        left = range(done.task if done else 0, len(self.pairs))
        reference = problem.solve() if e.reference and left else None
        if done is None:
            self._start()
        for k in left:
            task, seed = self.pairs[k]
            network = self.network(task.topology)
            measures = Measures(task.problem, network, reference, e.stationarity_step, tuple(e.measures))
            going = Run(task.problem, task.algorithm, network, task.participation, seed)
            here = done if done and done.task == k else None
            if not self._task(k, task, seed, going, measures, here):
                return False
        return True

    def _task(self, k: int, task: Task, seed: int, going: Run, measures: Measures, done: Checkpoint | None) -> bool:
        e, net = self.resolved.experiment, going.network
        t = -1
        if done is not None and done.round >= 0:
            t = done.round
            going.load(done.tensors if net.leader else None, done.counters)
        self._say(task.label, seed, "running", max(t, 0))
        simulated = self._clock(task, seed, resumed=t >= 0)
        saved = time.monotonic()

        def after_round(t: int, row: dict[str, Any] | None) -> None:
            if row is not None and simulated is not None:
                row["sim_seconds"] = simulated(row)
            if row is not None and self.folder:
                self.folder.append({"run": e.name, "algorithm": task.label, "seed": seed} | row)
            self.watch(Progress(k, len(self.pairs), task.label, seed, t, task.rounds, row))

        try:
            for row in rounds_and_rows(going, measures, t, task.rounds, e.every):
                t += 1
                after_round(t, row)
                asked = torch.tensor([float(self.stop()), float(time.monotonic() - saved >= self.checkpoint_seconds)])
                stop, due = (net.all_sum(asked) > 0).tolist()
                if stop or (due and t < task.rounds):
                    self._checkpoint(k, t, going)
                    saved = time.monotonic()
                if stop:
                    self._say(task.label, seed, "stopped", t)
                    return False
        except Diverged as diverged:
            after_round(t + 1, diverged.rows[-1])
            self._finish(k, task.label, seed, "diverged", t + 1, going, str(diverged))
        else:
            self._finish(k, task.label, seed, "finished", t, going)
        return True

    def _clock(self, task: Task, seed: int, resumed: bool) -> Clock | None:
        """Simulated time, where records are kept: it goes on after the rows that are there."""
        r = self.resolved
        if r.timing is None or self.folder is None:
            return None
        made = clock(r.timing, task.algorithm, task.participation, task.topology, r.problem.n, seed)
        for row in self.folder.rows() if resumed else ():
            if (row["algorithm"], row["seed"]) == (task.label, seed):
                made(row)
        return made

    # ---- records, kept by the leader ---------------------------------------------------------------------------

    @property
    def measures(self) -> list[str]:
        """What rows have beside the columns of every problem."""
        return [*self.resolved.experiment.measures, *self.resolved.problem.measures]

    def _check_asked(self) -> None:
        """Targets, claims, reported numbers and figures speak of what rows will have."""
        e = self.resolved.experiment
        measured = [*MEASURED, *self.measures]
        for name in e.targets:
            require(name in measured, f"targets: there is no measure {name!r}; {nearest(name, measured)}")
        known = {*COLUMNS, *measured, *COMPUTED} - {"run", "algorithm"}
        figures = e.paper.figures if e.paper is not None else []
        asked = [
            *(("claims", c.measure, c.axis) for c in e.claims if c.case in (None, e.case)),
            *(("reported", r.measure, r.axis) for r in e.reported if r.case in (None, e.case)),
            *(("paper.figures", f.y, f.x) for f in figures if not f.cases or e.case in f.cases),
        ]
        for where, measure, axis in asked:
            for name in (measure, axis):
                require(name in known, f"{where}: there is no measure {name!r}; {nearest(name, known)}")

    def _start(self) -> None:
        if self.folder:
            self.folder.create(self.resolved.table)
            if (data := self.resolved.problem.data) is not None:
                self.folder.write_clients(ClientStats.of(data))
            self.folder.start_rows(self.measures)
            self.folder.save_checkpoint(0, -1, {"wall_seconds": 0.0}, {})  # from now on there is always one

    def _resume(self) -> Checkpoint | None:
        """The leader's checkpoint; the other processes learn where it stands, and get their state from `Run.load`."""
        found = None
        if self.folder:
            found, then = self.folder.load_checkpoint(), self.folder.clients()
            data = self.resolved.problem.data
            unchanged = then is None or data is None or then.same(ClientStats.of(data))
            require(unchanged, f"the data are not those that the run in {self.folder.path} was started with")
        if found is not None and self.folder:
            done = {(task.label, seed) for task, seed in self.pairs[: found.task]}
            self.models = {k: torch.tensor(v) for k, v in self.folder.models()[0].items()}
            # A pair that came to its end, but not into the checkpoint, is not over.
            self.status = [s for s in self.folder.ended() if (s["algorithm"], s["seed"]) in done]
            self.folder.write_config(self.resolved.table)  # seeds may have been added
            self.folder.resume_rows(found.rows_end)
            self.folder.write_status(self.status)
            if found.task < len(self.pairs):
                task, seed = self.pairs[found.task]
                self.folder.write_versions({"algorithm": task.label, "seed": seed, "round": max(found.round, 0)})
        if not self.distributed:
            return found
        place = torch.tensor([found.task, found.round] if found else [-1, -1], dtype=torch.float64)
        k, t = self.network(None).from_leader(place).tolist()
        if self.folder or k < 0:
            return found
        return Checkpoint(int(k), int(t), 0, {"wall_seconds": 0.0}, {})

    def _checkpoint(self, k: int, t: int, going: Run) -> None:
        tensors, counters = going.dump(), going.counters() | {"wall_seconds": going.seconds}
        if self.folder:
            self.folder.save_checkpoint(k, t, counters, tensors)

    def _finish(self, k: int, label: str, seed: int, status: str, t: int, going: Run, message: str = "") -> None:
        """The status is never ahead of the model, nor the checkpoint of either: what it does not know is done again."""
        self.models[f"{label}/{seed}"] = going.model()
        if self.folder:
            self.folder.write_models(self.models, self.resolved.problem.blocks)
        self._say(label, seed, status, t, message)
        if self.folder:
            self.folder.save_checkpoint(k + 1, -1, {"wall_seconds": 0.0}, {})

    def _say(self, label: str, seed: int, status: str, t: int, message: str = "") -> None:
        self.status = [s for s in self.status if (s["algorithm"], s["seed"]) != (label, seed)]
        self.status.append({"algorithm": label, "seed": seed, "status": status, "round": t, "message": message})
        if self.folder:
            self.folder.write_status(self.status)


def open_folder(path: Path, table: dict[str, Any], resume: bool, force: bool) -> RunFolder:
    """The folder of a run, if it may be written."""
    folder = RunFolder(path)
    if not folder.exists():
        require(not resume, f"there is no run to resume in {path}")
        empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        require(empty or force, f"{path} exists and is not a run folder; choose another --out")
        return folder
    if resume:
        if difference := first_difference(_with_more_seeds(folder.config(), table), table):
            raise settings_mismatch(path, difference)
    else:
        require(
            force,
            f"{path} holds a run already: --resume continues it, --force replaces it, --out chooses another place",
        )
    return folder


@dataclass
class Plan:
    """The cases of an experiment, to be carried out one after the other, each in its run folder."""

    cases: dict[str, Experiment]
    folders: dict[str, Path]
    data: str | None = None
    """The data directory."""
    resume: bool = False
    """Go on with the cases that have begun; those that are complete are left as they are."""
    force: bool = False
    """Replace what is there."""
    leads: bool = True
    """Whether this process keeps the records."""
    leave_out: bool = False
    """Whether cases whose data are not there are left out, instead of refused; `missing` says why."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run before the first case begins."""
        self._ready: dict[str, Resolved] = {}
        self.missing: dict[str, str] = {}
        for name in self.cases:
            try:
                resolved = self._resolved(name)
            except MissingData as e:
                if not self.leave_out:
                    raise
                self.missing[name] = str(e)
                continue
            Execution(resolved, self._open(name, resolved))
            self._ready = self._ready or {name: resolved}  # of the first one; all data at once may be too much

    def run(
        self,
        watch: Callable[[str], AbstractContextManager[Callable[[Progress], None]]],
        stop: Callable[[], bool],
        distributed: bool = False,
        checkpoint_seconds: float = 5.0,
    ) -> bool:
        """True when every case is done, False if it was asked to stop on the way."""
        for name in self.cases:
            if name in self.missing:
                continue
            if not distributed and self._complete(name):
                self._retell(name)
                continue
            resolved = self._resolved(name)
            with watch(name) as watching:
                records = self._open(name, resolved)
                execution = Execution(resolved, records, distributed, watching, stop, checkpoint_seconds)
                if not execution.run(self.resume):
                    return False
        return True

    def _resolved(self, name: str) -> Resolved:
        return self._ready.pop(name, None) or Resolved(self.cases[name], self.data)

    def _open(self, name: str, resolved: Resolved) -> RunFolder | None:
        path = self.folders[name]
        begun = self.resume and RunFolder(path).exists()
        return open_folder(path, resolved.table, begun, self.force) if self.leads else None

    def _complete(self, name: str) -> bool:
        e = self.cases[name]
        return self.resume and RunFolder(self.folders[name]).tasks_done() == len(e.algorithms) * len(e.seeds)

    def _retell(self, name: str) -> None:
        """What the file says about a complete run may have changed since."""
        folder = RunFolder(self.folders[name])
        said = self.cases[name].model_dump(exclude_none=True, include=set(DESCRIPTIVE_KEYS))
        if (table := result_settings(folder.config()) | said) != folder.config():
            folder.write_config(table)


def _with_more_seeds(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old settings with the new seeds, if these go on where the old ones end."""
    return old | {"seeds": new["seeds"]} if new["seeds"][: len(old["seeds"])] == old["seeds"] else old
