"""FedCanon: control variates in smooth local steps, and one prox a round, at the server.

    K times     y <- y - alpha (grad f_i(y) + c - c_i)          from y = z
    client      c_i <- mean of its K gradients = c_i - c + (z - y)/(alpha K)
    server      c <- mean c_i,   z <- prox_{beta h}(z - beta c)                 beta = eta_g alpha K

Local steps ignore h: at a solution c is not 0, y leaves z, and for K > 1 the limit has an error proportional to alpha.
Without h it is SCAFFOLD with full participation, for K = 1 proximal gradient descent.

The recursion is a reconstruction from the paper's abstract: no prox in local updates, one on the server per iteration,
control variables against client drift. The start c_i = 0 and the messages in particular are ours.

What travels: one vector up (c_i), two down (z and c).
Reference: Y. Zhou, J. Zhong, X. Shi, G. Wen, X. Yu, "FedCanon: Non-Convex Composite Federated Learning with Efficient
Proximal Operation on Heterogeneous Data", arXiv:2504.11903, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import corrected_sgd
from proxfed.errors import at_least_one, positive
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star, When


class Client(NamedTuple):
    c: Tensor  # own control variate


class Server(NamedTuple):
    z: Tensor  # the model
    c: Tensor  # mean control variate


@dataclass(frozen=True)
class FedCanon(Star[Client, Server]):
    """SCAFFOLD with a proximal step at the server."""

    alpha: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=2), exact=When(K=1), step="alpha")

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")
        positive(self, "eta_g")
        at_least_one(self, "K")

    @property
    def beta(self) -> float:
        return self.eta_g * self.alpha * self.K

    def largest_prox_step(self) -> float:
        return self.beta

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0)), Server(x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.z, s.c)

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        z, c = down
        _, c_i = corrected_sgd(f, f.spread(z), self.alpha, self.K, shift=c - own.c)
        return Client(c_i), c_i

    def after(self, own: Client, down: Message, up: Message, h: Regulariser) -> Client:
        return Client(up)

    def server(self, s: Server, c: Tensor, h: Regulariser, share: float) -> Server:
        return Server(h.prox(s.z - self.beta * c, self.beta), c)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return s.z
