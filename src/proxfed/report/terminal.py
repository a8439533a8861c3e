"""What is shown in a terminal: names and messages that come from files are text there, and nothing else.

An escape sequence in a label could move the cursor, hide lines or change the title of the window; a right-to-left mark
could show words in another order. Such characters are shown as '?', and brackets are no markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters but line feed and tab, marks of direction and order, and halves of characters."""


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
