"""The terminal, or a notebook or a log in its place: what is shown there, on the way and at the end, and Ctrl-C.

The library logs under the name `proxfed` and configures nothing; the command line shows the log on stderr (`show_log`).
Where that logger is set to ERROR, there is no progress either.

Names and messages that come from files are text there, and nothing else. An escape sequence in a label could move the
cursor, hide lines or change the title of the window; a right-to-left mark could show words in another order. Such
characters are shown as '?', and brackets are no markup.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from proxfed.report.columns import Row, RunStatus

if TYPE_CHECKING:
    from proxfed.harness.results import Results

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters but line feed and tab, marks of direction and order, and halves of characters."""

EVERY = 30.0
"""Seconds between two lines of progress where there is no terminal."""


def visible(text: str) -> str:
    """The text with a '?' for each character that would do something else than be seen."""
    return UNSEEN.sub("?", text)


def console(**how: Any) -> Console:
    """A console on which only what we style ourselves is more than text."""
    made = Console(markup=False, emoji=False, **how)
    made.push_render_hook(_AsText())
    return made


class _AsText(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    """Something to print, with its text made visible."""

    def __init__(self, what: ConsoleRenderable) -> None:
        self.what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self.what, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


# ---- lines and results ----------------------------------------------------------------------------------------------


err = console(stderr=True)
out = console()


log = logging.getLogger("proxfed")


def quiet() -> bool:
    """Nothing but results and errors is shown."""
    return log.getEffectiveLevel() >= logging.ERROR


class _ToTerminal(logging.Handler):
    """Lines of the log on stderr, as text."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(self.format(record), highlight=False, soft_wrap=True)


def show_log(level: int) -> None:
    """Show the log from this level on; below WARNING each line has its time and place."""
    handler = _ToTerminal()
    if level < logging.WARNING:
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    log.handlers = [other for other in log.handlers if not isinstance(other, _ToTerminal)] + [handler]
    log.setLevel(level)


def say(line: str, console: Console = out, style: str | None = None) -> None:
    """A line of text as it stands, a long path in one piece; on stderr only if that is not to be quiet."""
    if console is err and quiet():
        return
    console.print(line, style=style, highlight=False, soft_wrap=True)


def print_results(table: Sequence[Mapping[str, Any]]) -> None:
    """What each algorithm reached, and what it took to reach the targets."""
    from proxfed.report.summary import fairness, rich_results

    out.print(rich_results(table, out.width))
    if said := fairness(table):
        say(said)


def say_messages(results: Results, case: str = "") -> None:
    """A line on stderr for each seed that diverged, found its steps or got nowhere: results, not failures."""
    where = f"{case}: " if case else ""
    for s in results.status:
        if s["message"]:
            style = "red" if s["status"] == RunStatus.DIVERGED else None
            say(f"{where}{s['algorithm']}, seed {s['seed']}: {s['message']}", err, style)


# ---- on the way -----------------------------------------------------------------------------------------------------


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


class Progress(NamedTuple):
    """What somebody who watches is told after each round."""

    task: int  # counted from 0
    tasks: int
    label: str
    seed: int
    round: int
    rounds: int
    row: Row | None
    case: str = ""


@contextmanager
def watching(show: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Meanwhile something to call with each Progress, which shows it where this process is seen."""
    if not show or quiet():
        yield lambda p: None
    elif _in_a_notebook():
        with _Notebook() as line:
            yield line
    elif sys.stderr.isatty():
        with _Bars() as bars:
            yield bars
    else:
        yield _Lines()


def _in_a_notebook() -> bool:
    """A kernel runs this; that its module was imported says little."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


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
        from rich import progress as rich

        self.bar = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(bar_width=24),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[rate]}"),
            rich.TimeRemainingColumn(compact=True),
            rich.TextColumn("{task.fields[measures]}", markup=False),
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


class _Lines:
    """A line now and then, for logs."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.rates: dict[str, _Rate] = {}

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
            self.handle = display(text, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(text, raw=True)
