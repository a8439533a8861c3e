"""FedComposite: composite federated learning with heterogeneous data, by Zhang, Hu and Johansson.

    server sends    x                                                            S = eta_g eta tau
    client          z = prox_{S h}(x),   w = z,   c_i as below
    tau times       w <- w - eta (grad f_i(z_t) + c_i),   z_{t+1} = prox_{(t+1) eta h}(w)
    client sends    G_i = mean of its tau gradients
    server          x <- z - S mean G_i                 = z + eta_g (mean w - z), because sum_i c_i = 0
    client          c_i <- (z - x)/S - G_i

The first term of c_i is the mean gradient of all clients, so local steps follow the global gradient. Communication and
prox are decoupled: only vectors before their prox are averaged, and the local prox step grows with t so that z stays
the prox point of w. With full gradients the method converges to the exact solution.

What travels: one vector up, one down. The paper sends w instead of G_i. Both give the same x, but with w the rounding
errors of sum_i c_i add up from round to round, and in single precision the iterates drift away from the solution. A
client keeps a_i = z/S - G_i, which gives c_i = a_i - x/S as soon as the next x arrives; the first round has a_i = x/S
and so c_i = 0.

The paper's two baseline schemes are in naive_composite.py, its theorem in numbers in bounds/. If steps are long and
corrections grow, G_i may be averaged over rounds: FedCEF without compression and with eta < 1 is this method with that
average instead of G_i, and has the same fixed points.

Partial participation (`partial`; ours, the paper has all clients): a client that was absent does not know the last z,
so the server sends g, the mean over all clients of the last G_i that it has received, and a_i = -G_i:

    server sends    x, g                            c_i = g + a_i
    client sends    D_i = G_i - its last G_i        0 before its first round
    server          g <- g + share mean D_i,   x <- z - S g

Absent clients count with their last gradients, as in SAG and EF21. A solution is a fixed point for every participation
pattern, and the limit is exact if each client participates now and then; docs/theory.md has the steps. One vector up,
two down.
Reference: J. Zhang, J. Hu, M. Johansson, "Composite Federated Learning with Heterogeneous Data", arXiv:2309.01795,
2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, positive, require
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Constants, Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    a: Tensor  # the correction c_i without the part from the next broadcast


class Server(NamedTuple):
    x: Tensor  # model before its prox
    g: Tensor  # mean of all G_i


@dataclass(frozen=True)
class FedComposite(Star[Client, Server]):
    """Decoupled prox and communication with drift correction, with a server."""

    eta: FloatOrAuto
    """Local step size."""
    tau: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    partial: bool = False
    """Whether to allow partial participation; sends one more vector down."""

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, exact_partial=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        at_least_one(self, "tau")

    def requires(self) -> Needs:
        return self.needs._replace(everyone=not self.partial)

    def sends(self) -> Sends:
        return self.facts.sends._replace(down=2 if self.partial else 1)

    @property
    def S(self) -> float:
        return self.eta_g * self.eta * self.tau

    def largest_prox_step(self) -> float:
        return max(self.tau * self.eta, self.S)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0 if self.partial else x0 / self.S)), Server(x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.x, s.g) if self.partial else s.x

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        eta, tau = self.eta, self.tau
        x, g = down if self.partial else (down, -down / self.S)
        c = own.a + g
        z0 = f.spread(h.prox(x, self.S))
        w = z = z0
        G = 0 * c
        for t in range(tau):
            g = f.grad(z, t)
            G.add_(g, alpha=1 / tau)
            if t < tau - 1:  # no gradient is taken after the last step
                w = w.sub(g + c, alpha=eta)
                z = h.prox(w, (t + 1) * eta)
        if not self.partial:
            return Client(z0 / self.S - G), G
        D = G + own.a
        return Client(own.a - D), D

    def after(self, own: Client, down: Message, up: Message, h: Regulariser) -> Client:
        return Client(own.a - up if self.partial else h.prox(down, self.S) / self.S - up)

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        g = s.g + share * up if self.partial else up
        return Server(h.prox(s.x, self.S) - self.S * g, g)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedComposite) -> tuple[Client, Server]:
        """Keeps z = prox_{S h}(x) and all c_i."""
        z = self.model(s, h)
        a = own.a if self.partial else own.a + (1 / to.S - 1 / self.S) * z
        return Client(a), s._replace(x=z.lerp(s.x, to.S / self.S))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.x, self.S)

    def shown(self, own: Client, s: Server) -> dict[str, Tensor]:
        """c_i of the next round."""
        return {"c": own.a + (s.g if self.partial else -s.x / self.S)}

    @classmethod
    def theory(cls, c: Constants, tau: int) -> FedComposite:
        """Step sizes of the theorem: S = mu/(150 L^2), eta_g = sqrt(n)."""
        L, mu = c.smoothness.L, c.smoothness.mu_min
        checked = cls(1.0, tau, eta_g=sqrt(c.n))
        require(mu > 0, "FedComposite: its theory needs strongly convex f_i; give eta, or l2 > 0 in the problem")
        return replace(checked, eta=mu / (150 * L**2 * checked.eta_g * tau))
