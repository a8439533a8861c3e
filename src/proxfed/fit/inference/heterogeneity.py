"""Do organisations agree on a coefficient? Cochran's Q, I^2, the meta-analytic estimate, and the data of a forest plot.

Organisation i fits the model to its own rows: b_i with standard error e_i. With w_i = 1/e_i^2, four sums over
organisations are all that is needed:

    W = sum w_i      W2 = sum w_i^2      B = sum w_i b_i      S = sum w_i b_i^2
    b = B/W  with error  W^-1/2      Q = S - B^2/W
    I^2 = max(0, 1 - (k - 1)/Q)      tau^2 = max(0, Q - k + 1)/(W - W2/W)

A forest plot shows every b_i, which is more than sums: organisations must agree to it.

References: W. G. Cochran, "The Combination of Estimates from Different Experiments", Biometrics, 1954;
J. P. T. Higgins, S. G. Thompson, "Quantifying Heterogeneity in a Meta-Analysis", Statistics in Medicine, 2002;
R. DerSimonian, N. Laird, "Meta-Analysis in Clinical Trials", Controlled Clinical Trials, 1986.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from proxfed.errors import ProxfedError
from proxfed.fit.inference.distributions import chi2_tail
from proxfed.fit.inference.estimate import Estimate, estimate
from proxfed.fit.inference.regression import Array, Regression
from proxfed.fit.inference.wald import dispersion, model_covariance


class MetaSums(NamedTuple):
    """What organisations send of their own estimates, (d,) each; zeros where one cannot estimate a coefficient."""

    k: Array
    W: Array
    W2: Array
    B: Array
    S: Array

    def __add__(self, other: MetaSums) -> MetaSums:  # type: ignore[override]
        return MetaSums(*(one + two for one, two in zip(self, other, strict=True)))


META = MetaSums._fields


class OwnEstimate(NamedTuple):
    """An organisation's estimate of its own rows."""

    b: Array
    """(d,) NaN where its rows do not tell."""
    error: Array


@dataclass(frozen=True)
class Agreement:
    """Of one coefficient."""

    name: str
    organisations: int
    """How many estimate it."""
    Q: float
    p: float
    """Of the test that all have the same coefficient."""
    I2: float
    """The part of the variation between estimates that chance does not explain."""
    tau: float
    """The standard deviation of the coefficient between organisations (DerSimonian-Laird)."""
    meta: float
    """The inverse-variance weighted mean of the organisations' own estimates."""
    meta_error: float
    one_step: float
    """One Newton step from there with the sums of all organisations."""


def own_estimate(own: Regression, order: Sequence[int] | None = None) -> OwnEstimate | str:
    """What an organisation finds from its own rows alone; a sentence where it finds nothing."""
    d = own.d
    try:
        found = estimate(own, order, order=order)
        if found.residual_df <= 0 or not len(found.free):
            return f"{found.rows:.0f} rows are too few for {found.parameters} coefficients"
        V = model_covariance(found, dispersion(found))
    except (ProxfedError, np.linalg.LinAlgError) as e:
        return str(e)
    b, error = np.full(d, math.nan), np.full(d, math.nan)
    b[found.free], error[found.free] = found.x[found.free], np.sqrt(np.diag(V))
    blurred = _aliased_with(found, own)
    b[blurred], error[blurred] = math.nan, math.nan
    return OwnEstimate(b, error)


def _aliased_with(found: Estimate, own: Regression) -> list[int]:
    """Free coefficients that stand for an aliased one as well: they mean something else at this organisation."""
    H = own.ask(np.zeros(own.d)).hessian
    blurred: set[int] = set()
    for j in found.aliased:
        if H[j, j] <= 0:  # constant zero: nothing else stands for it
            continue
        share = np.linalg.solve(H[np.ix_(found.free, found.free)], H[found.free, j])
        blurred |= {int(found.free[k]) for k in np.flatnonzero(np.abs(share) > 1e-6)}
    return sorted(blurred)


def meta_sums(own: OwnEstimate) -> MetaSums:
    """What is sent of it."""
    there = np.isfinite(own.b) & (own.error > 0)
    w = np.where(there, 1 / np.where(there, own.error, 1) ** 2, 0.0)
    b = np.where(there, own.b, 0.0)
    return MetaSums(there.astype(float), w, w * w, w * b, w * b * b)


def agreement(names: Sequence[str], total: MetaSums, joint: Estimate) -> list[Agreement]:
    """Heterogeneity of every coefficient that at least two organisations estimate."""
    several = total.W > 0
    mean = np.where(several, total.B / np.where(several, total.W, 1), joint.x)
    now = joint.regression.ask(mean)
    at = joint.free
    stepped = mean.copy()
    stepped[at] -= np.linalg.solve(now.hessian[np.ix_(at, at)], now.gradient[at])
    found = []
    for j in at.tolist():
        k, W = int(total.k[j]), float(total.W[j])
        if k < 2:
            continue
        Q = max(0.0, float(total.S[j] - total.B[j] ** 2 / W))
        spread = W - float(total.W2[j]) / W
        tau2 = max(0.0, Q - k + 1) / spread if spread > 0 else 0.0
        I2 = max(0.0, 1 - (k - 1) / Q) if Q > 0 else 0.0
        p = chi2_tail(Q, k - 1)
        found.append(Agreement(names[j], k, Q, p, I2, math.sqrt(tau2), float(mean[j]), W**-0.5, float(stepped[j])))
    return found
