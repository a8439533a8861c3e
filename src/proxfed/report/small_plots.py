"""Small SVG pictures inside a page: lines over the values of one setting, and heat maps over two settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from proxfed.errors import finite, real
from proxfed.report.columns import show
from proxfed.report.svg import Axis, Frame, dot, hover, svg, through, words, written

FRAME = Frame(400, 250, left=66, right=12, above=14, below=44)
CELL_WIDE, CELL_HIGH = 84, 30


class Point(NamedTuple):
    """A value of a setting, and its measurement."""

    x: Any
    y: float | None
    """None: it diverged."""
    mark: str = ""
    """'best', 'close' to it, or empty."""
    says: str = ""
    """Shown when the pointer is on it."""


def scatter(lines: Sequence[Sequence[Point]], x: str, y: str) -> str:
    """Lines of points from left to right, later lines stronger; diverged points are crosses at the bottom."""
    every = [p for points in lines for p in points]
    across = _axis([p.x for p in every], FRAME.left, FRAME.end)
    up = _axis([p.y for p in every if finite(p.y)] or [0.0], FRAME.bottom, FRAME.above)
    drawn = [FRAME.axes(across, up, x, y)]
    for k, points in enumerate(lines):
        placed = sorted((across(p.x), up(p.y), p) for p in points if finite(p.y))
        drawn.append(through(((a, b) for a, b, _ in placed), "var(--c6)", stroke_opacity=f"{(k + 1) / len(lines):.2f}"))
        for a, b, p in placed:
            colour, size = {"best": ("var(--c1)", 6), "close": ("var(--c0)", 5)}.get(p.mark, ("var(--c6)", 3))
            drawn.append(dot(a, b, size, colour, p.says))
        for p in (p for p in points if not finite(p.y)):
            cross = f"M{across(p.x) - 4:.1f},{FRAME.bottom - 9}l8,8m-8,0l8,-8"
            drawn.append(f'<path d="{cross}" stroke="var(--bad)" stroke-width="2">{hover(p.says)}</path>')
    return FRAME.svg(f"{y} over {x}", drawn)


def heat_map(
    cells: Mapping[tuple[Any, Any], float | None], rows: Sequence[Any], columns: Sequence[Any], row: str, column: str,
    kind: str, higher: bool,
) -> str:  # fmt: skip
    """A cell with its number per pair of values; better ranks are darker."""
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


def _axis(values: Sequence[Any], start: float, end: float) -> Axis:
    """An axis of these values, logarithmic if they span a large range."""
    numbers = [float(v) for v in values] if all(map(real, values)) else [1.0]
    return Axis(values, start, end, log=min(numbers) > 0 and max(numbers) / min(numbers) > 20, room=0.04, few=True)
