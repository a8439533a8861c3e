"""From an estimate and its covariance to what is reported: standard errors, intervals, p-values, ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from proxfed.fit.inference.distributions import t_quantile, t_tails
from proxfed.fit.inference.estimate import Estimate
from proxfed.fit.inference.regression import Array


@dataclass(frozen=True)
class Coefficient:
    """A line of a table of coefficients."""

    name: str
    estimate: float
    error: float
    """Its standard error."""
    low: float
    high: float
    """The interval."""
    p: float
    """Of the test that it is zero, two-sided."""
    adjusted: float | None = None
    """p, adjusted for how many coefficients are tested."""

    @property
    def statistic(self) -> float:
        """estimate / error."""
        return self.estimate / self.error if self.error > 0 else math.nan

    @property
    def ratio(self) -> float:
        """exp(estimate)."""
        return _exp(self.estimate)

    @property
    def ratio_interval(self) -> tuple[float, float]:
        return _exp(self.low), _exp(self.high)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def coefficients(
    names: Sequence[str], estimates: Array, covariance: Array, level: float = 0.95, df: float = math.inf
) -> list[Coefficient]:
    """A line for each; `df`: of Student's t, infinite for the normal distribution."""
    reach = t_quantile(level, df)
    lines = []
    for name, b, variance in zip(names, estimates.tolist(), np.diag(covariance).tolist(), strict=True):
        error = math.sqrt(max(variance, 0.0))
        p = t_tails(b / error, df) if error > 0 else math.nan
        lines.append(Coefficient(name, b, error, b - reach * error, b + reach * error, p))
    return lines


def dispersion(found: Estimate) -> float:
    """Pearson's estimate of the dispersion: the variance of the residuals of a linear model; 1 of others."""
    return found.deviance / found.residual_df if found.regression.dispersed else 1.0


def model_covariance(found: Estimate, phi: float = 1.0) -> Array:
    """(free, free) phi H^-1, right if the model is."""
    return phi * found.bread


def sandwich(found: Estimate, correction: str = "HC0") -> Array:
    """(free, free) H^-1 M H^-1, right also where variances are not the model's, or rows of a cluster are alike.

    correction   "HC0": none; "HC1": N/(N - d); "cluster": G/(G - 1) (N - 1)/(N - d) with G clusters
    """
    products, at = found.sums.products, np.ix_(found.free, found.free)
    assert products is not None
    G, N, d = found.regression.clusters, found.rows, found.parameters
    factor = {"HC0": 1.0, "HC1": N / (N - d), "cluster": G / max(G - 1, 1e-300) * (N - 1) / (N - d)}[correction]
    return factor * (found.bread @ products[at] @ found.bread)
