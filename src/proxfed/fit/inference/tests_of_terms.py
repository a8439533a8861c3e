"""Tests of several coefficients at once: likelihood-ratio, score and Wald, and the table of deviance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proxfed.fit.inference.distributions import chi2_tail, f_tail
from proxfed.fit.inference.estimate import Estimate, estimate
from proxfed.fit.inference.regression import Array


@dataclass(frozen=True)
class Test:
    """Of the hypothesis that some coefficients are all zero."""

    name: str
    statistic: float
    df: int
    p: float
    residual_df: float | None = None
    """Of an F test; None: the statistic is chi-squared."""


def likelihood_ratio(name: str, full: Estimate, restricted: Estimate, phi: float | None = None) -> Test:
    """Twice the difference of the log-likelihoods; with an estimated dispersion phi, the F test."""
    df = full.parameters - restricted.parameters
    difference = 2 * (restricted.sums.value - full.sums.value)
    if phi is None:
        return Test(name, difference, df, chi2_tail(difference, df))
    F = difference / phi / max(df, 1)
    return Test(name, F, df, f_tail(F, df, full.residual_df) if df else 1.0, full.residual_df)


def score_test(name: str, restricted: Estimate, tested: Sequence[int]) -> Test:
    """g' H^-1 g at the restricted estimate: the larger model is not fitted."""
    now = restricted.sums
    places = np.array(sorted({*restricted.free.tolist(), *tested}), int)
    g, H = now.gradient[places], now.hessian[np.ix_(places, places)]
    statistic = float(g @ np.linalg.solve(H, g))
    return Test(name, statistic, len(tested), chi2_tail(statistic, len(tested)))


def wald_test(name: str, found: Estimate, covariance: Array, tested: Sequence[int]) -> Test:
    """b' V^-1 b of the coefficients that are tested."""
    at = [found.free.tolist().index(j) for j in tested if j in found.free]
    b = found.x[found.free[at]]
    statistic = float(b @ np.linalg.solve(covariance[np.ix_(at, at)], b)) if at else 0.0
    return Test(name, statistic, len(at), chi2_tail(statistic, len(at)))


def deviance_table(
    full: Estimate,
    terms: Mapping[str, Sequence[int]],
    phi: float | None = None,
    order: Sequence[int] | None = None,
) -> tuple[list[Test], int]:
    """Every term left out in turn: what the deviance rises by, and its test; and how many exchanges it took."""
    found, exchanges = [], 0
    for name, places in terms.items():
        kept = [j for j in full.free.tolist() if j not in set(places)]
        if len(kept) < len(full.free):
            start = np.zeros_like(full.x)
            start[kept] = full.x[kept]
            restricted = estimate(full.regression, kept, start=start, order=order)
            found.append(likelihood_ratio(name, full, restricted, phi))
            exchanges += restricted.exchanges
    return found, exchanges
