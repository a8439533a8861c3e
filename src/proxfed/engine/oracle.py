"""f as an algorithm sees it: counted, weighted, and with h inside where the algorithm takes no prox step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from proxfed.regularisers import Zero, subgradient
from proxfed.types import Local, Regulariser


@dataclass
class Work:
    """Evaluations so far, over all clients (and the server)."""

    gradients: int = 0
    proxes: int = 0

    def add(self, *others: Work) -> None:
        self.gradients += sum(other.gradients for other in others)
        self.proxes += sum(other.proxes for other in others)


class Oracle(Local):
    """A Local that counts its gradients.

    scale    (c, 1): multiplies f_i, so that plain averages over a graph become weighted ones; None: 1
    inside   a regulariser whose subgradient joins every gradient, for methods without prox; None: nothing
    """

    def __init__(self, f: Local, work: Work, scale: Tensor | None = None, inside: Regulariser | None = None) -> None:
        self.f, self.work, self.scale, self.inside = f, work, scale, inside
        self.t, self.ids, self.seed = f.t, f.ids, f.seed

    def grad(self, x: Tensor, draw: int) -> Tensor:
        return self._complete(self.f.grad(x, draw), x)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        if self.scale is not None or self.inside is not None:
            return super().descend(y, draws, eta)
        self.work.gradients += y.shape[0] * len(draws)
        return self.f.descend(y, draws, eta)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._complete(self.f.full_grad(x), x)

    def value(self, x: Tensor) -> Tensor:
        return self._whole(self.f.value(x), x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, g = self.f.value_and_grad(x)
        return self._whole(value, x), self._complete(g, x)

    def _whole(self, value: Tensor, x: Tensor) -> Tensor:
        value = value if self.scale is None else value * self.scale[:, 0]
        return value if self.inside is None else value + self.inside.value(x)

    def _complete(self, g: Tensor, x: Tensor) -> Tensor:
        self.work.gradients += g.shape[0]
        g = g if self.scale is None else g * self.scale
        return g if self.inside is None else g + subgradient(self.inside, x)


def counted(h: Regulariser, work: Work, each: int) -> Regulariser:
    """h, counting its proximal steps in `work`; where h = 0 there are none."""
    return h if isinstance(h, Zero) else CountedProx(h, work, each)


@dataclass(frozen=True)
class CountedProx(Regulariser):
    """A Regulariser that counts its proximal steps: one for each row, and `each` for a shared point."""

    h: Regulariser
    work: Work
    each: int
    """Who computes the prox of a shared point: every client of a block, or the one server."""

    @property
    def weak_convexity(self) -> float:
        return self.h.weak_convexity

    @property
    def indicator(self) -> bool:
        return self.h.indicator

    def value(self, x: Tensor) -> Tensor:
        return self.h.value(x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        self.work.proxes += v.shape[0] if v.ndim > 1 else self.each
        return self.h.prox(v, step)
