"""What regularisers have in common: the check of a prox step, one weight, and what an infinite weight leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from proxfed.errors import InputError, non_negative
from proxfed.types import Regulariser


def check_step(h: object, step: float, below: float = math.inf, bound: str = "infinity") -> None:
    """0 <= step < below, which the message calls `bound`."""
    if not 0 <= step < below:
        limit = bound if below == math.inf else f"{bound} = {below!r}"
        raise InputError(f"{type(h).__name__}: step = {step!r} must be >= 0 and < {limit}")


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
