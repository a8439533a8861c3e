"""The numbers of runs for a claim or a reported value: per seed, as medians, and as text."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain
from statistics import median, median_low

from proxfed.harness.results import Results
from proxfed.papers.paper_schema import Quantity
from proxfed.report.columns import Directions, axis_value, column, direction, show
from proxfed.report.targets import first_reached


def seed_values(
    asked: Quantity, results: Results, label: str, place: tuple[str, int] | None = None
) -> dict[int, float]:
    """For each seed: the place where the measure reached the target, or the measure at a place, its best or last value.

    A diverged seed counts with its last row, and as the worst possible value if that has no number.
    """
    measure, diverged = asked.measure, results.diverged(label)
    own = results.directions
    worst = -math.inf if column(measure, own).better == "higher" else math.inf
    values = {}
    for seed, history in results.histories(label).items():
        if asked.target is not None:
            found = first_reached(history, measure, asked.target, asked.axis, results.clients, own)
        else:
            here = [row for row in history if place is None or axis_value(row, place[0], results.clients) == place[1]]
            numbers = [axis_value(row, measure, results.clients) for row in here]
            at = [number for number in numbers if number is not None]
            one = (_best(measure, at, own) if asked.best else at[-1]) if at else None
            found = worst if one is None and seed in diverged else one
        if found is not None:
            values[seed] = worst if math.isnan(found) else found
    return values


def _best(measure: str, numbers: Sequence[float], own: Directions) -> float:
    """The best of the values that are numbers."""
    choose = max if direction(measure, own, "best") == "higher" else min
    return choose((number for number in numbers if not math.isnan(number)), default=math.nan)


def seed_median(values: Collection[float], target: float | None) -> float | None:
    """The median over the seeds; None if there are none."""
    if not values:
        return None
    return median(values) if target is None else median_low(values)  # half of the seeds got there: a point of the axis


def axis_end(asked: Quantity, results: Results, label: str) -> float | None:
    """The end of an algorithm's seeds on the axis."""
    rows = chain.from_iterable(results.histories(label).values())
    places = [axis_value(row, asked.axis, results.clients) for row in rows]
    return max((place for place in places if place is not None), default=None)


def written(value: float, of: str, digits: int = 4) -> str:
    """With this number of digits; bytes are exact, so they have six digits and a unit."""
    return show(value, "bytes", 6) if of.startswith("bytes") and math.isfinite(value) else f"{value:.{digits}g}"
