"""What long work shows on the way - in a terminal, in a notebook, or line by line in a log - and how it is stopped."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from proxfed.report.terminal import console, visible

if TYPE_CHECKING:
    from proxfed.harness.execute import Progress

EVERY = 30.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Meanwhile the first Ctrl-C (or SIGTERM) asks the work to stop after its round; the second ends the process.

    What it gives says whether that was asked. In a thread that is not the main one, which gets no signals, it never is.
    """
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)} if here else {}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watching(show: bool = True) -> AbstractContextManager[Any]:
    """Something to call with each Progress, which shows it where this process is seen."""
    if not show:
        return _Silent()
    if _in_a_notebook():
        return _Notebook()
    return _Bars() if sys.stderr.isatty() else _Lines()


def _in_a_notebook() -> bool:
    """A kernel runs this; that its module was imported says little."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Silent(AbstractContextManager[Any]):
    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, p: Progress) -> None:
        pass


def _name(p: Progress) -> str:
    """Which task it is."""
    case = f"{p.case}: " if p.case else ""
    return visible(f"{case}{p.task + 1}/{p.tasks} {p.label}, seed {p.seed}")


def _numbers(p: Progress) -> str:
    """The measures of a row that tell most."""
    if p.row is None:
        return ""
    shown = [k for k in ("objective", "error", "gap", "accuracy") if isinstance(p.row.get(k), (int, float))][:2]
    return "  ".join(f"{k} {p.row[k]:.3g}" for k in shown)


class _Rate:
    """Rounds per second of a task since it was first seen."""

    def __init__(self, p: Progress) -> None:
        self.round, self.time = p.round, time.monotonic()

    def __call__(self, p: Progress) -> str:
        rounds, seconds = p.round - self.round, time.monotonic() - self.time
        return f"{rounds / seconds:.3g} rounds/s" if rounds and seconds > 0 else ""


class _Bars(AbstractContextManager[Any]):
    """A bar per task: rounds, rounds/s and the current measures."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[measures]}", markup=False),
            console=console(stderr=True),
        )
        self.known: dict[str, tuple[Any, _Rate]] = {}

    def __enter__(self) -> _Bars:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, p: Progress) -> None:
        name = _name(p)
        if name not in self.known:
            self.known[name] = self.bar.add_task(name, total=p.rounds, rate="", measures=""), _Rate(p)
        bar, rate = self.known[name]
        self.bar.update(bar, completed=p.round, rate=rate(p))
        if p.row is not None:
            self.bar.update(bar, measures=_numbers(p))


class _Lines(AbstractContextManager[Any]):
    """A line now and then, for logs."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.rates: dict[str, _Rate] = {}

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, p: Progress) -> None:
        rate = self.rates.setdefault(_name(p), _Rate(p))
        if time.monotonic() - self.last < EVERY:
            return
        self.last = time.monotonic()
        place = f"{_name(p)}: round {p.round} of {p.rounds}"
        print("  ".join(part for part in (place, rate(p), _numbers(p)) if part), file=sys.stderr, flush=True)


class _Notebook(AbstractContextManager[Any]):
    """One line below the cell, rewritten as it goes."""

    def __init__(self) -> None:
        self.last, self.handle = 0.0, None
        self.rates: dict[str, _Rate] = {}

    def __exit__(self, *_: object) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)

    def __call__(self, p: Progress) -> None:
        from IPython.display import display

        rate = self.rates.setdefault(_name(p), _Rate(p))
        if time.monotonic() - self.last < 0.3:
            return
        self.last = time.monotonic()
        place = f"{_name(p)}: round {p.round} of {p.rounds}"
        text = {"text/plain": "  ".join(part for part in (place, rate(p), _numbers(p)) if part)}
        if self.handle is None:
            self.handle = display(text, raw=True, display_id=True)
        else:
            self.handle.update(text, raw=True)
