"""The features of a column before imputation and scaling.

A number may be clipped and log-transformed, and then be expanded to a polynomial, a spline, or sine and cosine. A date
has days, years, months or weekdays, yes is 1 and no is 0.

The spline is the restricted cubic one: linear beyond the outer knots, with the features of F. E. Harrell, "Regression
Modeling Strategies", 2nd edition, Springer, 2015, section 2.4.5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from proxfed.tables.column_kinds import Boolean, Column, Date, Number

View = Callable[[np.ndarray], np.ndarray]


def views(name: str, column: Column) -> dict[str, View]:
    """By the name of the feature; none for a category, whose features are its categories."""
    if isinstance(column, Number):
        called = {"none": name, "log": f"log({name})", "log1p": f"log(1+{name})"}[column.transform]
        plain = partial(_number, column)
        if column.period is not None:
            turn = 2 * np.pi / column.period
            return {
                f"sin({called})": lambda v: np.sin(turn * plain(v)),
                f"cos({called})": lambda v: np.cos(turn * plain(v)),
            }
        powers = {f"{called}^{k}": partial(_power, plain, k) for k in range(2, column.polynomial + 1)}
        bends = {} if column.knots is None else _bends(called, plain, column.knots)
        return {called: plain, **powers, **bends}
    if isinstance(column, Date):
        return {f"{name} {part}": partial(_part, column, part) for part in column.parts}
    return {name: np.asarray} if isinstance(column, Boolean) else {}


def _power(view: View, k: int, values: np.ndarray) -> np.ndarray:
    return view(values) ** k


def _bends(called: str, view: View, knots: list[float]) -> dict[str, View]:
    """The features of a restricted cubic spline beside the number itself: (x - t_j)+^3, linear beyond the last knot."""
    *inner, before, last = knots
    wide = last - before
    size = (last - knots[0]) ** 2

    def bend(t: float, values: np.ndarray) -> np.ndarray:
        x = view(values)

        def cubed(a: float) -> np.ndarray:
            return np.maximum(x - a, 0.0) ** 3

        return (cubed(t) - cubed(before) * (last - t) / wide + cubed(last) * (before - t) / wide) / size

    return {f"{called} from {t:g}": partial(bend, t) for t in inner}


def _number(column: Number, values: np.ndarray) -> np.ndarray:
    if column.clip is not None:
        values = np.clip(values, column.clip[0], column.clip[1])
    if column.transform == "none":
        return values
    return np.log(values) if column.transform == "log" else np.log1p(values)


def ends(column: Number) -> tuple[float, float]:
    """The bounds of the column's view, according to the schema."""
    both = column.clip or column.range
    assert both is not None, "the schema requires it where it is needed"
    low, high = _number(column, np.array(both)).tolist()
    return low, high


def _part(column: Date, part: str, days: np.ndarray) -> np.ndarray:
    if part == "days":
        return days
    there = ~np.isnan(days)
    dates = np.datetime64(column.origin) + days[there].astype(np.int64)
    year = dates.astype("datetime64[Y]")
    found = np.full(len(days), np.nan)
    if part == "year":
        found[there] = year.astype(np.int64) + 1970
    elif part == "month":
        found[there] = (dates.astype("datetime64[M]") - year.astype("datetime64[M]")).astype(np.int64) + 1
    else:  # Monday is 0; the first of January 1970 was a Thursday
        found[there] = (dates.astype("datetime64[D]").astype(np.int64) + 3) % 7
    return found
