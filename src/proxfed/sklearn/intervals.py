"""Intervals of an estimator's coefficients, from one more round of sums over its organisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from proxfed.errors import require
from proxfed.fit.here import Here
from proxfed.fit.inference.adjust import adjusted
from proxfed.fit.inference.debiased import debiased, enough_rows
from proxfed.fit.inference.regression import Intercept, Regression
from proxfed.fit.inference.result import INTERCEPT
from proxfed.fit.inference.subject import KNOWN, ROWS_FOR_EACH
from proxfed.fit.inference.wald import Coefficient, coefficients, dispersion, model_covariance, sandwich
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import KINDS, find_loss
from proxfed.registry import describe


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
    name = str(describe(loss, KINDS)["name"])
    require(name in KNOWN, f"loss = {name!r} has no standard errors; choose one of {', '.join(KNOWN)}")
    require(errors in ("model", "robust"), f"errors = {errors!r} is not one of 'model', 'robust'")
    own = tuple(OwnRows(X, y, loss, intercept == "shared", sample_weights=w) for X, y, w in rows)
    here = Here(own, tuple(map(str, range(len(own)))))
    regression = Regression.of(here, loss, own[0].width, intercept, "row" if errors == "robust" else "")
    likelihood = errors == "robust" or regression.likelihood
    require(likelihood, f"loss = {name!r} is no likelihood: errors must be 'robust'")
    enough_rows(regression.informative, len(x), ROWS_FOR_EACH.get(name, "rows"))
    d = len(x)
    found = debiased(regression, x, [d - 1, *range(d - 1)] if intercept == "shared" else None)
    phi = dispersion(found)
    V = sandwich(found, "HC1") if errors == "robust" else model_covariance(found, phi)
    df = found.residual_df if regression.dispersed and errors == "model" else math.inf
    lines = coefficients([names[j] for j in found.free], found.x[found.free], V, level, df)
    better = iter(adjusted([line.p for line in lines if line.name != INTERCEPT], adjust))
    return [line if line.name == INTERCEPT else replace(line, adjusted=next(better)) for line in lines]


def by_organisation(owner: np.ndarray, *columns: Any) -> list[tuple[Any, ...]]:
    """The rows of each organisation, from arrays or None."""
    return [tuple(None if c is None else c[owner == k] for c in columns) for k in np.unique(owner)]
