"""Tails of the distributions that tests refer to, without SciPy: normal, chi-squared, Student's t and Fisher's F."""

from __future__ import annotations

import math
from statistics import NormalDist

from proxfed.errors import RunError


def normal_tails(z: float) -> float:
    """P(|Z| >= |z|)."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi2_tail(x: float, df: float) -> float:
    """P(X >= x) with df degrees of freedom; 1 without any."""
    if df <= 0 or x <= 0:
        return 1.0
    import torch  # here: predictions need no distribution, and no torch

    half = torch.tensor([df / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def t_tails(t: float, df: float) -> float:
    """P(|T| >= |t|); an infinite df is the normal distribution."""
    if math.isinf(df):
        return normal_tails(t)
    return _beta(df / (df + t * t), df / 2, 0.5)


def f_tail(x: float, df1: float, df2: float) -> float:
    """P(F >= x)."""
    return 1.0 if x <= 0 else _beta(df2 / (df2 + df1 * x), df2 / 2, df1 / 2)


def t_quantile(level: float, df: float = math.inf) -> float:
    """The t with P(|T| <= t) = level: how many standard errors an interval of this level reaches."""
    t = NormalDist().inv_cdf((1 + level) / 2)
    if math.isinf(df):
        return t
    low, high = t, 2 * t
    while t_tails(high, df) > 1 - level:
        low, high = high, 2 * high
    while high - low > 4e-16 * high and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tails(middle, df) > 1 - level else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly below this
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    h = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = h
        for term in (even, odd):
            d, c = 1 / (1 + term * d or tiny), 1 + term / c or tiny
            h *= c * d
        if abs(h - before) <= 1e-16 * abs(h):
            return front * h
    raise RunError(f"the incomplete beta function did not converge at x = {x}, a = {a}, b = {b}")
