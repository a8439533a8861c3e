"""The pictures of a fit, as SVG inside the page: path, curve, coefficients, organisations, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from proxfed.fit.judge import Measured
from proxfed.fit.measures import Bin

WIDE, HIGH, LEFT, RIGHT, ABOVE, BELOW = 520, 300, 64, 14, 16, 44
LINE = 22
"""Height of a line of text in a list."""


class Axis:
    """From numbers to places on the page, evenly or in logarithms, with about five round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        if not high > low:
            low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
        self.log, self.start, self.end = log, start, end
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            tens = [10.0**k for k in range(first, last + 1)]
            return tens if len(tens) > 1 else [10**self.low, 10**self.high]
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def path(weights: Sequence[float], coefficients: np.ndarray, names: Sequence[str], chosen: float) -> str:
    """Every coefficient (k, p) over the weight, which falls to the right; the largest at the end have their names."""
    x, y = _weights_axis(weights), _axis_of(coefficients.ravel(), HIGH - BELOW, ABOVE)
    last = np.argsort(-np.abs(coefficients[-1]))
    named = {int(j): k for k, j in enumerate(last[:8]) if coefficients[-1, j]}
    drawn = [_frame(x, y, "weight of the penalty", "coefficient (standardised)"), _marker(x, chosen)]
    for j in last[::-1].tolist():
        line = _line([x(w) for w in weights], [y(c) for c in coefficients[:, j]])
        colour = f"var(--c{named[j]})" if j in named else "var(--hair)"
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6">{_says(names[j])}</polyline>'
        )
    legend = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(names[j])}</span>' for j, k in named.items())
    return _svg(WIDE, HIGH, "coefficients over the weight", "".join(drawn)) + f'<p class="key">{legend}</p>'


def curve(weights: Sequence[float], mean: Sequence[float], error: Sequence[float], chosen: float, best: float) -> str:
    """The held-out loss over the weight, with its standard error."""
    low, high = np.subtract(mean, error), np.add(mean, error)
    x, y = _weights_axis(weights), _axis_of(np.concatenate([low, high]), HIGH - BELOW, ABOVE)
    drawn = [_frame(x, y, "weight of the penalty", "held-out loss"), _marker(x, chosen), _marker(x, best, "2 4")]
    for w, m, a, b in zip(weights, mean, low, high, strict=True):
        drawn.append(f'<line x1="{x(w):.1f}" x2="{x(w):.1f}" y1="{y(a):.1f}" y2="{y(b):.1f}" stroke="var(--c6)"/>')
        drawn.append(
            f'<circle cx="{x(w):.1f}" cy="{y(m):.1f}" r="3" fill="var(--c1)">{_says(f"{w:.4g}: {m:.4f}")}</circle>'
        )
    return _svg(WIDE, HIGH, "held-out loss over the weight", "".join(drawn))


def bars(names: Sequence[str], values: Sequence[float], title: str) -> str:
    """A bar for each coefficient, from zero to the left or right."""
    left = 16 + 7.2 * max(map(len, names), default=1)
    wide, tall = left + 360, 30 + LINE * len(names)
    x = _axis_of(np.append(values, 0.0), left, wide - 70)
    drawn = [
        f'<line class="axis" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="22" y2="{tall - 6}"/>',
        _text(left, 14, title, "start"),
    ]
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        y, a, b = 26 + LINE * k, *sorted((x(0), x(value)))
        colour = "var(--plus)" if value > 0 else "var(--minus)"
        drawn.append(_text(left - 8, y + 13, name, "end"))
        drawn.append(
            f'<rect x="{a:.1f}" y="{y}" width="{max(b - a, 0.5):.1f}" height="{LINE - 6}" rx="2" fill="{colour}"/>'
        )
        drawn.append(_text(b + 5, y + 13, f"{value:.4g}", "start"))
    return _svg(wide, tall, title, "".join(drawn))


class Lines(NamedTuple):
    """A series of a forest plot."""

    label: str
    values: dict[str, Measured]


def forest(names: Sequence[str], series: Sequence[Lines], measure: str) -> str:
    """A measure of each organisation with its interval, for each series."""
    left = 20 + 7.2 * max(map(len, names))
    step = 12 * len(series) + 10
    wide, tall = left + 440, 52 + step * len(names)
    numbers = [v for s in series for m in s.values.values() for v in m if v == v]
    x = _axis_of(np.array(numbers or [0.0, 1.0]), left, wide - 20)
    drawn = []
    for tick in x.ticks:
        drawn.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="10" y2="{tall - 40}"/>')
        drawn.append(_text(x(tick), tall - 24, f"{tick:.4g}", "middle"))
    drawn.append(_text((left + wide) / 2, tall - 6, measure, "middle"))
    for i, name in enumerate(names):
        top = 14 + step * i
        drawn.append(_text(left - 8, top + step / 2, name, "end"))
        for k, (label, values) in enumerate(series):
            m, y = values.get(name), top + 8 + 12 * k
            if m is None or m.value != m.value:
                continue
            if m.low == m.low:
                ends = f'x1="{x(m.low):.1f}" x2="{x(m.high):.1f}" y1="{y}" y2="{y}"'
                drawn.append(f'<line {ends} stroke="var(--c{k})" stroke-width="2"/>')
            said = _says(f"{name}, {label}: {m.value:.3f} ({m.low:.3f} to {m.high:.3f})")
            drawn.append(f'<circle cx="{x(m.value):.1f}" cy="{y}" r="4" fill="var(--c{k})">{said}</circle>')
    key = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(s.label)}</span>' for k, s in enumerate(series))
    return f'<p class="key">{key}</p>' + _svg(wide, tall, f"{measure} by organisation", "".join(drawn))


def calibration(bins: Sequence[Bin], positive: str) -> str:
    """Predicted probabilities against what was observed; on the diagonal they are right."""
    side = 340
    x, y = Axis(0, 1, LEFT, side - RIGHT), Axis(0, 1, side - BELOW, ABOVE)
    drawn = [_frame(x, y, f"predicted probability of {positive}", "observed", side, side)]
    drawn.append(
        f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" class="axis" stroke-dasharray="4 4"/>'
    )
    drawn.append(
        f'<polyline points="{_line([x(b.predicted) for b in bins], [y(b.observed) for b in bins])}" fill="none" '
        'stroke="var(--c0)" stroke-width="1.5"/>'
    )
    for b in bins:
        said = _says(f"{b.samples} rows: {b.predicted:.3f} predicted, {b.observed:.3f} observed")
        drawn.append(
            f'<circle cx="{x(b.predicted):.1f}" cy="{y(b.observed):.1f}" r="4" fill="var(--c0)">{said}</circle>'
        )
    return _svg(side, side, "calibration", "".join(drawn))


# ---- parts ----------------------------------------------------------------------------------------------------------


def _weights_axis(weights: Sequence[float]) -> Axis:
    """Falling to the right; in logarithms, but for a weight of 0."""
    low, high = min(weights), max(weights)
    return Axis(low, high, WIDE - RIGHT - 6, LEFT + 6, log=low > 0)


def _axis_of(values: np.ndarray, start: float, end: float) -> Axis:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.05 * (high - low)
    return Axis(low - room, high + room, start, end)


def _frame(x: Axis, y: Axis, across: str, up: str, wide: float = WIDE, tall: float = HIGH) -> str:
    bottom = tall - BELOW
    drawn = [f'<path class="axis" fill="none" d="M{LEFT},{ABOVE}V{bottom}H{wide - RIGHT}"/>']
    for tick in x.ticks:
        drawn.append(_text(x(tick), bottom + 17, f"{tick:.4g}", "middle"))
    for tick in y.ticks:
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{wide - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        drawn.append(_text(LEFT - 6, y(tick) + 4, f"{tick:.4g}", "end"))
    drawn += [_text((LEFT + wide) / 2, tall - 8, across, "middle"), _text(LEFT, ABOVE - 4, up, "start")]
    return "".join(drawn)


def _marker(x: Axis, weight: float, dashes: str = "") -> str:
    place = f'x1="{x(weight):.1f}" x2="{x(weight):.1f}" y1="{ABOVE}" y2="{HIGH - BELOW}"'
    return f'<line {place} stroke="var(--accent)" stroke-dasharray="{dashes}"/>'


def _line(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _says(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(wide: float, tall: float, says: str, inside: str) -> str:
    size = (
        f'viewBox="0 0 {wide:.0f} {tall:.0f}" width="{wide:.0f}" height="{tall:.0f}" style="max-width:100%;height:auto"'
    )
    return f'<svg {size} role="img" aria-label="{escape(says)}">{inside}</svg>'
