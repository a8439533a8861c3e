"""What penalties with one weight have in common, and what is left of them when that weight is infinite."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from proxfed.errors import non_negative
from proxfed.regularisers.checks import check_step
from proxfed.types import Regulariser


@dataclass(frozen=True)
class Weighted(Regulariser):
    """h = weight times something."""

    weight: float
    """lambda >= 0."""

    def __post_init__(self) -> None:
        non_negative(self, "weight")

    def with_weight(self, weight: float) -> Self:
        return replace(self, weight=weight)

    def held_at_zero(self, d: int) -> Regulariser:
        return Origin()


@dataclass(frozen=True, eq=False)
class Origin(Regulariser):
    """The indicator of x = 0."""

    free: Tensor | None = None
    """(d,): coordinates that may be anything all the same."""

    @property
    def indicator(self) -> bool:
        return True

    def value(self, x: Tensor) -> Tensor:
        inside = (self.prox(x, 1.0) == x).all(-1)
        return x.new_zeros(inside.shape).masked_fill_(~inside, math.inf)

    def prox(self, v: Tensor, step: float) -> Tensor:
        check_step(self, step)
        return torch.zeros_like(v) if self.free is None else v.masked_fill(~self.free.to(v.device), 0)
