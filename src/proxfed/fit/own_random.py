"""What one organisation answers about a random intercept: sums over its rows, at coefficients and a spread.

The organisation adds t v to every score, where v is standard normal and its own. At coefficients x (a shared intercept
last) and t, with L the loss of its rows and h its curvature in the intercept, Laplace's approximation of minus the
logarithm of the marginal likelihood is

    min_u { L(x, u) + u^2/(2 t^2) }  +  1/2 log(1 + t^2 h)

The first term is eliminated as an own intercept is (own_profile.py), with 1/t^2 more curvature. The second is the
volume; its gradient needs the third derivative of the loss. Both are sums; u never leaves the organisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.oracle import ALL, Question
from proxfed.fit.own_profile import root
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.own_sums import answer
from proxfed.problems.losses import Logistic, Loss, Poisson, Squared

RANDOM = ("squared", "logistic", "poisson")
"""Losses with random intercepts."""


@dataclass(frozen=True, eq=False)
class RandomSums:
    """Over organisations: penalised loss and volume, with their derivatives in x and in t."""

    value: float
    """min_u { L(x, u) + u^2/(2 t^2) }"""
    gradient: Tensor
    """(d,)"""
    hessian: Tensor
    """(d, d)"""
    turn: Tensor
    """(d, d) the derivative of the Hessian in t at the same u."""
    slope: float
    """The derivative of the value in t."""
    volume: float
    """1/2 log(1 + t^2 h)"""
    volume_gradient: Tensor
    """(d,)"""
    volume_slope: float
    """The derivative of the volume in t."""

    def __add__(self, other: RandomSums) -> RandomSums:
        return RandomSums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @staticmethod
    def numbers(d: int) -> int:
        """Of an answer."""
        return 4 + 2 * d + d * (d + 1)


def random_intercept(own: OwnRows, x: Tensor, t: float, factors: Tensor | None = None) -> float:
    """The u that the organisation adds to every score: its own intercept, shrunken towards the shared one."""
    s = torch.cat([_scores(own, x, rows, A) for rows, A in own.chunks(ALL, 1)])
    w, precision = own.weights(factors), t**-2

    def derivative(u: float) -> tuple[float, float]:
        moved = (s + u)[None, None]
        second = float(own.loss.second(moved, own.b[None])[0, 0, 0] @ w)
        slope = float(own.loss.slope(moved.clone(), own.b[None])[0, 0] @ w)
        return slope + precision * u, second + precision

    return root(derivative)


def random_sums(own: OwnRows, x: Tensor, t: float, factors: Tensor | None = None) -> RandomSums:
    """Of its rows, at x and t > 0."""
    require(own.intercept, "random intercepts are around one that all organisations share")
    u, precision = random_intercept(own, x, t, factors), t**-2
    at = x.clone()
    at[-1] += u
    (found,) = answer(own, [Question(at, order=2)], factors)
    g, H = found.gradient, found.hessian
    assert g is not None
    assert H is not None
    h, edge, third = float(H[-1, -1]), H[-1], _third(own, at, factors)
    total = h + precision
    u_x, u_t = -edge / total, 2 * u * precision / t / total
    outer = torch.outer(edge, edge)
    hessian = H - outer / total
    hessian[-1] = hessian[:, -1] = edge * (precision / total)  # as exact where t is large and the difference is not
    g[-1] = -precision * u
    share = 0.5 / total  # t^2/(1 + t^2 h), halved
    return RandomSums(
        value=found.value + 0.5 * precision * u * u,
        gradient=g,
        hessian=hessian,
        turn=outer * (-2 * precision / t / total**2),
        slope=-precision / t * u * u,
        volume=0.5 * math.log1p(t * t * h),
        volume_gradient=share * (third + third[-1] * u_x),
        volume_slope=t * h / (1 + t * t * h) + share * float(third[-1]) * u_t,
    )


def _scores(own: OwnRows, x: Tensor, rows: slice, A: Tensor) -> Tensor:
    s = A @ x[:-1] + x[-1]
    return s if own.shift is None else s + own.shift[rows]


def _third(own: OwnRows, x: Tensor, factors: Tensor | None) -> Tensor:
    """(d,) sum w l'''(s) a over its rows, with 1 for the intercept."""
    total, w = torch.zeros(own.d, dtype=torch.float64), own.weights(factors)
    for rows, A in own.chunks(ALL, 1):
        c = w[rows] * third_derivative(own.loss, _scores(own, x, rows, A))
        total[:-1] += c @ A
        total[-1] += c.sum()
    return total


def third_derivative(loss: Loss, s: Tensor) -> Tensor:
    """l'''(s), the same for all labels."""
    if isinstance(loss, Poisson):
        return s.exp()
    if isinstance(loss, Logistic):
        p = s.sigmoid()
        return p * (1 - p) * (1 - 2 * p)
    require(isinstance(loss, Squared), f"random intercepts are for {', '.join(RANDOM)}")
    return torch.zeros_like(s)
