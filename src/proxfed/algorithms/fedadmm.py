"""FedADMM: consensus ADMM in which only some clients take part.

    client      x_i ~ argmin f_i(u) + <z_i, u - x> + eta/2 |u - x|^2            by K gradient steps from its last x_i
                z_i <- z_i + eta (x_i - x),   v_i = x_i + z_i/eta
    server      v <- v + share mean(v_i - previous v_i),   x = prox_{h/eta}(v)

v is the mean over all clients; those that do not take part keep their v_i. With the same local solver it is FedDR with
relaxation 1 and prox step 1/eta, and without regulariser FedPD that never skips.

What travels: one vector up, one down.
Reference: H. Wang, S. Marella, J. Anderson, "FedADMM: A federated primal-dual algorithm allowing partial
participation", CDC 2022, arXiv:2203.15104.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd
from proxfed.errors import at_least_one
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    x: Tensor  # own solution
    z: Tensor  # the dual
    v: Tensor  # the part known to the server


class Server(NamedTuple):
    x: Tensor  # the model
    v: Tensor  # mean of all v


@dataclass(frozen=True)
class FedADMM(Star[Client, Server]):
    """ADMM between the clients' losses and the server's regulariser."""

    eta: FloatOrAuto
    """Penalty: the local problem has eta/2 |u - x|^2; the server's prox step is 1/eta."""
    eta_l: Step
    """Step size of the local solver."""
    K: int
    """Steps of the local solver."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, exact_partial=True, step="eta_l")

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive_step(self, "eta_l")
        at_least_one(self, "K")

    def largest_prox_step(self) -> float:
        return 1 / self.eta

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(x, 0 * x, x), Server(x0, x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        x_i = anchored_sgd(f.grad, own.x, at(self.eta_l, f.t), self.K, anchor=x, pull=self.eta, shift=own.z)
        z = own.z + self.eta * (x_i - x)
        v = x_i + z / self.eta
        return Client(x_i, z, v), v - own.v

    def server(self, s: Server, dv: Tensor, h: Regulariser, share: float) -> Server:
        v = s.v + share * dv
        return Server(h.prox(v, 1 / self.eta), v)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedADMM) -> tuple[Client, Server]:
        r = self.eta / to.eta
        return own._replace(v=s.x.lerp(own.v, r)), s._replace(v=s.x.lerp(s.v, r))

    def tied(self, s: float) -> dict[str, float]:
        return {"eta": 1 / (self.K * s)}
