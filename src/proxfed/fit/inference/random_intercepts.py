"""Random intercepts: those of organisations are draws from N(b0, tau^2), and tau is estimated.

    y | u ~ the model with scores a'x + b0 + u_i        u_i ~ N(0, tau^2)

Squared loss: restricted maximum likelihood, which is exact. Logistic and Poisson: maximum likelihood by Laplace's
approximation. For a given tau, x and b0 take a few Newton steps (penalised iteratively reweighted least squares, with
the gradient of the volume), and tau is where the derivative of the criterion is 0, found inside a bracket. All of it is
made of sums (fit/own_random.py). Standard errors are those given tau.

The hypothesis tau = 0 lies on the boundary: the likelihood ratio is half 0, half chi-squared with 1 degree of freedom.

References: N. E. Breslow, D. G. Clayton, "Approximate Inference in Generalized Linear Mixed Models", JASA, 1993;
D. Bates, M. Maechler, B. Bolker, S. Walker, "Fitting Linear Mixed-Effects Models Using lme4", Journal of Statistical
Software, 2015; S. G. Self, K.-Y. Liang, "Asymptotic Properties of Maximum Likelihood Estimators and Likelihood Ratio
Tests under Nonstandard Conditions", JASA, 1987.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from proxfed.errors import RunError, require
from proxfed.fit.here import Here
from proxfed.fit.inference.distributions import chi2_tail
from proxfed.fit.inference.estimate import Estimate
from proxfed.fit.inference.joint import joint_estimate
from proxfed.fit.inference.regression import Array, At
from proxfed.fit.inference.reported import reported
from proxfed.fit.inference.result import Inference, RandomIntercepts
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.wald import dispersion
from proxfed.fit.own_random import RANDOM, RandomSums

FEW = 5
"""Organisations below which little is known of tau."""
NEGLIGIBLE = 1e-8
"""tau^2 times the curvature of an average organisation below which tau is 0; its inverse squared is the other end."""
SHORT = 1e-20
"""The squared length of a last Newton step, in standard errors, and ..."""
ROUNDED = 1e-12
"""... of one that does not become shorter, as rounding does not allow it."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The best coefficients for a spread."""

    t: float
    """tau, in units of the standard deviation of the noise."""
    x: Array
    """(d,)"""
    sums: RandomSums
    criterion: float
    """Minus the (restricted) log-likelihood, up to what does not depend on x or t."""
    slope: float
    """Its derivative in log t."""


def mixed(asked: Subject, level: float = 0.95, adjust: str = "none") -> Inference:
    """The same with random intercepts, of tables that lie here."""
    require(asked.name in RANDOM, f"random_intercepts: loss = {asked.name!r} has none; {', '.join(RANDOM)} have")
    here = asked.organisations
    assert isinstance(here, Here)
    shared, names, notes = joint_estimate(asked, "shared", "model")
    found, random, volume = with_random_intercepts(here, shared)
    if len(here.names) < FEW:
        notes.append(f"random intercepts: tau of {len(here.names)} organisations is known badly")
    result = reported(asked, found, dispersion(found), "model", level, adjust, names, "maximum likelihood", notes)
    restricted = found.regression.dispersed
    height = restricted_log_likelihood(found, result.covariance) if restricted else -found.sums.value
    return replace(
        result,
        method="restricted maximum likelihood" if restricted else "Laplace's approximation",
        random=random,
        parameters=result.parameters + 1,
        log_likelihood=height - volume,
        deviance=result.deviance + (0.0 if restricted else 2 * volume),
    )


def with_random_intercepts(here: Here, shared: Estimate) -> tuple[Estimate, RandomIntercepts, float]:
    """(the estimate, its random intercepts, the volume), from the estimate with one intercept for all."""
    k, before = len(here.names), here.traffic.rounds
    require(k > 1, "random intercepts need two organisations or more")
    require(here.own[0].intercept, f"random intercepts are for {', '.join(RANDOM)}")
    none = _criterion(shared, shared.sums.value, shared.sums.hessian, 0.0)
    best = _best(here, shared)
    if best is None or best.criterion >= none:
        return shared, RandomIntercepts(0.0, 0.0, 1.0, dict.fromkeys(here.names, 0.0)), 0.0
    H, S = best.sums.hessian.numpy(), best.sums.value
    sums = At(S, best.sums.gradient.numpy(), H)
    exchanges = shared.exchanges + here.traffic.rounds - before
    found = replace(shared, x=best.x, sums=sums, exchanges=exchanges)
    noise = math.sqrt(dispersion(found))
    ratio = 2 * (none - best.criterion)
    shifts = here.random_shifts(torch.from_numpy(best.x), best.t)
    random = RandomIntercepts(best.t * noise, ratio, 0.5 * chi2_tail(ratio, 1), shifts)
    return found, random, best.sums.volume


def restricted_log_likelihood(found: Estimate, covariance: Array) -> float:
    """Of a linear model, before the volume; `covariance` is that of the coefficients in their units."""
    df = found.residual_df
    phi = found.deviance / df
    spread = np.linalg.slogdet(covariance / phi)[1]
    return float(0.5 * (spread - df * (math.log(2 * math.pi * phi) + 1)))


def _best(here: Here, shared: Estimate) -> Profile | None:
    """Where the criterion is least; None: at t = 0."""
    curvature = float(shared.sums.hessian[-1, -1]) / len(here.names)
    x = shared.x

    def profile(log_t: float) -> Profile:
        nonlocal x
        found = _profile(here, shared, math.exp(log_t), x)
        x = found.x
        return found

    at, wide = -0.5 * math.log(curvature), 0.5 * math.log(1 / NEGLIGIBLE)
    start = at
    one = profile(at)
    step = -1.0 if one.slope > 0 else 1.0
    while True:
        other = profile(at + step)
        if (other.slope > 0) != (one.slope > 0):
            break
        one, at = other, at + step
        if at < start - wide:
            return None
        if at > start + 2 * wide:
            raise RunError("random intercepts: there is no finite estimate of tau; fit with site intercepts")
        step *= 1.5
    return _root(profile, (at, one), (at + step, other))


def _root(profile: Callable[[float], Profile], one: tuple[float, Profile], other: tuple[float, Profile]) -> Profile:
    """Where the slope is 0, between two places at which it has different signs: the Illinois method."""
    (a, at_a), (b, at_b) = one, other
    f, g = at_a.slope, at_b.slope
    found = at_b
    for _ in range(100):
        if abs(b - a) <= 1e-9 or g == f or abs(found.slope) <= 1e-10:
            break
        middle = (a * g - b * f) / (g - f)
        found = profile(middle)
        if (found.slope > 0) != (g > 0):
            a, f = b, g
        else:
            f /= 2
        b, g = middle, found.slope
    return found


def _profile(here: Here, shared: Estimate, t: float, x: Array) -> Profile:
    """Newton steps from x, halved where the criterion would rise."""
    at, x = shared.free, x.copy()
    now = here.random_sums(torch.from_numpy(x), t)
    height, length, last = math.inf, 1.0, math.inf
    step = np.zeros(len(at))
    for _ in range(100):
        if now.value + now.volume > height + 1e-9 * abs(height) and length > 1e-6:
            length /= 2
            x[at] += length * step
            now = here.random_sums(torch.from_numpy(x), t)
            continue
        height, length = now.value + now.volume, 1.0
        H = now.hessian.numpy()[np.ix_(at, at)]
        g = (now.gradient + now.volume_gradient).numpy()[at]
        step = np.linalg.solve(H, g)
        phi = 2 * now.value / shared.residual_df if shared.regression.dispersed else 1.0
        before, last = last, float(step @ g) / phi
        if last <= SHORT or before / 4 <= last <= ROUNDED:
            criterion = _criterion(shared, now.value, now.hessian.numpy(), now.volume)
            return Profile(t, x, now, criterion, t * _slope(shared, now))
        x[at] -= step
        now = here.random_sums(torch.from_numpy(x), t)
    raise RunError("random intercepts: the coefficients did not converge; fit with site intercepts")


def _criterion(shared: Estimate, value: float, hessian: Array, volume: float) -> float:
    if not shared.regression.dispersed:
        return value + volume
    at, df = shared.free, shared.residual_df
    H = hessian[np.ix_(at, at)]
    return float(0.5 * df * math.log(2 * value) + volume + 0.5 * np.linalg.slogdet(H)[1])


def _slope(shared: Estimate, now: RandomSums) -> float:
    """The derivative of the criterion in t, at the best x."""
    if not shared.regression.dispersed:
        return now.slope + now.volume_slope
    at = np.ix_(shared.free, shared.free)
    turn = np.trace(np.linalg.solve(now.hessian.numpy()[at], now.turn.numpy()[at]))
    return float(0.5 * shared.residual_df * now.slope / now.value + now.volume_slope + 0.5 * turn)
