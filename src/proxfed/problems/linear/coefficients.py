"""The coefficients of a linear model by the names of the features."""

from __future__ import annotations

from typing import NamedTuple

Numbers = dict[str, float]


class Coefficients(NamedTuple):
    """Numbers if the model has one output; a table by class if it has a score per class."""

    weights: Numbers | dict[int, Numbers]
    """The coefficients by feature, or by class and feature."""
    intercept: float | dict[int, float] | None
    """The intercept, or the intercepts by class; None: the model has none."""


def coefficients(
    names: tuple[str, ...], weight: list[list[float]], bias: list[float] | None, nonzero: bool
) -> Coefficients:
    """The coefficients of a weight matrix (outputs, features); `nonzero`: only those that are not 0."""
    tables = [{name: w for name, w in zip(names, row, strict=True) if w != 0 or not nonzero} for row in weight]
    if len(tables) == 1:
        return Coefficients(tables[0], None if bias is None else bias[0])
    return Coefficients(dict(enumerate(tables)), None if bias is None else dict(enumerate(bias)))
