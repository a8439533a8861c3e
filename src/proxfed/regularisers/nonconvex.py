"""Weakly convex penalties: sparse models whose large coordinates are not shrunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softshrink

from proxfed.errors import non_negative, positive, require
from proxfed.regularisers.penalties import Weighted, check_step


@dataclass(frozen=True)
class MCP(Weighted):
    """The minimax concave penalty: l1 near 0, flat far away, so that large coordinates are not shrunk (Zhang 2010).

    Per coordinate weight * |x| - x^2 / (2 theta) for |x| <= theta * weight, then theta * weight^2 / 2.
    """

    theta: float
    """It is flat beyond theta * weight, > 0; the prox needs step < theta."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "weight")
        positive(self, "theta")

    @property
    def weak_convexity(self) -> float:
        return 1 / self.theta

    def weight_max(self, g: Tensor) -> float:
        return float(vector_norm(g, math.inf))

    def value(self, x: Tensor) -> Tensor:
        m = x.abs().clamp_max(self.theta * self.weight)
        return (m * (self.weight - m / (2 * self.theta))).sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step, self.theta, "theta")
        flat = (self.theta - step) * self.weight
        gain = step / (self.theta - step)

        def unshrunk(v: Tensor) -> Tensor:
            # u = soft(v, step * weight) grows by u * gain up to |u| = flat, where it is v again. No masks:
            # torch.where over comparisons takes several times as long.
            u = softshrink(v, step * self.weight)
            return u.add_(u.clamp(-flat, flat), alpha=gain)

        return _in_pieces(unshrunk, v)


@dataclass(frozen=True)
class SCAD(Weighted):
    """The smoothly clipped absolute deviation: l1 up to weight, flat from a * weight on (Fan and Li 2001).

    Per coordinate weight * |x| for |x| <= weight, then (2 a weight |x| - x^2 - weight^2) / (2 (a - 1)) up to
    a * weight, then weight^2 (a + 1) / 2.
    """

    a: float = 3.7
    """It is flat beyond a * weight, a > 2; the prox needs step < a - 1."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "weight")
        positive(self, "a")
        require(self.a > 2, f"SCAD: a = {self.a!r} must be > 2")

    @property
    def weak_convexity(self) -> float:
        return 1 / (self.a - 1)

    def weight_max(self, g: Tensor) -> float:
        return float(vector_norm(g, math.inf))

    def value(self, x: Tensor) -> Tensor:
        m = x.abs().clamp_max(self.a * self.weight)
        return (self.weight * m - (m - self.weight).clamp_min(0).square() / (2 * (self.a - 1))).sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step, self.a - 1, "a - 1")
        flat = (self.a - 1 - step) * self.weight
        gain = step / (self.a - 1 - step)

        def unshrunk(v: Tensor) -> Tensor:
            # As for MCP, but the growth starts at |u| = weight; at |u| = weight + flat the prox is v again.
            u = softshrink(v, step * self.weight)
            return u.add_(softshrink(u, self.weight).clamp_(-flat, flat), alpha=gain)

        return _in_pieces(unshrunk, v)


def _in_pieces(f: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """f(v) for an elementwise f with temporaries: a large v in pieces of 2^19 numbers, so that they stay in cache."""
    pieces = v.numel() >> 19
    if pieces < 2:
        return f(v)
    out = torch.empty_like(v)
    for part, result in zip(v.chunk(pieces, -1), out.chunk(pieces, -1), strict=True):
        result.copy_(f(part))
    return out
