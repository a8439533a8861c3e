"""DFedADMM: the sequence w^t of Theorem 1 and its right-hand side.

    w^t = mean x^t + ((1 - g)/g) (mean x^t - mean x^{t-1}),     g = 1 - (1 - eta_l/lam)^K,     x^{-1} = x^0
    (1/T) sum_{t < T} |grad f(w^t)|^2  <=  (f(w^0) - f*)/(lam kappa T) + ...,     kappa = 1/2 - 1152 (L eta_l K)^2

It is for the old dual, with which w^t takes gradient steps (T02d), and one fixed graph. It needs bounds that hold
everywhere: B of |grad f_i| (1 for logistic regression on rows of norm 1 without l2) and sigma_g^2 of the mean of
|grad f_i - grad f|^2 (at most B^2). sigma_l^2, the variance of minibatch gradients, can only be estimated.
"""

from __future__ import annotations

from torch import Tensor

from proxfed.algorithms.dfedadmm import DFedADMM
from proxfed.errors import InputError, require
from proxfed.types import Constants


def auxiliary(a: DFedADMM, mean: Tensor, before: Tensor) -> Tensor:
    """w^t from the means of x^t and x^{t-1}."""
    g = 1 - (1 - _one_step(a) / a.length) ** a.K
    return mean + (1 - g) / g * (mean - before)


def theorem(a: DFedADMM, c: Constants, gap: float, B: float, sigma_g: float, sigma_l: float = 0.0) -> float:
    """The right-hand side after `c.rounds` rounds, where gap is f(w^0) - f*; rho > 0 adds its last term."""
    eta, lam, L = _one_step(a), a.length, c.smoothness.L
    fits = a.dual == "old" and 96 * a.K * L * eta <= 1 + 1e-12 and a.K * eta >= lam * (1 - 1e-12)
    require(fits, "DFedADMM: the theorem is for the old dual, eta_l <= 1/(96 K L) and K >= lam/eta_l")
    steps, seen, apart = (L * eta * a.K) ** 2, sigma_l**2 + B**2, (1 - c.psi) ** 2
    kappa = 0.5 - 1152 * steps
    wide = 3 * sigma_g**2 + 2 * sigma_l**2
    return (
        gap / (lam * c.rounds)
        + 96 * steps * (wide + B**2)
        + 3 * (lam * L) ** 2 * (1 + 384 * steps) * seen
        + L * lam / 2 * seen
        + 96 * steps * (1 + 192 * steps) * (wide + 4 * B**2) / apart
        + 6 * (lam * L) ** 2 * (1 + 192 * steps) * seen / apart
        + 6 * a.rho**2 * lam * L**2 * seen
    ) / kappa


def _one_step(a: DFedADMM) -> float:
    if callable(a.eta_l):
        raise InputError(f"DFedADMM: its analysis is for a step that is a number, not eta_l = {a.eta_l!r}")
    return float(a.eta_l)
