"""Rows -> curves for the page: the median and the range over seeds at each recorded round, thinned to a bounded size.

Seeds are matched by round. Their gradients, bytes and seconds may differ at the same round, so the horizontal position
is a median too. A seed that diverged has no more rows; the line ends once more than half of the seeds have diverged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxfed.report.columns import Column, Row, RunStatus

CHARACTERS = 1_200_000
"""The maximum size of all curves of a page; a number takes about 9 characters."""
MOST_POINTS, FEWEST_POINTS = 400, 30

Numbers = list[float | None]


@dataclass(frozen=True)
class Curve:
    """One algorithm. All lists have one item per kept round; `middle` is the median, `low` and `high` the range.

    x         progress column -> median position
    middle    measure -> median
    low, high measure -> range; empty for one seed
    crosses   positions in these lists at which a seed diverged, or the last one if most of them did
    seeds     how many seeds there are
    diverged  how many of them diverged
    recorded  how many rounds were recorded before thinning
    """

    label: str
    x: Mapping[str, Numbers]
    middle: Mapping[str, Numbers]
    low: Mapping[str, Numbers]
    high: Mapping[str, Numbers]
    crosses: list[int]
    seeds: int
    diverged: int
    recorded: int


Line = tuple[str, Sequence[Row], Sequence[Mapping[str, Any]]]
"""The label of an algorithm, its rows, and the status of its seeds."""


def make_curves(lines: Sequence[Line], progress: Sequence[Column], measures: Sequence[Column]) -> list[Curve]:
    """The curves of all algorithms with rows, which share the available size of the page."""
    numbers = 9 * len(lines) * (len(progress) + 3 * len(measures))
    points = int(np.clip(CHARACTERS // max(1, numbers), FEWEST_POINTS, MOST_POINTS))
    return [make_curve(label, rows, status, progress, measures, points) for label, rows, status in lines if rows]


def make_curve(
    label: str,
    rows: Iterable[Row],
    status: Iterable[Mapping[str, Any]],
    progress: Sequence[Column],
    measures: Sequence[Column],
    points: int,
) -> Curve:
    """The curve of one algorithm from its rows and the status of its seeds."""
    by_seed: dict[Any, dict[int, Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {})[row["round"]] = row
    rounds = np.unique([r for seed in by_seed.values() for r in seed])
    places = [np.searchsorted(rounds, list(seed)) for seed in by_seed.values()]
    alive = np.bincount(np.concatenate(places), minlength=len(rounds))
    lost = [max(by_seed[s["seed"]]) for s in status if s["status"] == RunStatus.DIVERGED and s["seed"] in by_seed]
    gone = (np.array(lost, dtype=rounds.dtype)[:, None] < rounds).sum(axis=0)
    shown = alive >= gone
    rounds = rounds[shown]

    def table(name: str) -> np.ndarray:
        """(rounds, seeds), nan where a seed has no finite value."""
        cells = np.full((len(shown), len(by_seed)), np.nan)
        for column, (place, seed) in enumerate(zip(places, by_seed.values(), strict=True)):
            cells[place, column] = np.array([row.get(name) for row in seed.values()], dtype=float)  # None becomes nan
        cells[~np.isfinite(cells)] = np.nan
        return cells[shown]

    x = {column.name: _median(table(column.name)) for column in progress}
    values = {column.name: table(column.name) for column in measures}
    middle = {name: _median(v) for name, v in values.items()}
    several = len(by_seed) > 1
    low = {name: np.fmin.reduce(v, axis=1) for name, v in values.items() if several}
    high = {name: np.fmax.reduce(v, axis=1) for name, v in values.items() if several}

    most = 2 * len(lost) > len(by_seed)
    crosses = [len(rounds) - 1] if most else sorted({int(np.searchsorted(rounds, r)) for r in lost})
    kept = thin(len(rounds), points, [*middle.values(), *low.values(), *high.values()], crosses)

    def pick(columns: dict[str, np.ndarray]) -> dict[str, Numbers]:
        return {name: [rounded(v) for v in column[kept]] for name, column in columns.items()}

    return Curve(
        label=label,
        x=pick(x),
        middle=pick(middle),
        low=pick(low),
        high=pick(high),
        crosses=np.searchsorted(kept, crosses).tolist(),
        seeds=len(by_seed),
        diverged=len(lost),
        recorded=len(rounds),
    )


def thin(count: int, points: int, columns: Iterable[np.ndarray], keep: Sequence[int] = ()) -> np.ndarray:
    """Positions among 0 .. count-1: evenly spread, with the ends, those in `keep` and the extremes of each column."""
    if count <= points:
        return np.arange(count)
    extremes = [pick(c) for c in columns if np.isfinite(c).any() for pick in (np.nanargmin, np.nanargmax)]
    even = np.linspace(0, count - 1, points).round()
    return np.unique(np.concatenate([even, np.array([*extremes, *keep], dtype=float)])).astype(np.int64)


def rounded(value: float) -> float | int | None:
    """Rounded to six digits, more than a screen shows; None for a number that is not finite."""
    if not np.isfinite(value):
        return None
    value = float(f"{value:.6g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _median(table: np.ndarray) -> np.ndarray:
    """The median of each line without its nans; nan if the line has only nans."""
    ordered = np.sort(table, axis=1)  # nans last
    count = np.maximum(1, np.isfinite(table).sum(axis=1))[:, None]
    middle = np.take_along_axis(ordered, np.hstack([(count - 1) // 2, count // 2]), axis=1)
    return middle.mean(axis=1)
