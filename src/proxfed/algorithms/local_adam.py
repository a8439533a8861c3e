"""Local Adam: FedAvg with local steps of Adam, or with decay > 0 of AdamW, reset in every round.

    K times     g = grad f_i(y)                                         from y = x, m = v = 0;  k = 1, ..., K
                m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
                y <- (1 - eta decay) y - eta (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + epsilon)
    server      x <- x + eta_g (mean y - x)

entry by entry. Clients are stateless, so any of them may participate in any round. Every client scales its coordinates
in its own way: with heterogeneous data their average minimises another function (the paper's objective inconsistency),
so this is for speed, not for exact solutions.

What travels: one vector up, one down.
Reference: J. Wang, Z. Xu, Z. Garrett, Z. Charles, L. Liu, G. Joshi, "Local Adaptivity in Federated Learning:
Convergence and Consistency", 2021, arXiv:2106.02305.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.epochs import Steps, local_steps
from proxfed.errors import below_one, non_negative, positive
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Needs, Regulariser, Sends, Star, Stateless


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class LocalAdam(Star[Stateless, Server]):
    """Local Adam or AdamW, averaged by a server."""

    eta: Step
    """Local step size: about as far as an entry of the model moves in a step."""
    K: Steps
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    beta1: float = 0.9
    """Memory of the gradients, in [0, 1)."""
    beta2: float = 0.999
    """Memory of their squares, in [0, 1)."""
    epsilon: float = 1e-8
    """Size of a gradient's entry below which steps are no longer adapted."""
    decay: float = 0.0
    """Decoupled weight decay, as in AdamW."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        positive(self, "eta_g", "epsilon")
        below_one(self, "beta1", "beta2")
        non_negative(self, "decay")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        eta, y = at(self.eta, f.t), f.spread(x)
        m, v = 0 * y, 0 * y
        for k in range(self.K):
            g = f.grad(y, k)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g.square()
            mean, square = m / (1 - self.beta1 ** (k + 1)), v / (1 - self.beta2 ** (k + 1))
            y = (1 - eta * self.decay) * y - eta * mean / (square.sqrt() + self.epsilon)
        return own, y

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + self.eta_g * (y - s.x))
