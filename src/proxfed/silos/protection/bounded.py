"""Keeps local steps within limits.norm, which a large step, or many steps, would exceed.

Far out, a gradient consists of the few rows whose loss still bends there. The coordinator's vectors are checked on
arrival (policy.check_model); this checks every model at which a client evaluates its rows.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from proxfed.errors import RunError
from proxfed.types import Local


class Bounded(Local):
    """f restricted to a ball. If a client would leave it, its round fails, which limits.failures counts."""

    def __init__(self, f: Local, most: float) -> None:
        self.f, self.most = f, most
        self.t, self.ids, self.seed = f.t, f.ids, f.seed

    def _within(self, x: Tensor) -> Tensor:
        if not bool((x.detach().double().norm(dim=-1) <= self.most).all()):
            raise RunError(f"a local model has a larger norm than limits.norm = {self.most:g}")
        return x

    def full_grad(self, x: Tensor) -> Tensor:
        return self.f.full_grad(self._within(x))

    def value(self, x: Tensor) -> Tensor:
        return self.f.value(self._within(x))

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.f.value_and_grad(self._within(x))

    def grad(self, x: Tensor, draw: int) -> Tensor:
        return self.f.grad(self._within(x), draw)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        for k in range(len(draws)):
            self.f.descend(self._within(y), draws[k : k + 1], eta)

    @property
    def l2(self) -> float:
        return self.f.l2

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return self.f.hessian(self._within(x))

    def spread(self, x: Tensor) -> Tensor:
        return self.f.spread(x)
