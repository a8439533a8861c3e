"""The two baseline schemes of FedComposite's paper, as an ablation of its method.

    server sends    x                                                            S = eta_g eta tau
    client          z = prox_{S h}(x),   w = z
    tau times       w <- w - eta (grad f_i(z) + c_i),   then
                        local_prox="constant"   z = prox_{eta h}(w)
                        local_prox="coupled"    z = w <- prox_{(t+1) eta h}(w)
    server          x <- z_0 - S mean G_i  (constant),   z_0 + eta_g (mean z_tau - z_0)  (coupled)
    client          c_i <- (z_0 - x)/S - G_i,   G_i the mean of its gradients

With a constant local prox step z is not the prox point of w. The coupled scheme is the naive one of section 2: local
steps continue from the prox point, which is then averaged, so that the server cannot recover the mean gradient. Both
are biased, also with full gradients. Only FedComposite's step (t+1) eta on a w before any prox is exact.

What travels: one vector up, one down.
Reference: J. Zhang, J. Hu, M. Johansson, "Composite Federated Learning with Heterogeneous Data", arXiv:2309.01795,
2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, one_of, positive
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, When


class Client(NamedTuple):
    a: Tensor  # the correction c_i without the part from the next broadcast: c_i = a - x/S


class Server(NamedTuple):
    x: Tensor  # model before its prox


@dataclass(frozen=True)
class NaiveComposite(Star[Client, Server]):
    """Local prox steps that do not match the messages: biased baselines for FedComposite."""

    eta: FloatOrAuto
    """Local step size."""
    tau: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    local_prox: str = "coupled"
    """'constant': step eta, only to evaluate gradients; 'coupled': step (t+1) eta, and w continues from it."""

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(tau=1, local_prox="constant"))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        at_least_one(self, "tau")
        one_of(self, "local_prox", ("constant", "coupled"))

    @property
    def S(self) -> float:
        return self.eta_g * self.eta * self.tau

    def largest_prox_step(self) -> float:
        return max(self.tau * self.eta, self.S)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(x0 / self.S)), Server(x0)

    def client(self, own: Client, down: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        eta, tau, coupled = self.eta, self.tau, self.local_prox == "coupled"
        c = own.a - down / self.S
        w = z = z0 = f.spread(h.prox(down, self.S))
        G = 0 * c
        for t in range(tau):
            g = f.grad(z, t)
            G.add_(g, alpha=1 / tau)
            if coupled or t < tau - 1:  # else no gradient is taken after the last step, and no z is sent
                w = w.sub(g + c, alpha=eta)
                z = h.prox(w, (t + 1) * eta if coupled else eta)
                w = z if coupled else w
        return Client(z0 / self.S - G), (z0 - z) / (eta * tau) if coupled else G

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        return Server(h.prox(s.x, self.S) - self.S * up)

    def carried(self, own: Client, s: Server, h: Regulariser, to: NaiveComposite) -> tuple[Client, Server]:
        """Keeps z = prox_{S h}(x) and all c_i."""
        z = self.model(s, h)
        return Client(own.a + (1 / to.S - 1 / self.S) * z), Server(z.lerp(s.x, to.S / self.S))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.x, self.S)
