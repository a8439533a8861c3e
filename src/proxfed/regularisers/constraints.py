"""Indicators of convex sets: the prox is the projection, and the value allows for its rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from proxfed.errors import positive, real, require
from proxfed.regularisers.penalties import check_step
from proxfed.regularisers.thresholds import shifted
from proxfed.types import Regulariser


@dataclass(frozen=True)
class Box(Regulariser):
    """The indicator of low <= x <= high in each coordinate; a bound may be infinite."""

    low: float
    """The smallest allowed coordinate."""
    high: float
    """The largest allowed coordinate."""

    indicator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ok = real(self.low) and real(self.high) and -math.inf <= self.low <= self.high <= math.inf
        require(ok, f"Box: low = {self.low!r} must be a number <= high = {self.high!r}")

    def value(self, x: Tensor) -> Tensor:
        """0 inside, up to 4 eps of each bound, else infinity."""
        eps = 4 * torch.finfo(x.dtype).eps
        low, high = self.low - eps * abs(self.low), self.high + eps * abs(self.high)
        return _zero_or_infinity(((x >= low) & (x <= high)).all(-1), x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v.clamp(self.low, self.high)


@dataclass(frozen=True)
class L2Ball(Regulariser):
    """The indicator of |x|_2 <= radius."""

    radius: float
    """The size of the set, > 0."""

    indicator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, "radius")

    def value(self, x: Tensor) -> Tensor:
        """0 inside, up to 4 sqrt(d) eps of the radius, else infinity."""
        return _zero_or_infinity(vector_norm(x, dim=-1) <= self.radius * (1 + _rounding(x)), x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v / (vector_norm(v, dim=-1, keepdim=True) / self.radius).clamp_min_(1)


@dataclass(frozen=True)
class L1Ball(Regulariser):
    """The indicator of |x|_1 <= radius."""

    radius: float
    """The size of the set, > 0."""

    indicator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, "radius")

    def value(self, x: Tensor) -> Tensor:
        """0 inside, up to 4 sqrt(d) eps of the radius, else infinity."""
        return _zero_or_infinity(vector_norm(x, 1, dim=-1) <= self.radius * (1 + _rounding(x)), x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        inside = vector_norm(v, 1, dim=-1, keepdim=True) <= self.radius
        u, _ = shifted(v.abs(), self.radius)
        return torch.where(inside, v, u.clamp_min_(0).copysign_(v))


@dataclass(frozen=True)
class Simplex(Regulariser):
    """The indicator of x >= 0, sum(x) = radius."""

    radius: float = 1.0
    """The size of the set, > 0."""

    indicator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, "radius")

    def value(self, x: Tensor) -> Tensor:
        """0 inside, up to 4 sqrt(d) eps of the radius, else infinity."""
        slack = self.radius * _rounding(x)
        return _zero_or_infinity(((x.sum(-1) - self.radius).abs() <= slack) & (x >= -slack).all(-1), x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        u, _ = shifted(v, self.radius)
        return u.clamp_min_(0)


def _rounding(x: Tensor) -> float:
    """How far a sum of d rounded terms may be off, relative to its size."""
    return 4 * math.sqrt(x.shape[-1]) * torch.finfo(x.dtype).eps


def _zero_or_infinity(inside: Tensor, x: Tensor) -> Tensor:
    return x.new_zeros(inside.shape).masked_fill_(~inside, math.inf)
