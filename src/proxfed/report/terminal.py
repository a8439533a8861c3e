"""Output in the terminal, a notebook or a log, and Ctrl-C. Progress is in progress.py.

The library logs under the name `proxfed` and configures nothing; the command line shows the log on stderr (`show_log`).
If that logger is set to ERROR, there is no progress display either.

Names and messages from files are shown as plain text. An escape sequence in a label could move the cursor, hide lines
or change the title of the window; a right-to-left mark could reorder words. Such characters are shown as '?', and
brackets are not markup.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from proxfed.report.columns import RunStatus

if TYPE_CHECKING:
    from proxfed.harness.results import Results

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters except line feed and tab, direction marks, and surrogates."""


def visible(text: str) -> str:
    """The text with a '?' for each control or invisible character."""
    return UNSEEN.sub("?", text)


def console(**how: Any) -> Console:
    """A console that shows all text literally, except for our own styles."""
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
    """Whether only results and errors are shown."""
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
    """Print a line of text unchanged, without wrapping long paths; on stderr only if not quiet."""
    if console is err and quiet():
        return
    console.print(line, style=style, highlight=False, soft_wrap=True)


def print_results(table: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of each algorithm, and the costs of reaching the targets."""
    from proxfed.report.summary import fairness, rich_results

    out.print(rich_results(table, out.width))
    if said := fairness(table):
        say(said)


def say_messages(results: Results, case: str = "") -> None:
    """Print a line on stderr for each seed that diverged, found its step sizes or made no progress."""
    where = f"{case}: " if case else ""
    for s in results.status:
        if s["message"]:
            style = "red" if s["status"] == RunStatus.DIVERGED else None
            say(f"{where}{s['algorithm']}, seed {s['seed']}: {s['message']}", err, style)


# ---- interruption ---------------------------------------------------------------------------------------------------


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """A context in which the first Ctrl-C (or SIGTERM) stops the work after its round; the second ends the process.

    It gives a function that returns whether to stop. Outside the main thread, which alone gets signals, it never does.
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
