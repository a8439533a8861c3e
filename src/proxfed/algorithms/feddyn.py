"""FedDyn: dynamic regularisation, which moves the clients' solutions onto the common one.

    K times     y <- y - eta (grad f_i(y) - g_i + alpha (y - x))        from y = x
    client      g_i <- g_i - alpha (y - x)
    server      s <- s - alpha share mean(y - x),   x <- mean y - s/alpha

s is the mean of the g_i of all clients, also when only a share of them participates. With full participation it is
FedSpeed without its perturbation: x = mean(y - g_i/alpha).

The paper's h is s with the sign turned.

What travels: one vector up, one down.
Reference: D. A. E. Acar, Y. Zhao, R. M. Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based
on Dynamic Regularization", ICLR 2021, arXiv:2111.04263.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd
from proxfed.errors import at_least_one
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    g: Tensor  # own gradient at the last local solution


class Server(NamedTuple):
    x: Tensor  # the model
    s: Tensor  # mean of all g


@dataclass(frozen=True)
class FedDyn(Star[Client, Server]):
    """Local SGD on dynamically regularised losses, averaged by a server."""

    eta: Step
    """Local step size."""
    K: int
    """Local steps of a round."""
    alpha: FloatOrAuto
    """Strength of the regularisation: the local problem has alpha/2 |y - x|^2."""

    needs: ClassVar[Needs] = Needs(composite=False, exact_downlink=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, exact_partial=True)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K")
        positive_or_auto(self, "alpha")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0)), Server(x0, 0 * x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        y = anchored_sgd(f.grad, f.spread(x), at(self.eta, f.t), self.K, anchor=x, pull=self.alpha, shift=-own.g)
        return Client(own.g - self.alpha * (y - x)), y

    def after(self, own: Client, down: Message, up: Message, h: Regulariser) -> Client:
        return Client(own.g - self.alpha * (up - down))

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        mean_g = s.s - self.alpha * share * (y - s.x)
        return Server(y - mean_g / self.alpha, mean_g)

    def tied(self, s: float) -> dict[str, float]:
        return {"alpha": 1 / (self.K * s)}
