"""The position on an axis (rounds, steps, bytes, seconds) at which a measure first reached a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median_low

from proxfed.report.columns import NONE, Directions, Row, axis_value, better, direction

NEVER = math.inf


def first_reached(
    history: Sequence[Row], measure: str, target: float, axis: str = "round", clients: int | None = None,
    own: Directions = NONE,
) -> float | None:  # fmt: skip
    """The position at which one seed first reaches the target; NEVER if it does not, None without such numbers."""
    measured = [row for row in history if row.get(measure) is not None and axis_value(row, axis, clients) is not None]
    if not measured:
        return None
    way = direction(measure, own, "target")
    return next((axis_value(row, axis, clients) for row in measured if better(way, row[measure], target)), NEVER)


def half_reached(
    histories: Iterable[Sequence[Row]],
    measure: str,
    target: float,
    axis: str = "round",
    clients: int | None = None,
    own: Directions = NONE,
) -> float | None:
    """The position at which half of the seeds had reached the target: the lower median, with NEVER as the largest."""
    found = [first_reached(history, measure, target, axis, clients, own) for history in histories]
    places = [where for where in found if where is not None]
    return median_low(places) if places else None
