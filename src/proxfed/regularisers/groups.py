"""Penalties on groups of coordinates, which are kept or zero together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softshrink

from proxfed.errors import at_least_one, non_negative, real, require, whole
from proxfed.regularisers.penalties import Origin, Weighted, check_step
from proxfed.regularisers.thresholds import shrinkage
from proxfed.types import Regulariser


@dataclass(frozen=True)
class GroupLasso(Weighted):
    """h(x) = weight * sum over groups g of w_g * |x_g|_2: whole groups are kept or zero."""

    size: int | None = None
    """Groups are consecutive runs of this many coordinates; it divides d."""
    labels: tuple[int, ...] | None = None
    """Instead of size: the group of each coordinate, any whole numbers."""
    group_weights: tuple[float, ...] | None = None
    """w_g >= 0, in order of position (size) or of label (labels); sqrt(|g|) if not given."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "weight")
        _check_groups(self, self.size, self.labels, self.group_weights)

    def value(self, x: Tensor) -> Tensor:
        norms = self._groups.norms(x)
        return self.weight * (self._weights(norms) * norms).sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        norms = self._groups.norms(v)
        return self._groups.times(v, shrinkage(norms, step * self.weight * self._weights(norms)))

    def weight_max(self, g: Tensor) -> float:
        """The smallest weight for which all groups with w_g > 0 are zero at this gradient."""
        norms = self._groups.norms(g)
        weights = self._weights(norms).expand_as(norms)
        some = weights > 0
        return float((norms[some] / weights[some]).max()) if bool(some.any()) else 0.0

    def held_at_zero(self, d: int) -> Origin:
        """Groups with weight 0 are not penalised."""
        ones = torch.ones(d, dtype=torch.float64)
        norms = self._groups.norms(ones)
        return Origin(self._groups.times(ones, (self._weights(norms).expand_as(norms) == 0).to(ones)) == 1)

    def with_labels(self, labels: tuple[int, ...]) -> GroupLasso:
        """The same with other groups."""
        return replace(self, size=None, labels=labels)

    @cached_property
    def _groups(self) -> _Runs | _Labelled:
        return _Labelled(self.labels or ()) if self.size is None else _Runs(self.size)

    def _weights(self, norms: Tensor) -> Tensor:
        if self.group_weights is None:
            return self._groups.sizes.sqrt().to(norms)
        given, groups = len(self.group_weights), norms.shape[-1]
        require(given == groups, f"groups: {given} group_weights do not fit {groups} groups")
        return norms.new_tensor(self.group_weights)


@dataclass(frozen=True)
class SparseGroup(Regulariser):
    """h(x) = l1 * |x|_1 + weight * sum over groups g of w_g * |x_g|_2: few groups, and few coordinates in each."""

    l1: float
    """lambda_1 >= 0."""
    weight: float
    """lambda_2 >= 0, the weight of the groups."""
    size: int | None = None
    """Groups are consecutive runs of this many coordinates; it divides d."""
    labels: tuple[int, ...] | None = None
    """Instead of size: the group of each coordinate, any whole numbers."""
    group_weights: tuple[float, ...] | None = None
    """w_g >= 0, in order of position (size) or of label (labels); sqrt(|g|) if not given."""

    thresholds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative(self, "l1", "weight")
        _check_groups(self, self.size, self.labels, self.group_weights)

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * vector_norm(x, 1, dim=-1) + self._group_lasso.value(x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return self._group_lasso.prox(softshrink(v, step * self.l1), step)

    def with_weight(self, weight: float) -> SparseGroup:
        """The same with this weight of the groups; l1 does not change."""
        return replace(self, weight=weight)

    def weight_max(self, g: Tensor) -> float:
        """The smallest weight of the groups for which x = 0, at this l1."""
        all_weighted = self.group_weights is None or min(self.group_weights) > 0
        require(all_weighted, "SparseGroup: a group with weight 0 is zero because of l1 or not at all")
        return self._group_lasso.weight_max(softshrink(g, self.l1))

    def held_at_zero(self, d: int) -> Origin:
        return Origin()

    def with_labels(self, labels: tuple[int, ...]) -> SparseGroup:
        """The same with other groups."""
        return replace(self, size=None, labels=labels)

    @cached_property
    def _group_lasso(self) -> GroupLasso:
        return GroupLasso(self.weight, self.size, self.labels, self.group_weights)


def _check_groups(
    h: Any, size: int | None, labels: tuple[int, ...] | None, group_weights: tuple[float, ...] | None
) -> None:
    name = type(h).__name__
    got = "neither" if size is None else "both"
    require((size is None) != (labels is None), f"{name}: needs one of size and labels, and got {got}")
    if size is not None:
        at_least_one(h, "size")
    if labels is not None:
        wrong = [label for label in labels if not whole(label)]
        require(len(labels) > 0 and not wrong, f"{name}: labels = {wrong!r} must be whole numbers, one per coordinate")
    if group_weights is not None:
        bad = [w for w in group_weights if not (real(w) and 0 <= w < math.inf)]
        require(not bad, f"{name}: group_weights = {bad!r} must be finite numbers >= 0")


class _Runs:
    """Groups of equal size, one after the other: a reshape."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sizes = torch.tensor(float(size), dtype=torch.float64)

    def norms(self, x: Tensor) -> Tensor:
        """|x_g|_2 of each group: (..., d) -> (..., groups)."""
        require(x.shape[-1] % self.size == 0, f"groups: size = {self.size} does not divide d = {x.shape[-1]}")
        return vector_norm(x.unflatten(-1, (-1, self.size)), dim=-1)

    def times(self, x: Tensor, factors: Tensor) -> Tensor:
        """Each group of x times its factor."""
        return (x.unflatten(-1, (-1, self.size)) * factors.unsqueeze(-1)).flatten(-2)


class _Labelled:
    """Groups of coordinates with the same label, in order of label."""

    def __init__(self, labels: tuple[int, ...]) -> None:
        _, self.index, counts = torch.unique(torch.tensor(labels), return_inverse=True, return_counts=True)
        self.sizes = counts.double()

    def norms(self, x: Tensor) -> Tensor:
        """|x_g|_2 of each group: (..., d) -> (..., groups)."""
        given, d = len(self.index), x.shape[-1]
        require(given == d, f"groups: {given} labels do not fit d = {d}")
        squares = x.new_zeros(*x.shape[:-1], len(self.sizes)).scatter_add(-1, self._index(x), x.square())
        # The square root has an infinite slope at 0; the norm has the subgradient 0 there.
        return torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)

    def times(self, x: Tensor, factors: Tensor) -> Tensor:
        """Each group of x times its factor."""
        return factors.gather(-1, self._index(x)).mul_(x)

    def _index(self, x: Tensor) -> Tensor:
        return self.index.to(x.device).expand(x.shape)
