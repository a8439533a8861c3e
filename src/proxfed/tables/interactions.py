"""Products of two columns, so that the effect of one may depend on the other: [table] interactions = [["age", "sex"]].

Products are of prepared features: gaps imputed, numbers centred and scaled. So nothing more is sent for them, and a
coefficient of age keeps its meaning, the effect at the mean of the other column. In the units of the columns

    c (x - a)/s (y - b)/t  =  c/(s t) (x y - b x - a y + a b)

so the coefficients of x and y, and the intercept, absorb a part of it: there, the coefficient of x is its effect at
y = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proxfed.errors import nearest, require
from proxfed.tables.column_kinds import Category, Input


class Product(NamedTuple):
    """A feature that is the product of two others."""

    name: str
    """'age:sex=male'"""
    column: str
    """The name of all products of these two columns, such as 'age by sex'."""
    one: int
    """The index of the first feature."""
    other: int
    """The index of the second feature."""


def products(
    pairs: Sequence[Sequence[str]], inputs: Mapping[str, Input], names: Sequence[str], columns: Sequence[str]
) -> list[Product]:
    """For every pair of columns, each feature of one times each of the other, without indicators of gaps."""
    found = []
    for one, other in pairs:
        for name in (one, other):
            require(
                name in inputs, f"table.interactions: {name!r} is not a column that predicts; {nearest(name, inputs)}"
            )
            column = inputs[name]
            known = not isinstance(column, Category) or column.reference != ""
            require(known, f"table.interactions: columns.{name} needs reference = ..., the baseline of the others")
        require(one != other, f"table.interactions: {one!r} with itself is polynomial = 2 of its column")
        first, second = (
            [k for k, (f, c) in enumerate(zip(names, columns, strict=True)) if c == name and f != f"{name} missing"]
            for name in (one, other)
        )
        found += [Product(f"{names[i]}:{names[j]}", f"{one} by {other}", i, j) for i in first for j in second]
    return found


def multiplied(rows: np.ndarray, made: Sequence[Product]) -> np.ndarray:
    """(N, p + products) with the products beside the features."""
    if not made:
        return rows
    return np.column_stack([rows, *(rows[:, each.one] * rows[:, each.other] for each in made)])


def unscaled(
    coef: np.ndarray, intercept: np.ndarray, centre: np.ndarray, scale: np.ndarray, made: Sequence[Product]
) -> tuple[np.ndarray, np.ndarray]:
    """(coefficients, intercept) in the units of the columns, of (..., p + products) on the prepared scale; centre and
    scale are those of the p features."""
    p = len(scale)
    original = np.concatenate([coef[..., :p] / scale, np.zeros_like(coef[..., p:])], -1)
    at = intercept - original[..., :p] @ centre
    for k, (_, _, i, j) in enumerate(made):
        c = coef[..., p + k] / (scale[i] * scale[j])
        original[..., p + k] = c
        original[..., i] -= c * centre[j]
        original[..., j] -= c * centre[i]
        at = at + c * centre[i] * centre[j]
    return original, at
