"""FedMom: Nesterov momentum at the server.

    K times     y <- y - eta grad f_i(y)                        from y = w
    server      v' = w - eta_g (w - mean y),   w <- v' + gamma (v' - v),   v <- v'

For gamma = 0 it is FedAvg. It has the same bias.

What travels: one vector up, one down.
Reference: Z. Huo, Q. Yang, B. Gu, L. Carin, H. Huang, "Faster On-Device Training Using New Federated Momentum
Algorithm", arXiv:2002.02090, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import below_one, positive
from proxfed.keyed_random import Key
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    w: Tensor  # the model, ahead of v
    v: Tensor  # the last average


@dataclass(frozen=True)
class FedMom(Star[Stateless, Server]):
    """Local SGD with Nesterov momentum at the server."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    gamma: float = 0.9
    """Momentum, in [0, 1)."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        below_one(self, "gamma")
        positive(self, "eta_g")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Tensor]:
        return s, s.w

    def client(self, own: Stateless, w: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, sgd(f, f.spread(w), at(self.eta, f.t), self.K)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        v = s.w + self.eta_g * (y - s.w)
        return Server(v + self.gamma * (v - s.v), v)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return s.w
