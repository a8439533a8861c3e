"""A problem that reads samples client by client: a block's f_i come from a problem with only these clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from proxfed.keyed_random import Ids
from proxfed.types import Local

if TYPE_CHECKING:
    from proxfed.problems.empirical_risk import EmpiricalRisk


class Fetched(Local):
    """The clients `ids` in round t; their samples are read at the first use of f."""

    def __init__(self, problem: EmpiricalRisk, t: int, ids: Ids, seed: int) -> None:
        self.problem, self.t, self.ids, self.seed = problem, t, ids, seed

    @cached_property
    def _here(self) -> Local:
        return self.problem.over(self.ids).local(self.t, range(len(self.ids)), self.seed)

    def grad(self, x: Tensor, draw: int) -> Tensor:
        return self._here.grad(x, draw)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        self._here.descend(y, draws, eta)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._here.full_grad(x)

    def value(self, x: Tensor) -> Tensor:
        return self._here.value(x)

    @property
    def l2(self) -> float:
        return self.problem.l2 or 0.0

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return self._here.hessian(x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._here.value_and_grad(x)
