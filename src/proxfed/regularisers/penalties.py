"""Convex, finite penalties of the whole vector, a weight times a norm or similar; and the weights 0 and infinity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softshrink

from proxfed.errors import InputError, non_negative, require, whole
from proxfed.regularisers.thresholds import shifted, shrinkage
from proxfed.types import Regulariser


def check_step(h: object, step: float, below: float = math.inf, bound: str = "infinity") -> None:
    """Requires 0 <= step < below, which the message calls `bound`."""
    if not 0 <= step < below:
        limit = bound if below == math.inf else f"{bound} = {below!r}"
        raise InputError(f"{type(h).__name__}: step = {step!r} must be >= 0 and < {limit}")


@dataclass(frozen=True)
class Zero(Regulariser):
    """h = 0: no regularisation."""

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v


@dataclass(frozen=True, eq=False)
class Origin(Regulariser):
    """The indicator of x = 0."""

    free: Tensor | None = None
    """(d,): the coordinates that are not penalised."""

    @property
    def indicator(self) -> bool:
        return True

    def value(self, x: Tensor) -> Tensor:
        inside = (self.prox(x, 1.0) == x).all(-1)
        return x.new_zeros(inside.shape).masked_fill_(~inside, math.inf)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return torch.zeros_like(v) if self.free is None else v.masked_fill(~self.free.to(v.device), 0)


@dataclass(frozen=True)
class Weighted(Regulariser):
    """h = weight times a fixed function."""

    weight: float
    """lambda >= 0."""

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def with_weight(self, weight: float) -> Self:
        return replace(self, weight=weight)

    def held_at_zero(self, d: int) -> Regulariser:
        return Origin()


@dataclass(frozen=True)
class L1(Weighted):
    """h(x) = weight * |x|_1: sparse models."""

    thresholds: ClassVar[bool] = True

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, 1, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # One pass; v - v.clamp(-s, s) takes twice the time and a second temporary.
        return softshrink(v, step * self.weight)

    def weight_max(self, g: Tensor) -> float:
        return float(vector_norm(g, math.inf))


@dataclass(frozen=True)
class SquaredL2(Weighted):
    """h(x) = weight / 2 * |x|^2: small models."""

    def value(self, x: Tensor) -> Tensor:
        return self.weight / 2 * vector_norm(x, dim=-1).square()

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v / (1 + step * self.weight)


@dataclass(frozen=True)
class L2(Weighted):
    """h(x) = weight * |x|_2: the whole vector is shrunk or zero."""

    thresholds: ClassVar[bool] = True

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v * shrinkage(vector_norm(v, dim=-1, keepdim=True), step * self.weight)

    def weight_max(self, g: Tensor) -> float:
        return float(vector_norm(g))


@dataclass(frozen=True)
class ElasticNet(Regulariser):
    """h(x) = l1 * |x|_1 + l2 / 2 * |x|^2: sparse, and stable when features are correlated."""

    l1: float
    """lambda_1 >= 0."""
    l2: float
    """lambda_2 >= 0."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "l1", "l2")

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * vector_norm(x, 1, dim=-1) + self.l2 / 2 * vector_norm(x, dim=-1).square()

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return softshrink(v, step * self.l1).div_(1 + step * self.l2)

    def with_weight(self, weight: float) -> ElasticNet:
        """The same with this l1; l2 does not change."""
        return replace(self, l1=weight)

    def weight_max(self, g: Tensor) -> float:
        """Of l1."""
        return float(vector_norm(g, math.inf))

    def held_at_zero(self, d: int) -> Origin:
        return Origin()


@dataclass(frozen=True)
class LInf(Weighted):
    """h(x) = weight * |x|_inf: the largest coordinates are cut to one common size."""

    thresholds: ClassVar[bool] = True

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, math.inf, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # v minus its projection on the l1 ball, which is v soft-thresholded by tau: v clipped to [-tau, tau].
        _, tau = shifted(v.abs(), step * self.weight)
        tau = tau.clamp_min_(0)
        return v.clamp(-tau, tau)

    def weight_max(self, g: Tensor) -> float:
        return float(vector_norm(g, 1))


@dataclass(frozen=True)
class Nuclear(Weighted):
    """h(x) = weight * the sum of the singular values of x read as a matrix, row by row: low rank."""

    shape: tuple[int, int]
    """(rows, columns), rows * columns = d; for a convolution (out, in * k * k)."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "weight")
        ok = isinstance(self.shape, Sequence) and len(self.shape) == 2 and all(whole(n) and n >= 1 for n in self.shape)
        require(ok, f"Nuclear: shape = {self.shape!r} must be two whole numbers >= 1")

    def value(self, x: Tensor) -> Tensor:
        return self.weight * torch.linalg.svdvals(self._matrices(x)).sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # Eigenvectors of the Gram matrix would take a third of the time, but lose half of the digits.
        U, sigma, Vt = torch.linalg.svd(self._matrices(v), full_matrices=False)
        return ((U * (sigma - step * self.weight).clamp_min_(0).unsqueeze(-2)) @ Vt).flatten(-2)

    def weight_max(self, g: Tensor) -> float:
        return float(torch.linalg.matrix_norm(self._matrices(g), 2))

    def _matrices(self, x: Tensor) -> Tensor:
        rows, columns = self.shape
        require(x.shape[-1] == rows * columns, f"Nuclear: shape = {self.shape!r} does not fit d = {x.shape[-1]}")
        return x.unflatten(-1, (rows, columns))
