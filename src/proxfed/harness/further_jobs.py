"""Whether further jobs are worth starting where nobody asked for a number: a process needs seconds before it helps.

That follows from what this process has done so far, and from how many cores of the machine have been idle meanwhile.
"""

from __future__ import annotations

import time
from math import inf

from proxfed.machine import idle_seconds
from proxfed.report.progress import Progress

START = 3.0
"""Seconds until a new process has imported torch, read the study and loaded what is compiled."""

LOOK = 0.5
"""Seconds between two looks."""


def worth_starting(left: float, idle: float, most: int) -> int:
    """How many further jobs shorten a study of which this process alone has `left` seconds to go.

    They are ready after START seconds and share what is left then; that must save a tenth of the time.
    """
    others = max(0, min(most, round(idle)))
    saved = (1 - START / left) * others / (others + 1) if left > START else 0.0
    return others if saved > 0.1 else 0


class Pace:
    """How far this process has come with the tasks that it has begun."""

    def __init__(self, tasks: int, jobs: int) -> None:
        self.tasks, self.jobs = tasks, jobs
        self._first: dict[tuple[str, str, int], int] = {}
        self._share: dict[tuple[str, str, int], float] = {}
        self._began = self._looked = time.monotonic()
        self._idle, self._warm = idle_seconds(), False

    def hear(self, p: Progress) -> None:
        key = p.case, p.label, p.seed
        first = self._first.setdefault(key, p.round)  # a resumed task does not begin with round 0
        if p.round > first and not self._warm:  # the first round may compile, and says nothing about the others
            self._warm, self._began, first = True, time.monotonic(), p.round
            self._first[key] = first
        self._share[key] = (p.round - first) / max(1, p.rounds - first)

    def left(self) -> float:
        """Seconds, if the other tasks take as long as these."""
        done = sum(self._share.values())
        return (time.monotonic() - self._began) * (self.tasks - done) / done if done else inf

    def further(self) -> int:
        """How many further jobs to start now."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return 0
        idle, before = idle_seconds(), self._idle
        cores = inf if idle is None or before is None else (idle - before) / (now - self._looked)
        self._looked, self._idle = now, idle
        waiting = self.tasks - len(self._share)
        return worth_starting(self.left(), min(cores, self.jobs), min(self.jobs - 1, waiting))
