"""FedAvg, with proximal local steps if there is a regulariser.

    K times     y <- prox_{eta h}(y - eta grad f_i(y))         from y = x
    server      x <- x + eta_g (mean y - x)

With K > 1 and heterogeneous data or a regulariser h it stops at a biased point: it averages points that drifted apart,
which blurs their zeros.

What travels: one vector up, one down.
Reference: B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import proximal_sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import positive
from proxfed.schedules import Step, at, first, positive_step
from proxfed.types import Facts, Local, Needs, Regulariser, Sends, Star, Stateless


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedAvg(Star[Stateless, Server]):
    """Local (proximal) SGD, averaged by a server."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        positive(self, "eta_g")
        local_steps(self, "K")

    def largest_prox_step(self) -> float:
        return first(self.eta)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, proximal_sgd(f, h, f.spread(x), at(self.eta, f.t), self.K)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + self.eta_g * (y - s.x))
