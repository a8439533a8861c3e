"""SVG elements for pictures inside a page: axes, a frame, dots, lines, words, and the picture itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from proxfed.errors import real


class Axis:
    """Maps values to positions: linear, logarithmic, or one position per word. Ticks are round numbers."""

    def __init__(
        self, values: Iterable[Any], start: float, end: float, log: bool = False, room: float = 0.0, few: bool = False
    ) -> None:
        """Of these values; `room`: the margin at both ends as a share of their range; `few`: ticks are the values
        themselves if there are at most five."""
        values = list(values)
        self.words = [] if all(map(real, values)) else list(dict.fromkeys(map(str, values)))
        numbers = [float(v) for v in values] if not self.words else [0.0, float(len(self.words) - 1)]
        low, high, self.log = min(numbers), max(numbers), log
        if not high > low:
            low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
        low, high = (math.log10(low), math.log10(high)) if log else (low, high)
        room *= high - low
        self.low, self.high, self.start, self.end = low - room, high + room, start, end
        self.few = sorted({*numbers}) if few and len({*numbers}) <= 5 else []

    def __call__(self, value: Any) -> float:
        """The position of a value."""
        at = self.words.index(str(value)) if self.words else math.log10(value) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> Sequence[Any]:
        """The tick labels: words, powers of ten, or about five multiples of 1, 2 or 5 times a power of ten."""
        if self.words or self.few:
            return self.words or self.few
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            tens = [10.0**k for k in range(first, last + 1, max(1, (last - first + 4) // 5))]
            return tens if len(tens) > 1 else [10**self.low, 10**self.high]
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


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
        """The position of the lower axis."""
        return self.high - self.below

    @property
    def end(self) -> float:
        """The end of the horizontal axis."""
        return self.wide - self.right

    def axes(self, x: Axis, y: Axis, across: str, up: str) -> str:
        """Both axes with their ticks and names."""
        drawn = [f'<path class="axis" fill="none" d="M{self.left},{self.above}V{self.bottom}H{self.end}"/>']
        for tick in x.ticks:
            at = x(tick)
            drawn += [
                line((at, self.bottom, at, self.bottom + 4), kind="axis"),
                words(at, self.bottom + 17, written(tick), "middle"),
            ]
        for tick in y.ticks:
            at = y(tick)
            drawn += [
                line((self.left, at, self.end, at), kind="grid"),
                words(self.left - 6, at + 4, written(tick), "end"),
            ]
        drawn.append(words((self.left + self.wide) / 2, self.high - 8, across, "middle"))
        drawn.append(words(self.left, self.above - 4, up, "start"))
        return "".join(drawn)

    def svg(self, about: str, inside: Iterable[str]) -> str:
        """The picture."""
        return svg(self.wide, self.high, about, inside)


def svg(wide: float, high: float, about: str, inside: Iterable[str]) -> str:
    """A picture of this size, which shrinks with the page; `about` is its text for screen readers."""
    size = f'viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" height="{high:.0f}"'
    style = 'style="max-width:100%;height:auto"'
    return f'<svg {size} {style} role="img" aria-label="{escape(about)}">{"".join(inside)}</svg>'


def words(x: float, y: float, text: str, anchor: str) -> str:
    """Text that begins, ends or is centred at a position ('start', 'end', 'middle')."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def hover(text: str) -> str:
    """The tooltip of the enclosing shape."""
    return f"<title>{escape(text)}</title>"


def dot(x: float, y: float, size: float, colour: str, says: str = "") -> str:
    """A filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}">{hover(says)}</circle>'


def line(ends: tuple[float, float, float, float], **how: Any) -> str:
    """From (x1, y1) to (x2, y2), with these attributes: `stroke_width` is stroke-width, `kind` the class."""
    x1, y1, x2, y2 = ends
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"{_attributes(how)}/>'


def through(places: Iterable[tuple[float, float]], colour: str, says: str = "", **how: Any) -> str:
    """A line through these positions."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    said = hover(says) if says else ""
    return f'<polyline points="{corners}" fill="none" stroke="{colour}"{_attributes(how)}>{said}</polyline>'


def key(names: Iterable[tuple[str, int]]) -> str:
    """The legend of the colours: (name, number of the colour)."""
    shown = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(name)}</span>' for name, k in names)
    return f'<p class="key">{shown}</p>'


def _attributes(how: Mapping[str, Any]) -> str:
    named = {"class" if k == "kind" else k.replace("_", "-"): v for k, v in how.items()}
    return "".join(f' {k}="{v}"' for k, v in named.items())


def written(value: Any) -> str:
    """A value beside an axis."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
