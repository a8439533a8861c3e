"""FedSAM and MoFedSAM: local steps that look for flat minima, without and with the server's momentum.

    FedSAM      K times  y <- y - eta g                                 g = grad f_i(y + rho grad/|grad|), from y = x
    MoFedSAM    K times  y <- y - eta (beta g + (1 - beta) m)
                m <- (x - mean y)/(eta K)
    server      x <- x + eta_g (mean y - x)

m is the mean direction of the last round. With rho = 0 FedSAM is FedAvg and MoFedSAM is FedCM; with beta = 1 MoFedSAM
is FedSAM. The limits are biased, by heterogeneous data and by the perturbation.

What travels: one vector up and one down; MoFedSAM sends m too, so two down.
Reference: Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu, "Generalized Federated Learning via Sharpness Aware
Minimization", ICML 2022, arXiv:2206.02618; FedCM: J. Xu, S. Wang, L. Wang, A. C. Yao, "FedCM: Federated Learning with
Client-level Momentum", arXiv:2106.10874, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import gradient, sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import at_least_one, non_negative, positive, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    x: Tensor  # the model


class MovingServer(NamedTuple):
    x: Tensor  # the model
    m: Tensor  # mean direction of the last round


@dataclass(frozen=True)
class FedSAM(Star[Stateless, Server]):
    """Sharpness-aware local SGD, averaged by a server."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    rho: float = 0.1
    """Radius of the perturbation; 0: none."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(K=1, rho=0))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        non_negative(self, "rho")
        positive(self, "eta_g")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, sgd(f, f.spread(x), at(self.eta, f.t), self.K, self.rho)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + self.eta_g * (y - s.x))


@dataclass(frozen=True)
class MoFedSAM(Star[Stateless, MovingServer]):
    """Sharpness-aware local SGD along with the server's last direction."""

    eta: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    beta: float = 0.1
    """Part of the own gradient in a local step, in (0, 1]; the rest is the server's direction."""
    rho: float = 0.1
    """Radius of the perturbation; 0: none."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=2), exact=When(K=1, rho=0))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        up_to_one(self, "beta")
        at_least_one(self, "K")
        non_negative(self, "rho")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, MovingServer]:
        return (), MovingServer(x0, 0 * x0)

    def down(self, s: MovingServer, key: Key) -> tuple[MovingServer, Message]:
        return s, (s.x, s.m)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        x, m = down
        y = f.spread(x)
        for k in range(self.K):
            y = y - self.eta * (self.beta * gradient(f, y, k, self.rho) + (1 - self.beta) * m)
        return own, y

    def server(self, s: MovingServer, y: Tensor, h: Regulariser, share: float) -> MovingServer:
        return MovingServer(s.x + self.eta_g * (y - s.x), (s.x - y) / (self.eta * self.K))
