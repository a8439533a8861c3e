"""FedDR: randomised Douglas-Rachford splitting between losses, consensus and regulariser.

    client      y_i <- y_i + alpha (x - x_i)
                x_i ~ prox_{eta f_i}(y_i)               by K gradient steps from its last x_i
                v_i = 2 x_i - y_i
    server      v <- v + share mean(v_i - previous v_i),   x = prox_{eta h}(v)

v is the mean over all clients; those that do not take part keep their v_i. At a solution y_i = x + eta grad f_i(x) and
x_i = x, a fixed point for every number K of local steps. For alpha = 1 it is FedADMM with penalty 1/eta.

All vectors begin at x0; the authors' code begins with y_i = 0.

What travels: one vector up, one down.
Reference: Q. Tran-Dinh, N. H. Pham, D. T. Phan, L. M. Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms
for Nonconvex Federated Composite Optimization", NeurIPS 2021, arXiv:2103.03452.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd
from proxfed.errors import at_least_one, require
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    x: Tensor  # own solution
    y: Tensor  # the argument of its proximal step
    v: Tensor  # its reflection, the part known to the server


class Server(NamedTuple):
    x: Tensor  # the model
    v: Tensor  # mean of all v


@dataclass(frozen=True)
class FedDR(Star[Client, Server]):
    """Douglas-Rachford splitting with proximal steps in every client's loss."""

    eta: FloatOrAuto
    """Step of all proximal maps."""
    eta_l: Step
    """Step size of the local solver."""
    K: int
    """Steps of the local solver."""
    alpha: float = 1.95
    """Relaxation, in (0, 2)."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, exact_partial=True, step="eta_l")

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive_step(self, "eta_l")
        at_least_one(self, "K")
        require(0 < self.alpha < 2, f"FedDR: alpha = {self.alpha!r} must be in (0, 2)")

    def largest_prox_step(self) -> float:
        return self.eta

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(x, x, x), Server(x0, x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        y = own.y + self.alpha * (x - own.x)
        x_i = anchored_sgd(f.grad, own.x, at(self.eta_l, f.t), self.K, anchor=y, pull=1 / self.eta)
        v = 2 * x_i - y
        return Client(x_i, y, v), v - own.v

    def server(self, s: Server, dv: Tensor, h: Regulariser, share: float) -> Server:
        v = s.v + share * dv
        return Server(h.prox(v, self.eta), v)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedDR) -> tuple[Client, Server]:
        r = to.eta / self.eta
        return Client(own.x, own.x.lerp(own.y, r), s.x.lerp(own.v, r)), s._replace(v=s.x.lerp(s.v, r))

    def tied(self, s: float) -> dict[str, float]:
        return {"eta": self.K * s}
