"""A drawing of the partition, as an SVG file: per client and class a circle whose area is the number of samples."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape

import numpy as np

from proxfed.report.client_stats import ClientStats

ROWS = 200
"""The maximum number of clients drawn."""
STEP = 18
"""Pixels from one client, or class, to the next."""
LEFT, RIGHT = 64, 240
"""Room for the clients' numbers, and for their sizes."""
LETTER = 6.6
"""Approximate width of a letter in pixels."""


def circles_svg(stats: ClientStats) -> str:
    """The whole file."""
    ids = stats.some(ROWS)
    across = STEP * len(stats.classes)
    width = max(420, LEFT + across + RIGHT)
    about = stats.sentence()
    if stats.counts is not None:
        about += f" A circle's area is a number of samples, the largest {stats.counts[ids].max():,}."
    if len(ids) < len(stats):
        about += f" {len(ids)} of the clients are shown, drawn at random."
    lines = textwrap.wrap(about, int((width - 2 * STEP) / LETTER))
    top = 20 * len(lines) + 2 * STEP + 16
    height = top + STEP * len(ids) + STEP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#5b6675"><title>{escape(about)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_text(STEP, 24 + 20 * k, line, "start", "#1c2430") for k, line in enumerate(lines)),
        *_headings(stats, top - STEP // 2),
        *_clients(stats, ids, top),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    fill = f' fill="{colour}"' if colour else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{fill}>{escape(text)}</text>'


def _headings(stats: ClientStats, y: int) -> Iterator[str]:
    yield _text(LEFT - 12, y, "client", "end")
    widest = max((len(label) for label in stats.classes), default=0)
    every = int(np.ceil((widest + 1) * LETTER / STEP))
    for k in range(0, len(stats.classes), max(1, every)):
        yield _text(LEFT + STEP * (k + 0.5), y, stats.classes[k], "middle")
    yield _text(LEFT + STEP * len(stats.classes) + 12, y, "samples", "start")


def _clients(stats: ClientStats, ids: np.ndarray, top: int) -> Iterator[str]:
    bars = LEFT + STEP * len(stats.classes) + 12
    longest = RIGHT - 90
    largest = 1 if stats.counts is None else int(stats.counts[ids].max())
    for row, i in enumerate(ids.tolist()):
        y, size = top + STEP * (row + 0.5), int(stats.sizes[i])
        length = longest * size / int(stats.sizes.max())
        yield _text(LEFT - 12, y + 4, str(i), "end")
        yield f'<path d="M{LEFT} {y:g}H{bars - 12}" stroke="#eceef0"/>'
        for k, count in enumerate([] if stats.counts is None else stats.counts[i].tolist()):
            if count:
                r = max(0.8, (STEP / 2 - 0.5) * np.sqrt(count / largest))  # a single sample stays visible
                yield f'<circle cx="{LEFT + STEP * (k + 0.5):g}" cy="{y:g}" r="{r:.2f}" fill="#0072b2"/>'
        yield f'<rect x="{bars}" y="{y - 4:g}" width="{length:.1f}" height="8" fill="#c9d3dc"/>'
        yield _text(bars + length + 6, y + 4, f"{size:,}", "start")
