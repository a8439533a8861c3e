"""What a linear model has learnt, by the names of the features."""

from __future__ import annotations

from typing import NamedTuple

Numbers = dict[str, float]


class Coefficients(NamedTuple):
    """With one output, numbers; with a score for each class, a table by class."""

    weights: Numbers | dict[int, Numbers]
    """By feature, or by class and feature."""
    intercept: float | dict[int, float] | None
    """None: the model has none."""


def coefficients(
    names: tuple[str, ...], weight: list[list[float]], bias: list[float] | None, nonzero: bool
) -> Coefficients:
    """Of a weight matrix (outputs, features); `nonzero`: without the features whose number is 0."""
    tables = [{name: w for name, w in zip(names, row, strict=True) if w != 0 or not nonzero} for row in weight]
    if len(tables) == 1:
        return Coefficients(tables[0], None if bias is None else bias[0])
    return Coefficients(dict(enumerate(tables)), None if bias is None else dict(enumerate(bias)))
