"""The pictures of a fit, as SVG inside the page: path, curve, coefficients, organisations, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from proxfed.fit.judge import Measured
from proxfed.fit.metrics import Bin, NetBenefit
from proxfed.report.svg import Axis, Frame, dot, key, line, svg, through, words

FRAME = Frame(520, 300, left=64, right=14, above=16, below=44)
SQUARE = FRAME._replace(wide=340, high=340)
LINE = 22
"""Height of a line of text in a list."""


def path(weights: Sequence[float], coefficients: np.ndarray, names: Sequence[str], chosen: float) -> str:
    """Every coefficient (k, p) over the weight, which falls to the right; the largest at the end have their names."""
    x, y = _weights_axis(weights), Axis(coefficients.flat, FRAME.bottom, FRAME.above, room=0.05)
    last = np.argsort(-np.abs(coefficients[-1]))
    named = {int(j): k for k, j in enumerate(last[:8]) if coefficients[-1, j]}
    drawn = [FRAME.axes(x, y, "weight of the penalty", "coefficient (prepared scale)"), _marker(x, chosen)]
    for j in last[::-1].tolist():
        places = [(x(w), y(c)) for w, c in zip(weights, coefficients[:, j], strict=True)]
        drawn.append(
            through(places, f"var(--c{named[j]})" if j in named else "var(--hair)", names[j], stroke_width=1.6)
        )
    legend = key((names[j], k) for j, k in named.items())
    return FRAME.svg("coefficients over the weight", drawn) + legend


def curve(weights: Sequence[float], mean: Sequence[float], error: Sequence[float], chosen: float, best: float) -> str:
    """The held-out loss over the weight, with its standard error."""
    low, high = np.subtract(mean, error), np.add(mean, error)
    x, y = _weights_axis(weights), Axis([*low, *high], FRAME.bottom, FRAME.above, room=0.05)
    drawn = [FRAME.axes(x, y, "weight of the penalty", "held-out loss"), _marker(x, chosen), _marker(x, best, "2 4")]
    for w, m, a, b in zip(weights, mean, low, high, strict=True):
        drawn.append(line((x(w), y(a), x(w), y(b)), stroke="var(--c6)"))
        drawn.append(dot(x(w), y(m), 3, "var(--c1)", f"{w:.4g}: {m:.4f}"))
    return FRAME.svg("held-out loss over the weight", drawn)


def bars(names: Sequence[str], values: Sequence[float], title: str) -> str:
    """A bar for each coefficient, from zero to the left or right."""
    left = 16 + 7.2 * max(map(len, names), default=1)
    wide, tall = left + 360, 30 + LINE * len(names)
    x = Axis([*values, 0.0], left, wide - 70, room=0.05)
    drawn = [line((x(0), 22, x(0), tall - 6), kind="axis"), words(left, 14, title, "start")]
    for k, (name, value) in enumerate(zip(names, values, strict=True)):
        y, a, b = 26 + LINE * k, *sorted((x(0), x(value)))
        size = f'width="{max(b - a, 0.5):.1f}" height="{LINE - 6}"'
        colour = "var(--plus)" if value > 0 else "var(--minus)"
        drawn.append(words(left - 8, y + 13, name, "end"))
        drawn.append(f'<rect x="{a:.1f}" y="{y}" {size} rx="2" fill="{colour}"/>')
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
    x = Axis(numbers or [0.0, 1.0], left, wide - 20, room=0.05)
    drawn = [words((left + wide) / 2, tall - 6, measure, "middle")]
    for tick in x.ticks:
        drawn.append(line((x(tick), 10, x(tick), tall - 40), kind="grid"))
        drawn.append(words(x(tick), tall - 24, f"{tick:.4g}", "middle"))
    for i, name in enumerate(names):
        top = 14 + step * i
        drawn.append(words(left - 8, top + step / 2, name, "end"))
        for k, (label, values) in enumerate(series):
            m, y = values.get(name), top + 8 + 12 * k
            if m is None or m.value != m.value:
                continue
            if m.low == m.low:
                drawn.append(line((x(m.low), y, x(m.high), y), stroke=f"var(--c{k})", stroke_width=2))
            says = f"{name}, {label}: {m.value:.3f} ({m.low:.3f} to {m.high:.3f})"
            drawn.append(dot(x(m.value), y, 4, f"var(--c{k})", says))
    return key((s.label, k) for k, s in enumerate(series)) + svg(wide, tall, f"{measure} by organisation", drawn)


def calibration(bins: Sequence[Bin], positive: str, level: float = 0.95) -> str:
    """Predicted probabilities against what was observed, with intervals; on the diagonal they are right."""
    x, y = Axis((0, 1), SQUARE.left, SQUARE.end), Axis((0, 1), SQUARE.bottom, SQUARE.above)
    drawn = [SQUARE.axes(x, y, f"predicted probability of {positive}", "observed")]
    drawn.append(line((x(0), y(0), x(1), y(1)), kind="axis", stroke_dasharray="4 4"))
    drawn.append(through(((x(b.predicted), y(b.observed)) for b in bins), "var(--c0)", stroke_width=1.5))
    for b in bins:
        low, high = b.interval(level)
        says = f"{b.samples} rows: {b.predicted:.3f} predicted, {b.observed:.3f} observed ({low:.3f} to {high:.3f})"
        drawn.append(line((x(b.predicted), y(low), x(b.predicted), y(high)), stroke="var(--c0)"))
        drawn.append(dot(x(b.predicted), y(b.observed), 4, "var(--c0)", says))
    return SQUARE.svg("calibration", drawn)


def decisions(curve: Sequence[NetBenefit]) -> str:
    """The net benefit of the model, of acting on all and of acting on none, over the threshold."""
    lowest = min(-0.05, min(d.model for d in curve))
    highest = max(0.05, *(max(d.model, d.everybody) for d in curve))
    x = Axis([d.threshold for d in curve], FRAME.left, FRAME.end)
    y = Axis((lowest, highest), FRAME.bottom, FRAME.above)
    drawn = [FRAME.axes(x, y, "act from a probability of", "net benefit")]
    lines = {"the model": [d.model for d in curve], "all": [d.everybody for d in curve], "none": [0.0] * len(curve)}
    for k, values in enumerate(lines.values()):
        shown = [(x(d.threshold), y(v)) for d, v in zip(curve, values, strict=True) if v >= lowest]
        drawn.append(through(shown, f"var(--c{k})", stroke_width=2 if k == 0 else 1.2))
    return FRAME.svg("net benefit over the threshold", drawn) + key((name, k) for k, name in enumerate(lines))


# ---- parts ----------------------------------------------------------------------------------------------------------


def _weights_axis(weights: Sequence[float]) -> Axis:
    """Falling to the right; in logarithms, but for a weight of 0."""
    return Axis(weights, FRAME.end - 6, FRAME.left + 6, log=min(weights) > 0)


def _marker(x: Axis, weight: float, dashes: str = "") -> str:
    at = x(weight)
    return line((at, FRAME.above, at, FRAME.bottom), stroke="var(--accent)", stroke_dasharray=dashes)
