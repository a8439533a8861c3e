"""Where on an axis - rounds, steps, bytes, seconds - a measure first reached a target; and what is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

from proxfed.harness.run_folder import Row, RunFolder

NEVER = math.inf
HIGHER = ("accuracy", "auc", "f1", "precision", "recall", "score")
"""Measures whose names end so are the better the higher they are; of all others less is better."""


class Results(NamedTuple):
    """What a run folder holds, for tables and claims."""

    rows: Sequence[Row]
    status: Sequence[Mapping[str, Any]] = ()
    clients: int | None = None
    seeds: Sequence[int] = ()
    """Those that were asked for, also if they have not begun."""

    @classmethod
    def of(cls, folder: RunFolder) -> Results:
        holdings, seeds = folder.clients(), folder.config().get("seeds", ())
        return cls(folder.rows(), folder.status(), None if holdings is None else len(holdings), seeds)

    def labels(self) -> list[str]:
        """The algorithms that have rows, in their order."""
        return list(dict.fromkeys(row["algorithm"] for row in self.rows))

    def histories(self, label: str) -> dict[int, list[Row]]:
        """The rows of an algorithm, seed by seed, from the first round to the last; without seeds still under way."""
        going = {s["seed"] for s in self.status if s["algorithm"] == label and s["status"] in ("running", "stopped")}
        mine = [row for row in self.rows if row["algorithm"] == label and row["seed"] not in going]
        seeds: dict[int, list[Row]] = {}
        for row in sorted(mine, key=lambda row: row["round"]):
            seeds.setdefault(row["seed"], []).append(row)
        return seeds

    def diverged(self, label: str) -> dict[int, int]:
        """{seed: round} of an algorithm's seeds that diverged."""
        return {s["seed"]: s["round"] for s in self.status if s["algorithm"] == label and s["status"] == "diverged"}


def higher_is_better(measure: str) -> bool:
    """By its name; accuracy_x and worst_x are accuracies of the clients' own models."""
    return measure.endswith(HIGHER) or measure.startswith(("accuracy_", "worst_"))


def better(measure: str, a: float, b: float) -> bool:
    """Is a at least as good as b?"""
    return a >= b if higher_is_better(measure) else a <= b


COMPUTED = ("steps", "bytes")
"""Axes that are no columns."""


def axis_value(row: Row, axis: str, clients: int | None = None) -> float | None:
    """Where a row stands: 'steps' are gradients of one client, 'bytes' go in any direction, else it is a column."""
    if axis == "steps":
        return None if clients is None or row.get("gradients") is None else row["gradients"] / clients
    if axis == "bytes":
        counted = [row[name] for name in ("bytes_up", "bytes_down", "bytes_edge") if row.get(name) is not None]
        return sum(counted) if counted else None
    return row.get(axis)


def first_reached(
    history: Sequence[Row], measure: str, target: float, axis: str = "round", clients: int | None = None
) -> float | None:
    """Where the rows of one seed first reach the target; NEVER if they do not, None if they have no such numbers."""
    measured = [row for row in history if row.get(measure) is not None and axis_value(row, axis, clients) is not None]
    if not measured:
        return None
    return next((axis_value(row, axis, clients) for row in measured if better(measure, row[measure], target)), NEVER)


def half_reached(
    histories: Iterable[Sequence[Row]],
    measure: str,
    target: float,
    axis: str = "round",
    clients: int | None = None,
) -> float | None:
    """Where the first half of the seeds had reached the target: the lower median, with NEVER as the largest."""
    found = [first_reached(history, measure, target, axis, clients) for history in histories]
    places = [where for where in found if where is not None]
    return median_low(places) if places else None
