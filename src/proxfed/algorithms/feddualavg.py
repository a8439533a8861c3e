"""FedDualAvg: federated dual averaging. It averages vectors before their prox, which keeps the zeros of the model.

    K times     w = prox_{(r eta_g K + k) eta h}(z_i),   z_i <- z_i - eta grad f_i(w)           from z_i = z
    server      z <- z + eta_g (mean z_i - z),   r <- r + 1
    model       prox_{r eta_g K eta h}(z)                                                       r: rounds done

The prox step is the sum of all steps so far. It grows without bound, so h must be convex. With constant eta the method
stops at a point whose distance from the solution is proportional to eta.

What travels: one vector up; one vector and the number r down.
Reference: H. Yuan, M. Zaheer, S. Reddi, "Federated Composite Optimization", ICML 2021, arXiv:2011.08474.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, positive
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    z: Tensor  # x0 minus the steps so far
    r: Tensor  # rounds done


@dataclass(frozen=True)
class FedDualAvg(Star[Stateless, Server]):
    """Local dual averaging, averaged by a server."""

    eta: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(convex=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, numbers_down=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        at_least_one(self, "K")

    def largest_prox_step(self) -> float:
        return inf

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, x0.new_zeros(1))

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.z, s.r)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        z, r = f.spread(down[0]), float(down[1])
        for k in range(self.K):
            w = h.prox(z, (r * self.eta_g * self.K + k) * self.eta)
            z = z - self.eta * f.grad(w, k)
        return own, z

    def server(self, s: Server, z: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.z + self.eta_g * (z - s.z), s.r + 1)

    def carried(self, own: Stateless, s: Server, h: Regulariser, to: FedDualAvg) -> tuple[Stateless, Server]:
        """Keeps the prox step so far, counted in rounds of the new step."""
        return own, s._replace(r=s.r * (self.eta / to.eta))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.z, float(s.r) * self.eta_g * self.K * self.eta)
