"""ProxSkip, in the federated case Scaffnew: the prox, and with it all communication, is skipped most of the time.

    each step   u_i = x_i - gamma (grad f_i(x_i) - c_i)
                with probability p      x_i = prox_{(gamma/p) h}(mean(u_i - (gamma/p) c_i))
                else                    x_i = u_i
                c_i <- c_i + (p/gamma) (x_i - u_i)

All clients share the coin: the number of steps in a round is a function of `seed` and the round, so it need not be
sent. A round is all steps up to the one that communicates, 1/p on average. The joint prox of consensus and h is an
average followed by the prox of h, so a regulariser costs nothing, and the limit is exact. Without it the c_i sum to 0.
For p = 1 it is proximal gradient descent; with gamma = 1/L, p = sqrt(mu/L) it takes as many rounds as an accelerated
method.

Partial participation (`partial`; ours): clients send the change of v_i = u_i - (gamma/p) c_i, and the server takes the
prox of v <- v + share mean(v_i - previous v_i), the mean of the last v_i of all clients, as in FedDR. A client that
returns updates its c_i with the current x. At a solution every v_i = x - (gamma/p) grad f_i(x) is constant.

What travels: one vector up, one down.
Reference: K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022, arXiv:2202.09357.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import trials
from proxfed.errors import require, up_to_one
from proxfed.schedules import positive_or_auto
from proxfed.types import Constants, Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    c: Tensor  # own control variate, as of the last round
    u: Tensor  # own point before the last average


class Server(NamedTuple):
    x: Tensor  # the model
    v: Tensor  # mean of all v_i


@dataclass(frozen=True)
class ProxSkip(Star[Client, Server]):
    """Local gradient steps with control variates and a random number of them between averages."""

    gamma: FloatOrAuto
    """Step size."""
    p: float
    """Probability that a step communicates, in (0, 1]."""
    seed: int = 0
    """Seed of the shared coin."""
    partial: bool = False
    """Whether to allow partial participation."""

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True, step="gamma", exact_partial=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        up_to_one(self, "p")

    def requires(self) -> Needs:
        return self.needs._replace(everyone=not self.partial)

    def largest_prox_step(self) -> float:
        return self.gamma / self.p

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(0 * x, x), Server(x0, x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        c = own.c + self.p / self.gamma * (x - own.u)
        u = f.spread(x)
        for k in range(trials(self.p, self.seed, f.t)):
            u = u - self.gamma * (f.grad(u, k) - c)
        v = u - self.gamma / self.p * c
        return Client(c, u), v - (own.u - self.gamma / self.p * own.c) if self.partial else v

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        v = s.v + share * up if self.partial else up
        return Server(h.prox(v, self.gamma / self.p), v)

    def carried(self, own: Client, s: Server, h: Regulariser, to: ProxSkip) -> tuple[Client, Server]:
        r = to.gamma / self.gamma
        return own._replace(u=s.x.lerp(own.u, r)), s._replace(v=s.x.lerp(s.v, r))

    @classmethod
    def theory(cls, c: Constants, seed: int = 0) -> ProxSkip:
        """The step and probability of the theorem, gamma = 1/L and p = sqrt(mu/L)."""
        L, mu = c.smoothness.L, c.smoothness.mu_min
        require(mu > 0, "ProxSkip: its theory needs strongly convex f_i; give gamma and p, or l2 > 0 in the problem")
        return cls(1 / L, sqrt(mu / L), seed)
