"""Intervals of an estimator's coefficients: its organisations are asked for sums once more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from proxfed.errors import require
from proxfed.fit.inference.adjust import adjusted
from proxfed.fit.inference.debiased import debiased, enough_rows
from proxfed.fit.inference.families import family_of
from proxfed.fit.inference.own_sums import Intercept, OwnRegression, check
from proxfed.fit.inference.result import INTERCEPT
from proxfed.fit.inference.wald import Coefficient, coefficients, dispersion, model_covariance, sandwich
from proxfed.problems.losses import Huber, Loss
from proxfed.problems.named_losses import LOSSES, find_loss


def intervals(
    loss: Loss | str,
    x: np.ndarray,
    rows: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray | None]],
    names: Sequence[str],
    intercept: Intercept,
    errors: str,
    level: float,
    adjust: str,
) -> list[Coefficient]:
    """Debiased estimates at x, a shared intercept last; `rows` are (X, labels, weights) of each organisation."""
    loss = find_loss(loss)
    name = next((key for key, value in LOSSES.items() if type(value) is type(loss)), "")
    settings = {"delta": loss.delta} if isinstance(loss, Huber) else {}
    family = family_of(name, **settings)
    require(errors in ("model", "robust"), f"errors = {errors!r} is not one of 'model', 'robust'")
    require(errors == "robust" or family.likelihood, f"loss = {name!r} is no likelihood: errors must be 'robust'")
    halves = [OwnRegression(family, X, y, w, intercept=intercept) for X, y, w in rows]
    check(halves)
    labels = np.concatenate([y for _, y, _ in rows])
    rare = min((labels > 0).sum(), (labels < 0).sum()) if name == "logistic" else len(labels)
    enough_rows(float(rare), len(x), "rows of the rarer class" if name == "logistic" else "rows")
    d = len(x)
    found = debiased(halves, x, [d - 1, *range(d - 1)] if intercept == "shared" else None)
    phi = dispersion(found) if family.dispersed else 1.0
    V = sandwich(found, "HC1") if errors == "robust" else model_covariance(found, phi)
    df = found.residual_df if family.dispersed and errors == "model" else math.inf
    lines = coefficients([names[j] for j in found.free], found.x[found.free], V, level, df)
    better = iter(adjusted([line.p for line in lines if line.name != INTERCEPT], adjust))
    return [line if line.name == INTERCEPT else replace(line, adjusted=next(better)) for line in lines]


def by_organisation(owner: np.ndarray, *columns: Any) -> list[tuple[Any, ...]]:
    """The rows of each organisation, of arrays or None."""
    return [tuple(None if c is None else c[owner == k] for c in columns) for k in np.unique(owner)]
