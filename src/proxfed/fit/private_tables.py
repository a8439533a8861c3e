"""A linear model of tables with differential privacy for every row, from nothing but noisy sums (private.py).

Columns are prepared by the schema alone, because means and deviations of the rows would tell of them: a number is
moved from its range to [-1, 1], a missing one becomes the middle, a missing category the first one. The labels of a
number lie in a range that is given. Two classes are -1 and +1, and weights are twice those of least squares, which
minimise the quadratic bound -s/2 + s^2/8 of the logistic loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, model_validator

from proxfed.errors import require
from proxfed.files import private_folder, replace
from proxfed.fit.model_file import FORM, Model, Scale
from proxfed.fit.private import Bounds, Matrix, hopeless, noise_for, noisy, private_fit, products
from proxfed.machine import versions
from proxfed.tables.column_kinds import Boolean, Category, Number
from proxfed.tables.preparation import Parameters, Preparation
from proxfed.tables.schema import Schema
from proxfed.tables.table import Table, read_tables
from proxfed.tables.views import ends, views
from proxfed.validation import STRICT, refuse_unless


class Private(BaseModel):
    """What the noise is measured by; nothing of it may be taken from the rows."""

    model_config = STRICT

    noise: float = Field(gt=0, allow_inf_nan=False)
    """sigma: a row moves the sums by at most 1/sigma standard deviations of the noise."""
    row: float = Field(gt=0, allow_inf_nan=False)
    """R: rows with a larger norm are shortened to it."""
    low: float = Field(default=-1.0, allow_inf_nan=False)
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Labels below and above are moved to these."""

    @model_validator(mode="after")
    def _rising(self) -> Private:
        refuse_unless(self.low < self.high, f"low = {self.low:g} must be less than high = {self.high:g}")
        return self

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def products(self, features: np.ndarray, labels: np.ndarray) -> Matrix:
        """(d + 2, d + 2) of one table, without its noise."""
        return products(np.asarray(features), (np.asarray(labels) - self.middle) / self.half, Bounds(self.row))


def by_schema(schema: Schema) -> Preparation:
    """The preparation that follows from a schema and no rows."""
    parameters, modes = dict[str, Parameters](), dict[str, str]()
    counted = schema.table.standardise_dummies
    require(not counted, "table.standardise_dummies: a private fit scales by the schema alone, not by counts of rows")
    for name, column in schema.inputs.items():
        if isinstance(column, Category):
            modes[name] = next(iter(column.names))
            continue
        plain = isinstance(column, Boolean) or (isinstance(column, Number) and len(views(name, column)) == 1)
        require(plain, f"columns.{name}: a private fit takes numbers as they are, yes or no, and categories")
        low, high = 0.0, 1.0
        if isinstance(column, Number):
            bounded = (column.clip or column.range) is not None
            require(bounded, f"columns.{name}: a private fit needs range = [low, high] or clip = [low, high]")
            low, high = ends(column)
        (feature,) = views(name, column)
        middle = (low + high) / 2
        parameters[feature] = Parameters(impute=middle, centre=middle, scale=(high - low) / 2)
    return Preparation(schema, parameters, modes, ())


def private_settings(
    schema: Schema, epsilon: float, delta: float = 1e-5, row: float | None = None, label: Sequence[float] | None = None
) -> Private:
    """Noise for this epsilon; rows are shortened to half of their largest norm, if nothing else is said."""
    target = schema.target
    require(target is not None and target.kind != "survival", "a private fit needs a target of two classes or a number")
    assert target is not None
    two = target.kind == "classes"
    require(not two or len(target.names) == 2, f"a private fit has two classes, not {len(target.names)}")
    require(not (two and label), "label: two classes have no range")
    require(two or label is not None, "label: a target that is a number needs its range, low and high")
    require(not target.weight, "a private fit counts all rows alike: target.weight must not be given")
    require(0 < delta < 1, f"delta = {delta:g} must be between 0 and 1")
    d = len(by_schema(schema).names)
    ends = {} if label is None else dict(zip(("low", "high"), map(float, label), strict=True))
    return Private(noise=noise_for(epsilon, delta), row=sqrt(d) / 2 if row is None else row, **ends)


def private_model(
    total: Matrix, sites: Sequence[str], schema: Schema, how: Private, epsilon: float, delta: float
) -> Model:
    """From the sum of what sites have sent; its noise is that of all of them."""
    prepared, target = by_schema(schema), schema.target
    assert target is not None
    classes = list(target.names)
    found = private_fit([total], Bounds(how.row), how.noise * sqrt(len(sites)))
    w, b = found.weights.numpy(), found.intercept
    w, b = (2 * w, 2 * b) if classes else (w * how.half, b * how.half + how.middle)
    original, at = prepared.original_scale(w[None], np.array([b]))
    few = hopeless(round(found.rows), len(w), len(sites), how.noise)
    return Model(
        form=FORM, name=schema.table.name,
        loss={"name": "logistic" if classes else "squared"}, penalty={"name": "zero"}, weight=0.0,
        classes=classes, features=list(prepared.names),
        prepared=Scale(coef=[w.tolist()], intercept=[b]),
        original=Scale(coef=original.tolist(), intercept=np.atleast_1d(at).tolist()),
        preparation=prepared.plain(), organisations=list(sites),
        settings={"private": {"epsilon": epsilon, "delta": delta} | how.model_dump()},
        sent=[], measures={}, held_out="none: measures of rows would need noise of their own",
        notes=[f"differential privacy of every row: epsilon = {epsilon:g}, delta = {delta:g}", *([few] if few else [])],
        versions={key: value for key, value in versions().items() if key in ("proxfed", "python", "torch", "numpy")},
    )  # fmt: skip


def labels_of(table: Table) -> np.ndarray:
    """As sums take them: two classes as -1 and +1."""
    assert table.labels is not None
    two = table.schema.target is not None and table.schema.target.names
    return 2.0 * np.asarray(table.labels) - 1.0 if two else np.asarray(table.labels, np.float64)


def fit_private(
    tables: str | Path | Schema, directory: str | Path | None = None, *, epsilon: float, delta: float = 1e-5,
    row: float | None = None, label: Sequence[float] | None = None, seed: int = 0,
) -> Model:  # fmt: skip
    """What `proxfed fit --epsilon` computes where all tables lie in one place: a simulation, its noise is of a seed.

    Parameters
    ----------
    tables, directory
        The schema, and where its files are.
    epsilon, delta
        Of every row.
    row
        R: the norm to which rows are shortened, of features in [-1, 1]; None: half of the largest one.
    label
        Low and high of a target that is a number.
    seed
        Of the noise.
    """
    found = read_tables(tables, directory)
    how, prepared = private_settings(found.schema, epsilon, delta, row, label), by_schema(found.schema)
    rng, messages = np.random.default_rng(seed), list[Matrix]()
    for table in found.tables:
        M = how.products(prepared.apply(table), labels_of(table))
        messages.append(noisy(M, how.noise, rng.standard_normal(M.shape)))
    sites = [table.organisation for table in found.tables]
    return private_model(np.sum(messages, axis=0), sites, found.schema, how, epsilon, delta)


def save_private(model: Model, folder: str | Path) -> None:
    """model.json, last, and coefficients.csv."""
    private_folder(Path(folder))
    replace(Path(folder) / "coefficients.csv", model.csv().encode())
    replace(Path(folder) / "model.json", model.text().encode())


def summary(model: Model) -> dict[str, Any]:
    """As plain data."""
    coefficients = dict(zip(model.features, model.original.coef[0], strict=True))
    plain = {"coefficients": coefficients, "intercept": model.original.intercept[0], "notes": model.notes}
    return plain | {"organisations": model.organisations, "signed_by": [*model.signatures]} | model.settings
