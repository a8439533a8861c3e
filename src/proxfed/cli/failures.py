"""Unexpected errors: one sentence, and the traceback in a file."""

from __future__ import annotations

import os
import tempfile
import traceback
from contextlib import suppress

from rich.text import Text

from proxfed.report.terminal import err

DEBUG = "PROXFED_DEBUG"
"""The environment variable that shows tracebacks."""


def refuse(sentence: str) -> None:
    """One line on stderr."""
    err.print(Text.assemble(("error:", "red"), " ", sentence), highlight=False, soft_wrap=True)


def show_if_asked(trace: str) -> bool:
    """Print the traceback if PROXFED_DEBUG is set; returns whether it did."""
    if asked := bool(os.environ.get(DEBUG)):
        err.print(trace.rstrip(), highlight=False, soft_wrap=True)
    return asked


def unexpected(said: str, trace: str) -> None:
    """Refuse with a sentence that names the place of the traceback."""
    words = said.strip().partition("\n")[0]
    where = f"shown above; {DEBUG} is set"
    if not show_if_asked(trace):
        where = f"not kept: {DEBUG}=1 shows it"
        with suppress(OSError):
            handle, name = tempfile.mkstemp(prefix="proxfed-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(trace)
            where = f"in {name}, and {DEBUG}=1 shows it"
    refuse(f"{words} (this was not expected; the traceback is {where})")


def words(e: BaseException) -> str:
    """The text of an exception, with its notes."""
    return " ".join([f"{type(e).__name__}: {e}", *getattr(e, "__notes__", ())])


def trace(e: BaseException) -> str:
    """Its traceback."""
    return "".join(traceback.format_exception(e))
