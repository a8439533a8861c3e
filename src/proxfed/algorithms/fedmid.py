"""FedMiD: federated mirror descent, here with the Euclidean mirror map.

    K times     y <- prox_{eta h}(y - eta grad f_i(y))          from y = x
    server      x <- prox_{s h}(x + eta_g (mean y - x))         s = eta_g eta K, eta_g eta, or no prox

The authors' code takes the server's prox with step eta_g eta K on top of the clients' (server_prox = "K"); a later
re-implementation takes eta_g eta ("1"), others none, which is FedAvg. All stop at a biased point. As eta goes to 0 this
point converges to the solution with "none" only: a round that shrinks twice solves f + 2 h with "K" and
f + (1 + 1/K) h with "1".

What travels: one vector up, one down.
Reference: H. Yuan, M. Zaheer, S. Reddi, "Federated Composite Optimization", ICML 2021, arXiv:2011.08474.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import proximal_sgd
from proxfed.errors import at_least_one, one_of, positive
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, Stateless


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedMiD(Star[Stateless, Server]):
    """Local proximal SGD, averaged by a server that takes a prox step as well."""

    eta: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    server_prox: str = "K"
    """The server's prox step: 'K' for eta_g eta K (the authors' code), '1' for eta_g eta, or 'none'."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=False)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        at_least_one(self, "K")
        one_of(self, "server_prox", ("K", "1", "none"))

    @property
    def s(self) -> float:
        return self.eta_g * self.eta * {"K": self.K, "1": 1, "none": 0}[self.server_prox]

    def largest_prox_step(self) -> float:
        return max(self.eta, self.s)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, proximal_sgd(f, h, f.spread(x), self.eta, self.K)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        x = s.x + self.eta_g * (y - s.x)
        return Server(x if self.server_prox == "none" else h.prox(x, self.s))
