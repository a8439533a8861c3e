"""FedCEF: composite federated learning with a compressed uplink, error feedback and control variates.

    server sends    zt
    client          c = (z - zt)/beta,  z <- prox_{beta h}(zt),  w = x = z                  beta = eta_g alpha K
    K times         w <- w - alpha (grad f_i(x) + c - c_i),  x <- prox_{(k+1) alpha h}(w)
                    u = mean of the K gradients
                    v_i <- (1 - eta) v_i + eta u,   D_i = C(v_i - c_i),   c_i <- c_i + D_i
    client sends    D_i
    server          c <- c + mean D_i,   zt <- z - beta c,   z = prox_{beta h}(zt)

The downlink is the model *before* its prox, from which both sides compute the same z and clients read c, so one vector
carries two. The server keeps its own c as the exact mean of the c_i: a client's c differs from it by the
rounding of one subtraction, about eps |z|/beta, which does not accumulate over rounds.

It begins at z = prox_{beta h}(x0). The paper begins at any z, but all its later z are prox points, and the broadcast
vector can only encode prox points. From x0 + beta u with a subgradient u of h at x0 it begins at x0 itself; from x0 = 0
with a norm as h the two are the same.

Partial participation (`partial`; ours, the paper's Algorithm 1 has all clients): a client that was absent does not know
the last z, so the server sends c beside zt, and

    server          c <- c + share mean D_i,   zt <- z - beta c

Absent clients count with their last c_i at the server, as in EF21, and c is still the mean of all c_i. A solution is a
fixed point for every participation pattern, and the limit is exact if each client participates now and then;
docs/theory.md has the steps.

If alpha L is about 1 and the data are heterogeneous, control variates may grow until the run diverges, which is
reported. Fixed points are the same for every eta, and eta < 1 averages c_i over rounds: on the paper's MNIST
(alpha = 0.1, K = 10, Dir(0.5), the top 10 %) it diverges with eta = 0.3, 0.5 and 1 and is stable with 0.1. Half the
step or clipped gradients help as well (docs/results.md).

What travels: C(d) up, one vector down; two of them if `partial`. With C the identity and eta = 1 this is FedComposite.
Reference: P. Qiu, C. Ouyang, Y. Xiong, K. You, W. Liu, Y. Shi, "Compressed Proximal Federated Learning for Non-Convex
Composite Optimization on Heterogeneous Data", arXiv:2603.07654, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.compressors.contractive import contraction
from proxfed.errors import at_least_one, positive, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import (
    Compressor,
    Constants,
    Facts,
    FloatOrAuto,
    Local,
    Message,
    Needs,
    Packed,
    Regulariser,
    Sends,
    Star,
)


class Client(NamedTuple):
    c: Tensor  # own control variate: the server's estimate of v
    v: Tensor  # own gradient estimate
    z: Tensor  # model of the last round; zero columns if `partial`, since c is sent


class Server(NamedTuple):
    zt: Tensor  # model before its prox
    c: Tensor  # mean control variate


@dataclass(frozen=True)
class FedCEF(Star[Client, Server]):
    """Decoupled prox, error feedback, control variates and a pre-proximal downlink, with a server."""

    alpha: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    eta: float = 1.0
    """Momentum of the gradient estimate, in (0, 1]; 1: none; 0.1 if control variates grow."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""
    partial: bool = False
    """Whether to allow partial participation; sends one more vector down."""

    needs: ClassVar[Needs] = Needs(everyone=True, contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, compressed=("up",)), exact=True, exact_partial=True, step="alpha", averaging="eta"
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")
        positive(self, "eta_g")
        at_least_one(self, "K")
        up_to_one(self, "eta")

    def requires(self) -> Needs:
        return self.needs._replace(everyone=not self.partial)

    def sends(self) -> Sends:
        return self.facts.sends._replace(down=2 if self.partial else 1)

    @property
    def beta(self) -> float:
        return self.eta_g * self.alpha * self.K

    def largest_prox_step(self) -> float:
        return max(self.K * self.alpha, self.beta)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(c=0 * x, v=0 * x, z=x[:, :0] if self.partial else x), Server(zt=x0, c=0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.zt, s.c) if self.partial else s.zt

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        alpha, K = self.alpha, self.K
        zt, c = down if self.partial else (down, (own.z - down) / self.beta)
        z = f.spread(h.prox(zt, self.beta))
        w = x = z
        u, shift = 0 * own.c, c - own.c
        for k in range(K):
            g = f.grad(x, k)
            u.add_(g, alpha=1 / K)
            if k < K - 1:  # no gradient is taken after the last step
                w = w.sub(g + shift, alpha=alpha)
                x = h.prox(w, (k + 1) * alpha)
        v = (1 - self.eta) * own.v + self.eta * u
        D = self.compressor(v - own.c, f.key)
        return Client(own.c + D.dense, v, own.z if self.partial else z), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        c = s.c + share * D
        return Server(h.prox(s.zt, self.beta) - self.beta * c, c)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedCEF) -> tuple[Client, Server]:
        """Keeps prox_{beta h}(zt) and the clients' c."""
        z, r = self.model(s, h), to.beta / self.beta
        zt = z.lerp(s.zt, r)
        known = own.z if self.partial else zt + r * (own.z - s.zt)
        return own._replace(z=known), s._replace(zt=zt)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.zt, self.beta)

    def shown(self, own: Client, s: Server) -> dict[str, Tensor]:
        """The part of v that is not sent yet; it goes to zero with the compression error."""
        return {"unsent": own.v - own.c}

    @classmethod
    def theory(cls, c: Constants, K: int, eta: float = 1.0, compressor: Compressor = Identity()) -> FedCEF:
        """Step sizes of the convergence theorem: far smaller, with a far larger eta_g, than works in practice."""
        checked = cls(1.0, K, eta=eta, compressor=compressor)
        L, q = c.smoothness.L, sqrt(contraction(compressor, c.d, cls.__name__))
        beta = min(eta**2, (1 - q) ** 2) / (25 * L)
        eta_g = sqrt(16 * (1 - q) ** 2 + 161 * eta**2) / (5 * eta * (1 - q))
        return replace(checked, alpha=min(beta / (eta_g * K), 1 / (8 * K * L)), eta_g=eta_g)
