"""Small pictures as SVG inside a page: lines over the values of a setting, and a heat map over those of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from proxfed.errors import finite, real
from proxfed.report.columns import show
from proxfed.report.svg import Frame, hover, points, svg, words, written

FRAME = Frame(400, 250, left=66, right=12, above=14, below=44)
CELL_WIDE, CELL_HIGH = 84, 30


class Point(NamedTuple):
    """A value of a setting, and what was measured with it."""

    x: Any
    y: float | None
    """None: it diverged."""
    mark: str = ""
    """'best', or 'close' to it, or nothing."""
    says: str = ""
    """Shown when the pointer is on it."""


def scatter(lines: Sequence[Sequence[Point]], x: str, y: str) -> str:
    """Lines of points from left to right, the later ones stronger; points that diverged are crosses at the bottom."""
    every = [p for line in lines for p in line]
    across = _Axis([p.x for p in every], FRAME.left, FRAME.end)
    up = _Axis([p.y for p in every if finite(p.y)] or [0.0], FRAME.bottom, FRAME.above)
    drawn = [FRAME.axes(across, up, x, y)]
    for k, line in enumerate(lines):
        placed = sorted((across(p.x), up(p.y), p) for p in line if finite(p.y))
        path, strength = points((a, b) for a, b, _ in placed), (k + 1) / len(lines)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="var(--c6)" stroke-opacity="{strength:.2f}"/>')
        for a, b, p in placed:
            colour, size = {"best": ("var(--c1)", 6), "close": ("var(--c0)", 5)}.get(p.mark, ("var(--c6)", 3))
            drawn.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size}" fill="{colour}">{hover(p.says)}</circle>')
        for p in (p for p in line if not finite(p.y)):
            cross = f"M{across(p.x) - 4:.1f},{FRAME.bottom - 9}l8,8m-8,0l8,-8"
            drawn.append(f'<path d="{cross}" stroke="var(--bad)" stroke-width="2">{hover(p.says)}</path>')
    return FRAME.svg(f"{y} over {x}", drawn)


def heat_map(
    cells: Mapping[tuple[Any, Any], float | None], rows: Sequence[Any], columns: Sequence[Any], row: str, column: str,
    kind: str, higher: bool,
) -> str:  # fmt: skip
    """A cell for each pair of values, the darker the better by its rank among all; its number stands in it."""
    order = sorted({v for v in cells.values() if v is not None and finite(v)})
    left = 24 + 7 * max(len(written(value)) for value in rows)
    wide, tall = left + CELL_WIDE * len(columns) + 8, 48 + CELL_HIGH * len(rows)
    drawn = [f'<text x="{left}" y="14">{escape(column)} →  {escape(row)} ↓</text>']
    for k, value in enumerate(columns):
        drawn.append(words(left + CELL_WIDE * (k + 0.5), 34, written(value), "middle"))
    for i, one in enumerate(rows):
        y = 42 + CELL_HIGH * i
        drawn.append(words(left - 8, y + 20, written(one), "end"))
        for k, two in enumerate(columns):
            value = cells.get((one, two))
            share = order.index(value) / max(1, len(order) - 1) if value in order else 0.0
            opacity = 0.1 + 0.8 * (share if higher else 1 - share) if finite(value) else 0.0
            text = show(value, kind) if finite(value) else "diverged" if (one, two) in cells else ""
            ink = ' style="fill:#fff"' if opacity > 0.55 else ""
            x, middle = left + CELL_WIDE * k, left + CELL_WIDE * (k + 0.5)
            drawn.append(
                f'<rect x="{x}" y="{y}" width="{CELL_WIDE - 2}" height="{CELL_HIGH - 2}" rx="3" '
                f'fill="#0b63a5" fill-opacity="{opacity:.3f}" stroke="var(--hair)"/>'
                f'<text x="{middle:.1f}" y="{y + 19}" text-anchor="middle"{ink}>{escape(text)}</text>'
            )
    return svg(wide, tall, f"over {row} and {column}", drawn)


class _Axis:
    """From values to places: evenly, in logarithms where they span much, or one place for each word."""

    def __init__(self, values: Sequence[Any], start: float, end: float) -> None:
        self.start, self.end = start, end
        self.words: list[Any] = [] if all(map(real, values)) else list(dict.fromkeys(map(str, values)))
        numbers = [float(v) for v in values] if not self.words else [0.0, float(len(self.words) - 1)]
        self.low, self.high = min(numbers), max(numbers)
        self.log = not self.words and self.low > 0 and self.high / self.low > 20
        self.ticks: list[Any] = self.words or self._ticks(numbers)

    def __call__(self, value: Any) -> float:
        if self.words:
            value = self.words.index(str(value))
        share = (self._at(value) - self._at(self.low)) / ((self._at(self.high) - self._at(self.low)) or 1.0)
        share = 0.04 + 0.92 * (share if self.high > self.low else 0.5)
        return self.start + share * (self.end - self.start)

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else float(value)

    def _ticks(self, numbers: Sequence[float]) -> list[float]:
        """At most five."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, (last - first + 4) // 5)
            return [10.0**k for k in range(first, last + 1, step)] or [self.low, self.high]
        few = sorted({*numbers})
        return few if len(few) <= 5 else [self.low + k * (self.high - self.low) / 4 for k in range(5)]
