"""FedComposite: composite federated learning with heterogeneous data, by Zhang, Hu and Johansson.

    server sends    x                                                            S = eta_g eta tau
    client          z = prox_{S h}(x),   w = z,   c_i as below
    tau times       w <- w - eta (grad f_i(z_t) + c_i),   z_{t+1} = prox_{(t+1) eta h}(w)
    client sends    G_i = mean of its tau gradients
    server          x <- z - S mean G_i                 = z + eta_g (mean w - z), because sum_i c_i = 0
    client          c_i <- (z - x)/S - G_i

The first term of c_i is the mean gradient of all clients, so local steps follow the global gradient. Communication and
prox are decoupled: nothing that is averaged has seen a prox, and the local prox step grows with t so that z stays the
prox point of w. With full gradients the method converges to the exact solution.

What travels: one vector up, one down. The paper sends w instead of G_i. Both give the same x, but with w the rounding
errors of sum_i c_i add up from round to round, and in single precision the iterates drift away from the solution. A
client keeps a_i = z/S - G_i, which gives c_i = a_i - x/S as soon as the next x arrives; the first round has a_i = x/S
and so c_i = 0.
Reference: J. Zhang, J. Hu, M. Johansson, "Composite Federated Learning with Heterogeneous Data", arXiv:2309.01795,
2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, positive, require
from proxfed.types import Constants, Facts, Local, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    a: Tensor  # the correction c_i, but for the broadcast that completes it


class Server(NamedTuple):
    x: Tensor  # model before its prox


@dataclass(frozen=True)
class FedComposite(Star[Client, Server]):
    """Decoupled prox and communication with drift correction, with a server."""

    eta: float
    """Local step size."""
    tau: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive(self, "eta", "eta_g")
        at_least_one(self, "tau")

    @property
    def S(self) -> float:
        return self.eta_g * self.eta * self.tau

    def largest_prox_step(self) -> float:
        return max(self.tau * self.eta, self.S)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(x0 / self.S)), Server(x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        eta, tau = self.eta, self.tau
        c = own.a - x / self.S
        z0 = f.spread(h.prox(x, self.S))
        w = z = z0
        G = 0 * c
        for t in range(tau):
            g = f.grad(z, t)
            G.add_(g, alpha=1 / tau)
            if t < tau - 1:  # no gradient is taken after the last step
                w = w.sub(g + c, alpha=eta)
                z = h.prox(w, (t + 1) * eta)
        return Client(z0 / self.S - G), G

    def server(self, s: Server, G: Tensor, h: Regulariser, share: float) -> Server:
        return Server(h.prox(s.x, self.S) - self.S * G)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.x, self.S)

    @classmethod
    def theory(cls, c: Constants, tau: int) -> FedComposite:
        """Step sizes of the theorem: S = mu/(150 L^2), eta_g = sqrt(n)."""
        L, mu = c.smoothness.L, c.smoothness.mu_min
        checked = cls(1.0, tau, eta_g=sqrt(c.n))
        require(mu > 0, "FedComposite: its theory needs strongly convex f_i; give eta, or l2 > 0 in the problem")
        return replace(checked, eta=mu / (150 * L**2 * checked.eta_g * tau))
