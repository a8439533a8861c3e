"""Parts of pictures that are written as SVG into a page: words, a frame with its axes, the picture itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol


class Axis(Protocol):
    """From values to places on the page."""

    @property
    def ticks(self) -> Sequence[Any]:
        """The values that are written beside it."""

    def __call__(self, value: Any) -> float:
        """The place of a value."""


class Frame(NamedTuple):
    """The size of a picture, and the room around its axes."""

    wide: float
    high: float
    left: float
    right: float
    above: float
    below: float

    @property
    def bottom(self) -> float:
        """Where the axis below lies."""
        return self.high - self.below

    @property
    def end(self) -> float:
        """Where this axis ends."""
        return self.wide - self.right

    def axes(self, x: Axis, y: Axis, across: str, up: str) -> str:
        """Both axes with their ticks and names."""
        drawn = [f'<path class="axis" fill="none" d="M{self.left},{self.above}V{self.bottom}H{self.end}"/>']
        for tick in x.ticks:
            place = f'x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{self.bottom}" y2="{self.bottom + 4}"'
            drawn += [f'<line class="axis" {place}/>', words(x(tick), self.bottom + 17, written(tick), "middle")]
        for tick in y.ticks:
            place = f'x1="{self.left}" x2="{self.end}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
            drawn += [f'<line class="grid" {place}/>', words(self.left - 6, y(tick) + 4, written(tick), "end")]
        drawn.append(words((self.left + self.wide) / 2, self.high - 8, across, "middle"))
        drawn.append(words(self.left, self.above - 4, up, "start"))
        return "".join(drawn)

    def svg(self, about: str, inside: Iterable[str]) -> str:
        """The picture."""
        return svg(self.wide, self.high, about, inside)


def svg(wide: float, high: float, about: str, inside: Iterable[str]) -> str:
    """A picture of this size, which shrinks with the page; `about` is read out in its place."""
    size = f'viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" height="{high:.0f}"'
    style = 'style="max-width:100%;height:auto"'
    return f'<svg {size} {style} role="img" aria-label="{escape(about)}">{"".join(inside)}</svg>'


def words(x: float, y: float, text: str, anchor: str) -> str:
    """Text at a place: it begins, ends or has its middle there ('start', 'end', 'middle')."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def hover(text: str) -> str:
    """What is shown when the pointer is on the shape that this stands in."""
    return f"<title>{escape(text)}</title>"


def points(places: Iterable[tuple[float, float]]) -> str:
    """The corners of a line."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def written(value: Any) -> str:
    """A value beside an axis."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
