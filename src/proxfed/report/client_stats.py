"""Pictures of who holds what: a section of the page, lines in the terminal, and a drawing of its own.

A cell is one client's samples of one class. On the page and in the terminal it is the stronger the larger its part of
the client's samples, so that clients of different sizes compare; sizes are bars beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxfed.data.client_stats import ClientStats
from proxfed.report.summary import plain_table

ROWS, CELLS = 200, 20_000
"""Clients that a picture on the page shows at most, and cells of all its pictures together."""
FEW = 20
"""Clients that it shows in any case."""
LINES, SOME = 40, 20
"""Up to so many clients have a line each in the terminal; of more, so many are drawn."""
BAR = 10
SHADES = "·░▒▓█"


class Picture(NamedTuple):
    """Client stats that one or several runs have in common, and the clients that are shown."""

    runs: list[str]
    stats: ClientStats
    ids: np.ndarray
    about: str
    """How many samples, and how evenly, in words."""

    @property
    def strongest(self) -> float:
        """The largest part that a class has of a shown client's samples."""
        return float(parts(self.stats, self.ids).max(initial=0))

    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        h = self.stats
        counts = None if h.counts is None else h.counts[self.ids].tolist()
        return {
            "ids": self.ids.tolist(),
            "sizes": h.sizes[self.ids].tolist(),
            "largest": int(h.sizes.max()),
            "classes": h.classes,
            "counts": counts,
            "strongest": self.strongest,
            "about": self.about,
        }

    def html(self, several: bool) -> str:
        """A place for the drawing, with what it shows in words."""
        name = f"<b>{escape(', '.join(self.runs))}:</b> " if several else ""
        notes = []
        if len(self.ids) < len(self.stats):
            notes.append(f"{len(self.ids)} of the {len(self.stats):,} clients are shown, drawn at random.")
        if self.stats.counts is not None:
            notes.append(
                "The stronger a cell, the larger its class's part of the client's samples; the strongest is "
                f"{100 * self.strongest:.3g} %."
            )
        return (
            f'<figure class="client-stats"><figcaption>{name}{escape(self.about)}</figcaption>'
            f'<div></div><p class="note">{escape(" ".join(notes))}</p></figure>'
        )


def parts(stats: ClientStats, ids: np.ndarray) -> np.ndarray:
    """(clients, classes): which part of a client's samples is of which class; no columns if labels are numbers."""
    if stats.counts is None:
        return np.zeros((len(ids), 0))
    return stats.counts[ids] / stats.sizes[ids, None]


# ---- the page -------------------------------------------------------------------------------------------------------


def pictures(runs: Iterable[tuple[str, ClientStats | None]]) -> list[Picture]:
    """One picture for all runs with the same stats; runs that do not say have none."""
    alike: dict[tuple, tuple[list[str], ClientStats]] = {}
    for name, h in runs:
        if h is not None:
            cells = None if h.counts is None else h.counts.tobytes()
            alike.setdefault((h.sizes.tobytes(), h.classes, cells), ([], h))[0].append(name)
    share, drawn = CELLS // max(1, len(alike)), []
    for names, h in alike.values():
        ids = h.some(min(ROWS, max(FEW, share // max(1, len(h.classes)))))
        drawn.append(Picture(names, h, ids, h.sentence()))
    return drawn


def section_html(shown: Sequence[Picture], several: bool) -> str:
    """The section 'Who holds what'; nothing if no run says."""
    if not shown:
        return ""
    figures = "".join(picture.html(several) for picture in shown)
    return f'<section aria-labelledby="client_stats"><h2 id="client_stats">Who holds what</h2>{figures}</section>'


# ---- the terminal ---------------------------------------------------------------------------------------------------


def rich_picture(stats: ClientStats, width: int) -> RenderableType:
    """A line per client, or, if there are many, quantiles and some of them."""
    many = len(stats) > LINES
    ids = stats.some(SOME if many else LINES)
    blocks: list[RenderableType] = [Text(stats.sentence()), Text()]
    if many:
        blocks += [_quantiles(stats), Text(), Text(f"{SOME} of them, drawn at random:"), Text()]
    return Group(*blocks, *_lines(stats, ids, width))


def _quantiles(stats: ClientStats) -> Table:
    table = plain_table()
    headings = {"smallest": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "largest": 100}
    table.add_column("a client has")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, values in (("samples", stats.sizes), ("classes", stats.classes_held)):
        if values is not None:
            table.add_row(name, *(f"{np.percentile(values, q):,.0f}" for q in headings.values()))
    return table


def _lines(stats: ClientStats, ids: np.ndarray, width: int) -> list[RenderableType]:
    """A line per client, and what the shades mean."""
    sizes = [f"{size:,}" for size in stats.sizes[ids].tolist()]
    names = [str(i) for i in ids.tolist()]
    beside = max(map(len, ["client", *names])) + max(map(len, ["samples", *sizes])) + BAR + 6
    shares = parts(stats, ids)
    cell, together = _fit(shares.shape[1], width - beside)
    shares = np.add.reduceat(shares, np.arange(0, shares.shape[1], together), axis=1) if together > 1 else shares
    table = plain_table()
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("", width=BAR, no_wrap=True)
    table.add_column(Text(_heading(stats.classes[::together], cell)), no_wrap=True, overflow="crop")
    strongest = float(shares.max(initial=0))
    levels = np.ceil(shares / (strongest or 1) * (len(SHADES) - 1)).astype(int)
    bars = np.ceil(BAR * stats.sizes[ids] / stats.sizes.max()).astype(int)
    for name, size, bar, line in zip(names, sizes, bars.tolist(), levels.tolist(), strict=True):
        cells = "".join((SHADES[level] * min(cell, 2)).ljust(cell) for level in line)
        table.add_row(name, size, Text("━" * bar, style="dim"), Text(cells))
    return [table, Text(), _legend(strongest, together)] if strongest else [table]


def _fit(classes: int, room: int) -> tuple[int, int]:
    """(characters of a cell, classes that share one), so that all cells fit."""
    for cell in (3, 2, 1):
        if cell * classes <= room:
            return cell, 1
    return 1, -(-classes // max(1, room))


def _heading(labels: Sequence[str], cell: int) -> str:
    """The classes' names, each over its cell, as many as there is room for."""
    text = ""
    for k, label in enumerate(labels):
        if not text or len(text) < k * cell:
            text = text.ljust(k * cell) + label
    return text


def _legend(strongest: float, together: int) -> Text:
    steps = len(SHADES) - 1
    shades = (f"{SHADES[k]} to {100 * strongest * k / steps:.3g}" for k in range(1, steps + 1))
    cell = f"; {together} classes in a cell" if together > 1 else ""
    return Text(f"{'  '.join(shades)} % of the client's samples{cell}", style="dim")
