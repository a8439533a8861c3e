"""FedSplit: Peaceman-Rachford splitting between the clients' losses and consensus.

    client      u ~ prox_{s f_i}(2 x - z_i)             by K gradient steps from x
                z_i <- z_i + 2 (u - x)
    server      x <- mean z_i

At a solution z_i = x - s grad f_i(x) and u = x. The steps begin at x, so any number K of them keeps that fixed point.

Partial participation (`partial`; ours): clients send the change of z_i, and x <- x + share mean of it is the mean of
the last z_i of all clients.

What travels: one vector up, one down.
Reference: R. Pathak, M. J. Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization", NeurIPS
2020, arXiv:2005.05238.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd
from proxfed.errors import at_least_one
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    z: Tensor  # the client's contribution to x


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedSplit(Star[Client, Server]):
    """Operator splitting with proximal steps in every client's loss."""

    s: FloatOrAuto
    """Step of the clients' proximal maps."""
    eta: FloatOrAuto
    """Step size of the local solver."""
    K: int
    """Steps of the local solver."""
    partial: bool = False
    """Whether to allow partial participation."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, exact_partial=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive_or_auto(self, "s")
        at_least_one(self, "K")

    def requires(self) -> Needs:
        return self.needs._replace(everyone=not self.partial)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(x0)), Server(x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        u = anchored_sgd(f.grad, f.spread(x), self.eta, self.K, anchor=2 * x - own.z, pull=1 / self.s)
        z = own.z + 2 * (u - x)
        return Client(z), z - own.z if self.partial else z

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + share * up if self.partial else up)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedSplit) -> tuple[Client, Server]:
        return Client(s.x.lerp(own.z, to.s / self.s)), s

    def tied(self, s: float) -> dict[str, float]:
        return {"s": self.K * s}
