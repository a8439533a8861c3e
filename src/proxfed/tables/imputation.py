"""Multiple imputation: each organisation fills its gaps several times with values from its own rows.

Column by column, a gap gets the value of one of the DONORS rows whose predicted value is nearest to its own (predictive
mean matching); predictions are by a linear regression on all other columns and the outcome, with coefficients that are
drawn as well. This is repeated CYCLES times, so that columns with gaps predict each other (chained equations).

A column with hardly any values at an organisation is not imputed there; the preparation fills it once.

References: D. B. Rubin, "Multiple Imputation for Nonresponse in Surveys", Wiley, 1987; S. van Buuren, "Flexible
Imputation of Missing Data", 2nd edition, CRC Press, 2018, sections 3.4 and 4.5.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfed import keyed_random
from proxfed.tables.column_kinds import Category, Column
from proxfed.tables.table import Table

DONORS = 5
CYCLES = 5
FEWEST = 10
"""The number of values that a column needs to be imputed."""
RIDGE = 1e-5
"""A ridge on the products of standardised columns, relative to the number of rows, since columns may be collinear."""


def imputed(table: Table, seed: int, draw: int, organisation: int) -> Table:
    """The table with its gaps filled; the same seed, draw and organisation give the same values."""
    columns = {name: values.copy() for name, values in table.columns.items()}
    gaps = {name: np.isnan(values) for name, values in columns.items()}
    open_ = [name for name in columns if gaps[name].any() and (~gaps[name]).sum() >= FEWEST]
    if not open_:
        return table
    rng = keyed_random.generator(seed, f"imputation {draw}", organisation)
    for name in open_:
        columns[name][gaps[name]] = rng.choice(columns[name][~gaps[name]], int(gaps[name].sum()))
    kinds = table.schema.inputs
    for _ in range(CYCLES):
        for name in open_:
            others = [_shown(kinds[other], columns[other]) for other in columns if other != name]
            X = _standardised([*others, *_outcome(table)])
            columns[name][gaps[name]] = _drawn(X, columns[name], gaps[name], kinds[name], rng)
    return replace(table, columns=columns)


def closed(table: Table) -> list[str]:
    """The columns whose gaps cannot be filled from the organisation's own rows."""
    there = {name: int((~np.isnan(values)).sum()) for name, values in table.columns.items()}
    return [name for name, count in there.items() if count < min(FEWEST, len(table))]


def _shown(column: Column, values: np.ndarray) -> np.ndarray:
    """(N, k) numbers, or a 0/1 column for each category."""
    if isinstance(column, Category):
        return (values[:, None] == np.arange(len(column.names))).astype(float)
    return values[:, None]


def _outcome(table: Table) -> list[np.ndarray]:
    """The outcome is one of the predictors of every gap: otherwise its effects would shrink."""
    if table.labels is None:
        return []
    if table.events is not None:
        return [np.log1p(table.labels)[:, None], table.events[:, None].astype(float)]
    target = table.schema.target
    if target is not None and target.names:
        return [(table.labels[:, None] == np.arange(len(target.names))).astype(float)]
    return [np.asarray(table.labels, float)[:, None]]


def _standardised(parts: list[np.ndarray]) -> np.ndarray:
    """Standardised, without constant columns and with a column of ones; missing values count as 0."""
    X = np.nan_to_num(np.column_stack(parts)) if parts else np.zeros((0, 0))
    spread = X.std(0)
    X = (X[:, spread > 0] - X[:, spread > 0].mean(0)) / spread[spread > 0]
    return np.column_stack([np.ones(len(X)), X])


def _drawn(X: np.ndarray, values: np.ndarray, gaps: np.ndarray, column: Column, rng: np.random.Generator) -> np.ndarray:
    """A donor's value for each gap."""
    there = ~gaps
    Y = _shown(column, values[there])
    A = X[there]
    products = A.T @ A
    C = np.linalg.inv(products + RIDGE * len(A) * np.eye(len(products)))
    B = C @ (A.T @ Y)
    left = max(1, len(A) - A.shape[1])
    variance = np.square(Y - A @ B).sum(0) / rng.chisquare(left)
    root = np.linalg.cholesky((C + C.T) / 2)
    B_drawn = B + root @ rng.normal(size=B.shape) * np.sqrt(variance)
    near = A @ B
    found = np.empty(int(gaps.sum()))
    donors = values[there]
    for k, at in enumerate(X[gaps] @ B_drawn):
        distance = np.square(near - at).sum(1)
        nearest = np.argpartition(distance, min(DONORS, len(donors)) - 1)[:DONORS]
        found[k] = donors[rng.choice(nearest)]
    return found
