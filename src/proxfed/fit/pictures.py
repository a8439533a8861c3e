"""The pictures of a fit, as SVG inside the page: path, curve, coefficients, organisations, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from proxfed.fit.judge import Measured
from proxfed.fit.metrics import Bin, NetBenefit
from proxfed.report.svg import Frame, hover, points, svg, words

FRAME = Frame(520, 300, left=64, right=14, above=16, below=44)
SQUARE = FRAME._replace(wide=340, high=340)
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
        """Powers of ten, or multiples of 1, 2 or 5 times one."""
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
    x, y = _weights_axis(weights), _axis_of(coefficients.ravel(), FRAME.bottom, FRAME.above)
    last = np.argsort(-np.abs(coefficients[-1]))
    named = {int(j): k for k, j in enumerate(last[:8]) if coefficients[-1, j]}
    drawn = [FRAME.axes(x, y, "weight of the penalty", "coefficient (standardised)"), _marker(x, chosen)]
    for j in last[::-1].tolist():
        line = points((x(w), y(c)) for w, c in zip(weights, coefficients[:, j], strict=True))
        colour = f"var(--c{named[j]})" if j in named else "var(--hair)"
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6">{hover(names[j])}</polyline>'
        )
    legend = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(names[j])}</span>' for j, k in named.items())
    return FRAME.svg("coefficients over the weight", drawn) + f'<p class="key">{legend}</p>'


def curve(weights: Sequence[float], mean: Sequence[float], error: Sequence[float], chosen: float, best: float) -> str:
    """The held-out loss over the weight, with its standard error."""
    low, high = np.subtract(mean, error), np.add(mean, error)
    x, y = _weights_axis(weights), _axis_of(np.concatenate([low, high]), FRAME.bottom, FRAME.above)
    drawn = [FRAME.axes(x, y, "weight of the penalty", "held-out loss"), _marker(x, chosen), _marker(x, best, "2 4")]
    for w, m, a, b in zip(weights, mean, low, high, strict=True):
        drawn.append(f'<line x1="{x(w):.1f}" x2="{x(w):.1f}" y1="{y(a):.1f}" y2="{y(b):.1f}" stroke="var(--c6)"/>')
        drawn.append(
            f'<circle cx="{x(w):.1f}" cy="{y(m):.1f}" r="3" fill="var(--c1)">{hover(f"{w:.4g}: {m:.4f}")}</circle>'
        )
    return FRAME.svg("held-out loss over the weight", drawn)


def bars(names: Sequence[str], values: Sequence[float], title: str) -> str:
    """A bar for each coefficient, from zero to the left or right."""
    left = 16 + 7.2 * max(map(len, names), default=1)
    wide, tall = left + 360, 30 + LINE * len(names)
    x = _axis_of(np.append(values, 0.0), left, wide - 70)
    drawn = [
        f'<line class="axis" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="22" y2="{tall - 6}"/>',
        words(left, 14, title, "start"),
    ]
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        y, a, b = 26 + LINE * k, *sorted((x(0), x(value)))
        colour = "var(--plus)" if value > 0 else "var(--minus)"
        drawn.append(words(left - 8, y + 13, name, "end"))
        drawn.append(
            f'<rect x="{a:.1f}" y="{y}" width="{max(b - a, 0.5):.1f}" height="{LINE - 6}" rx="2" fill="{colour}"/>'
        )
        drawn.append(words(b + 5, y + 13, f"{value:.4g}", "start"))
    return svg(wide, tall, title, drawn)


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
        drawn.append(words(x(tick), tall - 24, f"{tick:.4g}", "middle"))
    drawn.append(words((left + wide) / 2, tall - 6, measure, "middle"))
    for i, name in enumerate(names):
        top = 14 + step * i
        drawn.append(words(left - 8, top + step / 2, name, "end"))
        for k, (label, values) in enumerate(series):
            m, y = values.get(name), top + 8 + 12 * k
            if m is None or m.value != m.value:
                continue
            if m.low == m.low:
                ends = f'x1="{x(m.low):.1f}" x2="{x(m.high):.1f}" y1="{y}" y2="{y}"'
                drawn.append(f'<line {ends} stroke="var(--c{k})" stroke-width="2"/>')
            said = hover(f"{name}, {label}: {m.value:.3f} ({m.low:.3f} to {m.high:.3f})")
            drawn.append(f'<circle cx="{x(m.value):.1f}" cy="{y}" r="4" fill="var(--c{k})">{said}</circle>')
    key = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(s.label)}</span>' for k, s in enumerate(series))
    return f'<p class="key">{key}</p>' + svg(wide, tall, f"{measure} by organisation", drawn)


def calibration(bins: Sequence[Bin], positive: str, level: float = 0.95) -> str:
    """Predicted probabilities against what was observed, with intervals; on the diagonal they are right."""
    x, y = Axis(0, 1, SQUARE.left, SQUARE.end), Axis(0, 1, SQUARE.bottom, SQUARE.above)
    drawn = [SQUARE.axes(x, y, f"predicted probability of {positive}", "observed")]
    drawn.append(
        f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" class="axis" stroke-dasharray="4 4"/>'
    )
    drawn.append(
        f'<polyline points="{points((x(b.predicted), y(b.observed)) for b in bins)}" fill="none" '
        'stroke="var(--c0)" stroke-width="1.5"/>'
    )
    for b in bins:
        low, high = b.interval(level)
        said = hover(
            f"{b.samples} rows: {b.predicted:.3f} predicted, {b.observed:.3f} observed ({low:.3f} to {high:.3f})"
        )
        ends = f'x1="{x(b.predicted):.1f}" x2="{x(b.predicted):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"'
        drawn.append(f'<line {ends} stroke="var(--c0)"/>')
        drawn.append(
            f'<circle cx="{x(b.predicted):.1f}" cy="{y(b.observed):.1f}" r="4" fill="var(--c0)">{said}</circle>'
        )
    return SQUARE.svg("calibration", drawn)


def decisions(curve: Sequence[NetBenefit]) -> str:
    """The net benefit of the model, of acting on all and of acting on none, over the threshold."""
    lowest = min(-0.05, min(d.model for d in curve))
    highest = max(max(d.model, d.everybody) for d in curve)
    x = Axis(curve[0].threshold, curve[-1].threshold, FRAME.left, FRAME.end)
    y = Axis(lowest, max(highest, 0.05), FRAME.bottom, FRAME.above)
    drawn = [FRAME.axes(x, y, "act from a probability of", "net benefit")]
    lines = {"the model": [d.model for d in curve], "all": [d.everybody for d in curve], "none": [0.0] * len(curve)}
    for k, values in enumerate(lines.values()):
        shown = [(x(d.threshold), y(v)) for d, v in zip(curve, values, strict=True) if v >= lowest]
        line = f'stroke="var(--c{k})" stroke-width="{2 if k == 0 else 1.2}"'
        drawn.append(f'<polyline points="{points(shown)}" fill="none" {line}/>')
    key = "".join(f'<span><i style="background:var(--c{k})"></i>{escape(name)}</span>' for k, name in enumerate(lines))
    return FRAME.svg("net benefit over the threshold", drawn) + f'<p class="key">{key}</p>'


# ---- parts ----------------------------------------------------------------------------------------------------------


def _weights_axis(weights: Sequence[float]) -> Axis:
    """Falling to the right; in logarithms, but for a weight of 0."""
    low, high = min(weights), max(weights)
    return Axis(low, high, FRAME.end - 6, FRAME.left + 6, log=low > 0)


def _axis_of(values: np.ndarray, start: float, end: float) -> Axis:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.05 * (high - low)
    return Axis(low - room, high + room, start, end)


def _marker(x: Axis, weight: float, dashes: str = "") -> str:
    place = f'x1="{x(weight):.1f}" x2="{x(weight):.1f}" y1="{FRAME.above}" y2="{FRAME.bottom}"'
    return f'<line {place} stroke="var(--accent)" stroke-dasharray="{dashes}"/>'
