"""Progress of long tasks: bars in a terminal, one line in a notebook, occasional lines in a log.

Runs, fits and downloads all report it as a Step; `watching` turns the rounds of runs into steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from proxfed.report.columns import Row, show
from proxfed.report.terminal import console, quiet, visible

EVERY, OFTEN = 30.0, 0.3
"""Seconds between two lines in a log, and between two changes of a line in a notebook."""


COMPILING = "compiling the loops over the data for this machine, once: about 10 s"


class Step(NamedTuple):
    """The progress of one task."""

    what: str
    """The name of the task: each has its own bar."""
    done: int
    total: int | None = None
    """The total; None: not known."""
    unit: str = ""
    """Such as 'rounds'; 'bytes' are shown as sizes."""
    said: str = ""
    """More about it, such as measures."""


class Progress(NamedTuple):
    """The report to a watcher of runs after each round."""

    task: int  # counted from 0
    tasks: int
    label: str
    seed: int
    round: int
    rounds: int
    row: Row | None
    case: str = ""

    def step(self) -> Step:
        """As a Step, with the most informative measures of its row."""
        case = f"{self.case}: " if self.case else ""
        row = self.row or {}
        most = [k for k in ("objective", "error", "gap", "accuracy") if isinstance(row.get(k), (int, float))][:2]
        name = f"{case}{self.task + 1}/{self.tasks} {self.label}, seed {self.seed}"
        return Step(name, self.round, self.rounds, "rounds", "  ".join(f"{k} {row[k]:.3g}" for k in most))


@contextmanager
def showing(wanted: bool = True, stays: bool = True) -> Iterator[Callable[[Step], None]]:
    """A context that gives a function to call with each Step, which displays it; bars may stay at the end."""
    if not wanted or quiet():
        yield lambda step: None
        return
    from proxfed.machine import told_of_compiling  # here: predictions need no torch

    display = _Notebook() if _in_a_notebook() else _Bars(stays) if sys.stderr.isatty() else _Lines()
    try:
        with told_of_compiling(lambda: display.note(COMPILING)):
            yield display
    finally:
        display.close()


@contextmanager
def watching(wanted: bool = True) -> Iterator[Callable[[Progress], None]]:
    """The same for the rounds of runs."""
    with showing(wanted) as display:
        yield lambda progress: display(progress.step())


def _in_a_notebook() -> bool:
    """Whether a kernel runs this; an import of its module alone proves little."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Lines:
    """Occasional lines, for logs."""

    every = EVERY

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.begun: dict[str, tuple[int, float]] = {}
        """The progress of each task when first seen, and the time."""

    def __call__(self, step: Step) -> None:
        rate = self.rate(step)
        if time.monotonic() - self.last < self.every:
            return
        self.last = time.monotonic()
        self.write("  ".join(filter(None, [visible(f"{step.what}: {_count(step)}"), rate, step.said])))

    def rate(self, step: Step) -> str:
        """Rounds or bytes per second since the task was first seen."""
        done, at = self.begun.setdefault(step.what, (step.done, time.monotonic()))
        done, seconds = step.done - done, time.monotonic() - at
        if not (done > 0 and seconds > 0 and step.unit):
            return ""
        speed = done / seconds
        return f"{show(speed, 'bytes')}/s" if step.unit == "bytes" else f"{speed:.3g} {step.unit}/s"

    def write(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """A note for a waiting user; a log does not need it."""

    def close(self) -> None:
        """The end."""


class _Notebook(_Lines):
    """One line below the cell, which is updated."""

    every = OFTEN

    handle: Any
    """IPython's display handle."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.handle = 0.0, None

    def write(self, line: str) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display({"text/plain": line}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update({"text/plain": line}, raw=True)

    def note(self, line: str) -> None:
        self.write(line)

    def close(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


class _Bars(_Lines):
    """A bar per task: its progress, its rate, and its text."""

    def __init__(self, stays: bool) -> None:
        from rich import progress as rich

        super().__init__()
        self.bar = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.fields[count]}"),
            rich.TextColumn("{task.fields[rate]}"),
            rich.TimeRemainingColumn(compact=True),
            rich.TextColumn("{task.fields[said]}", markup=False),
            console=console(stderr=True),
            transient=not stays,
        )
        self.tasks: dict[str, Any] = {}
        self.bar.start()

    def __call__(self, step: Step) -> None:
        count, rate = _count(step), self.rate(step)
        if step.what not in self.tasks:
            self.tasks[step.what] = self.bar.add_task(visible(step.what), count=count, rate=rate, said="")
        task = self.tasks[step.what]
        self.bar.update(task, completed=step.done, total=step.total, count=count, rate=rate)
        if step.said:
            self.bar.update(task, said=step.said)

    def note(self, line: str) -> None:
        self.bar.console.print(line, highlight=False)

    def close(self) -> None:
        self.bar.stop()


def _count(step: Step) -> str:
    """'3 of 20 rounds', '1.2 MB of 3 MB'."""
    shown = [show(k, "bytes") if step.unit == "bytes" else str(k) for k in (step.done, step.total) if k is not None]
    return " of ".join(shown) + (f" {step.unit}" if step.unit not in ("", "bytes") else "")
