"""Norms of the whole vector, and their like: convex and finite everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softshrink

from proxfed.errors import non_negative, require, whole
from proxfed.regularisers.checks import check_step
from proxfed.regularisers.thresholds import shifted, shrinkage


@dataclass(frozen=True)
class Zero:
    """h = 0: no regularisation."""

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v


@dataclass(frozen=True)
class L1:
    """h(x) = weight * |x|_1: sparse models.

    weight   lambda >= 0
    """

    weight: float

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, 1, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # One pass; v - v.clamp(-s, s) takes twice the time and a second temporary.
        return softshrink(v, step * self.weight)


@dataclass(frozen=True)
class SquaredL2:
    """h(x) = weight / 2 * |x|^2: small models.

    weight   lambda >= 0
    """

    weight: float

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def value(self, x: Tensor) -> Tensor:
        return self.weight / 2 * vector_norm(x, dim=-1).square()

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v / (1 + step * self.weight)


@dataclass(frozen=True)
class L2:
    """h(x) = weight * |x|_2: the whole vector is shrunk, or zero.

    weight   lambda >= 0
    """

    weight: float

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return v * shrinkage(vector_norm(v, dim=-1, keepdim=True), step * self.weight)


@dataclass(frozen=True)
class ElasticNet:
    """h(x) = l1 * |x|_1 + l2 / 2 * |x|^2: sparse, and stable when features are correlated.

    l1   lambda_1 >= 0
    l2   lambda_2 >= 0
    """

    l1: float
    l2: float

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "l1", "l2")

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * vector_norm(x, 1, dim=-1) + self.l2 / 2 * vector_norm(x, dim=-1).square()

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return softshrink(v, step * self.l1).div_(1 + step * self.l2)


@dataclass(frozen=True)
class LInf:
    """h(x) = weight * |x|_inf: the largest coordinates are cut to one common size.

    weight   lambda >= 0
    """

    weight: float

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def value(self, x: Tensor) -> Tensor:
        return self.weight * vector_norm(x, math.inf, dim=-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # v minus its projection on the l1 ball, which is v soft-thresholded by tau: v clipped to [-tau, tau].
        _, tau = shifted(v.abs(), step * self.weight)
        tau = tau.clamp_min_(0)
        return v.clamp(-tau, tau)


@dataclass(frozen=True)
class Nuclear:
    """h(x) = weight * the sum of the singular values of x read as a matrix, row by row: low rank.

    weight   lambda >= 0
    shape    (rows, columns), rows * columns = d; for a convolution (out, in * k * k)
    """

    weight: float
    shape: tuple[int, int]

    weak_convexity: ClassVar[float] = 0.0
    indicator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        non_negative(self, "weight")
        ok = isinstance(self.shape, Sequence) and len(self.shape) == 2 and all(whole(n) and n >= 1 for n in self.shape)
        require(ok, f"Nuclear: shape = {self.shape!r} must be two whole numbers >= 1")

    def value(self, x: Tensor) -> Tensor:
        return self.weight * torch.linalg.svdvals(self._matrices(x)).sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        # Eigenvectors of the Gram matrix would take a third of the time, and half of the digits.
        U, sigma, Vt = torch.linalg.svd(self._matrices(v), full_matrices=False)
        return ((U * (sigma - step * self.weight).clamp_min_(0).unsqueeze(-2)) @ Vt).flatten(-2)

    def _matrices(self, x: Tensor) -> Tensor:
        rows, columns = self.shape
        require(x.shape[-1] == rows * columns, f"Nuclear: shape = {self.shape!r} does not fit d = {x.shape[-1]}")
        return x.unflatten(-1, (rows, columns))
