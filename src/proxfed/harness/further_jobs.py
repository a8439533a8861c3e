"""Whether to start further jobs if no number was given: a new process needs seconds before it helps.

The decision depends on the progress of this process so far, and on the number of idle cores meanwhile.
"""

from __future__ import annotations

import time
from math import inf

from proxfed.machine import idle_seconds
from proxfed.report.progress import Progress

START = 3.0
"""Start-up time of a process in seconds: importing torch, reading the study, loading compiled code."""

LOOK = 0.5
"""Seconds between two checks."""


def worth_starting(left: float, idle: float, most: int) -> int:
    """How many further jobs shorten a study that would take this process alone another `left` seconds.

    They are ready after START seconds and share the remaining work; that must save a tenth of the time.
    """
    others = max(0, min(most, round(idle)))
    saved = (1 - START / left) * others / (others + 1) if left > START else 0.0
    return others if saved > 0.1 else 0


class Pace:
    """The progress of this process with the tasks that it has begun."""

    def __init__(self, tasks: int, jobs: int) -> None:
        self.tasks, self.jobs = tasks, jobs
        self._first: dict[tuple[str, str, int], int] = {}
        self._share: dict[tuple[str, str, int], float] = {}
        self._began = self._looked = time.monotonic()
        self._idle, self._warm = idle_seconds(), False

    def hear(self, p: Progress) -> None:
        key = p.case, p.label, p.seed
        first = self._first.setdefault(key, p.round)  # a resumed task does not begin with round 0
        if p.round > first and not self._warm:  # the first round may compile, so its time is not typical
            self._warm, self._began, first = True, time.monotonic(), p.round
            self._first[key] = first
        self._share[key] = (p.round - first) / max(1, p.rounds - first)

    def left(self) -> float:
        """The remaining seconds, if the other tasks take as long as these."""
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
