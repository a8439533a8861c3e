"""Carries out one run, round by round; used by `run`, `compare`, jobs, ranks, `tune` and `deploy`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from torch import Tensor

from proxfed.engine.loop import Row, rounds
from proxfed.engine.measures import Measures
from proxfed.engine.running import Running
from proxfed.harness.remarks import control_variates, remarks
from proxfed.hooks import Begun, Stop
from proxfed.report.columns import RunStatus
from proxfed.types import Problem


@dataclass
class Records:
    """The records of a run: its rows, in memory."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def save(self, t: int, run: Running) -> None:
        """Write a checkpoint after round t, if there is a folder for it."""


class Ended(NamedTuple):
    """The end of a run."""

    status: RunStatus
    """Finished, stopped early by a hook, diverged, interrupted, or paused."""
    t: int
    """The last round."""
    message: str
    x: Tensor | None
    """The model after that round, if it was measured."""


def follow(
    run: Running,
    problem: Problem,
    measures: Measures,
    records: Records,
    hooks: Begun,
    last: int,
    *,
    every: int = 1,
    done: int = -1,
    until: int | None = None,
    show: Callable[[int, Row | None], object] = lambda t, row: None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = inf,
) -> Ended:
    """Run from round `done` to round `last`, or pause after round `until`.

    hooks                called with every row, by the leader; one of them may stop the run
    show                 called after every round
    stop                 called after every round: whether to stop
    checkpoint_seconds   the least time between two checkpoints, which are written after a round
    """
    here = last if until is None else min(until, last)
    t, x, status, said, saved = done, None, RunStatus.FINISHED, "", time.monotonic()
    variates, net = control_variates(run), run.network
    for step in rounds(run, here, measures, every, done):
        early: Stop | None = None
        t, x = step.t, step.x
        if step.row is not None:
            records.add(step.row)
            if variates is not None and t > 0:
                variates.begin(t)
            if net.leader and step.x is not None:
                early = hooks(step.row, step.x)
        show(t, step.row)
        if step.diverged:
            status, said = RunStatus.DIVERGED, step.diverged
            break
        late = time.monotonic() - saved >= checkpoint_seconds
        ended, stopped, due = net.some(early is not None, stop() or hooks.interrupted, late)
        if ended and t < last:
            status, said = RunStatus.EARLY, f"stopped early after round {t} of {last}: {early.reason if early else ''}"
            break
        if t < last and (stopped or due or t == here):
            records.save(t, run)
            saved = time.monotonic()
        if stopped and t < last:
            by = "KeyboardInterrupt in a hook" if hooks.interrupted else "a signal"
            status, said = RunStatus.STOPPED, f"stopped by {by} after round {t} of {last}"
            break
    if status is RunStatus.FINISHED and t < last:
        status, said = RunStatus.ASIDE, f"put aside after round {t} of {last}"
    of_end = remarks(problem, run, variates, records.rows, "" if status is RunStatus.EARLY else said)
    message = "; ".join(filter(None, [said, of_end])) if status is RunStatus.EARLY else of_end
    hooks.close(status, message)
    return Ended(status, t, message, x)
