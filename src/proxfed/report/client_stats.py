"""Client statistics: the number of samples per client and class, as counts, in words, and as pictures.

A cell of a picture is one client's samples of one class. On the page and in the terminal its colour is stronger the
larger its share of the client's samples, so that clients of different sizes compare; sizes are bars beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxfed.data.federated import Federated, class_counts
from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import InputError
from proxfed.keyed_random import generator
from proxfed.report.summary import plain_table

ROWS, CELLS = 200, 20_000
"""Maximum clients in a picture on the page, and maximum cells of all pictures together."""
FEW = 20
"""Minimum clients in a picture."""
LINES, SOME = 40, 20
"""In the terminal, up to LINES clients have a line each; of more, SOME are drawn."""
BAR = 10
SHADES = "·░▒▓█"


@dataclass(frozen=True, eq=False)
class ClientStats:
    """The clients' samples, counted."""

    sizes: np.ndarray
    """(n,) samples of each client."""
    counts: np.ndarray | None = None
    """(n, classes) samples of each client and class; None: labels are numbers."""
    classes: tuple[str, ...] = ()
    """The names of the classes."""
    checksum: int | None = None
    """Checksum of all samples, labels and weights; None: not known."""
    weights: np.ndarray | None = None
    """(n,) the total weight of each client's samples; None: all samples have the same weight."""

    @classmethod
    def of(cls, data: Federated) -> ClientStats:
        if isinstance(data, OnDemand):
            return cls(data.sizes)
        checksum, weights = 0, None
        features = data.features.arrays if isinstance(data.features, SparseRows) else (data.features,)
        for array in (*features, data.labels, data.sample_weights):
            checksum = checksum if array is None else crc32(np.ascontiguousarray(array).data, checksum)
        if data.sample_weights is not None:
            weights = data.weight_sums
        classes, cells = class_counts(data) or ((), None)
        return cls(data.sizes, cells, classes, checksum, weights)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> ClientStats:
        """The inverse of `table`; an error names `where` it was read from."""
        try:
            sizes, classes = np.array(table["sizes"], np.int64), tuple(map(str, table["classes"]))
            cells = None if table["counts"] is None else np.array(table["counts"], np.int64)
            weights = None if table.get("weights") is None else np.array(table["weights"], np.float64)
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(f"{where} is damaged: {e}") from e
        whole = sizes.ndim == 1 and len(sizes) > 0
        fits = cells is None or (cells.shape == (len(sizes), len(classes)) and (cells.sum(axis=1) == sizes).all())
        if not (whole and fits and (weights is None or weights.shape == sizes.shape)):
            raise InputError(f"{where} is damaged: its counts do not add up to its sizes")
        return cls(sizes, cells, classes, table.get("checksum"), weights)

    def table(self) -> dict[str, Any]:
        """As plain lists."""
        cells = None if self.counts is None else self.counts.tolist()
        table = {"sizes": self.sizes.tolist(), "classes": list(self.classes), "counts": cells}
        table |= {} if self.weights is None else {"weights": self.weights.tolist()}
        return table if self.checksum is None else table | {"checksum": self.checksum}

    def same(self, other: ClientStats) -> bool:
        """Whether these are the same samples, judged by the fields that both have."""
        mine, theirs = self.table(), other.table()
        return all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys())

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @property
    def classes_held(self) -> np.ndarray | None:
        """(n,) the number of classes of each client's samples."""
        return None if self.counts is None else (self.counts > 0).sum(axis=1)

    def sentence(self) -> str:
        """Number and balance of the samples, in words."""
        several = len(self) > 1
        text = f"{len(self):,} client{'s hold' if several else ' holds'} {int(self.sizes.sum()):,} samples"
        if several:
            text += f": {_spread(self.sizes, ' each')}"
        if self.classes_held is not None:
            text += f", from {_spread(self.classes_held)} of the {len(self.classes)} classes"
        return text + "."

    def some(self, most: int) -> np.ndarray:
        """At most so many clients, ascending: a fixed random subset, because neighbours may be similar."""
        if len(self) <= most:
            return np.arange(len(self))
        drawn = generator(0, "clients that are shown").permutation(len(self))[:most]
        return np.sort(drawn)


def _spread(values: np.ndarray, each: str = "") -> str:
    low, high, middle = int(values.min()), int(values.max()), f"{np.median(values):,.1f}".removesuffix(".0")
    return f"{low:,}{each}" if low == high else f"{low:,} to {high:,}{each} (median {middle})"


def parts(stats: ClientStats, ids: np.ndarray) -> np.ndarray:
    """(clients, classes): the share of each class in a client's samples; no columns if labels are numbers."""
    if stats.counts is None:
        return np.zeros((len(ids), 0))
    return stats.counts[ids] / stats.sizes[ids, None]


# ---- the page -------------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """Client statistics shared by one or several runs, and the clients shown."""

    runs: list[str]
    stats: ClientStats
    ids: np.ndarray
    about: str
    """Number and balance of the samples, in words."""

    @property
    def strongest(self) -> float:
        """The largest share of a class in a shown client's samples."""
        return float(parts(self.stats, self.ids).max(initial=0))

    def data(self) -> dict[str, Any]:
        """The data for the page's script."""
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
        """A placeholder for the drawing, with a description in words."""
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


def pictures(runs: Iterable[tuple[str, ClientStats | None]]) -> list[Picture]:
    """One picture for all runs with the same statistics; runs without statistics have none."""
    alike: dict[tuple[Any, ...], tuple[list[str], ClientStats]] = {}
    for name, h in runs:
        if h is not None:
            cells = None if h.counts is None else h.counts.tobytes()
            alike.setdefault((h.sizes.tobytes(), h.classes, cells), ([], h))[0].append(name)
    share, drawn = CELLS // max(1, len(alike)), []
    for names, h in alike.values():
        ids = h.some(min(ROWS, max(FEW, share // max(1, len(h.classes)))))
        drawn.append(Picture(names, h, ids, h.sentence()))
    return drawn


def section(runs: Iterable[tuple[str, ClientStats | None]], several: bool) -> tuple[str, list[dict[str, Any]]]:
    """The section 'Who holds what' and its data for the page's script; empty without statistics."""
    shown = pictures(runs)
    figures = "".join(picture.html(several) for picture in shown)
    html = f'<section aria-labelledby="client_stats"><h2 id="client_stats">Who holds what</h2>{figures}</section>'
    return html if shown else "", [picture.data() for picture in shown]


# ---- the terminal ---------------------------------------------------------------------------------------------------


def rich_picture(stats: ClientStats, width: int) -> RenderableType:
    """A line per client, or, if there are many, quantiles and a subset of the clients."""
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
    """A line per client, and a legend of the shades."""
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
    """(characters per cell, classes per cell), so that all cells fit."""
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
