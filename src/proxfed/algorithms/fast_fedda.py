"""Fast-FedDA: dual averaging for strongly convex losses, of gradients together with the points they are taken at.

    point       w(a, e) = prox_{(e/q) h}(-a/q),   q = gamma + e mu/2                            w(-gamma x0, 0) = x0
    K times     a_i <- a_i + grad f_i(w),   e <- e + 1,   w = w(a_i, e),   a_i <- a_i - (mu/2) w
                                                                                        from a_i = a, w = w(a, e)
    server      a <- mean a_i,   e <- e + K
    model       w(a, e)

a is the sum of all gradients minus mu/2 times the sum of all points minus gamma x0. The authors average the two sums
separately; only their difference is ever used, so one vector is sent here. Steps shrink like 1/e, so the error falls
like 1/e as well: exact in the limit, and slow. The authors' code adds the server's point to the sum once more each
round (official_count), which then has (K + 1)/K as many points as e counts; that bias stays.

What travels: one vector up; one vector and the number e down.
Reference: Y. Bao, M. Crawshaw, S. Luo, M. Liu, "Fast Composite Optimization and Statistical Recovery in Federated
Learning", ICML 2022, arXiv:2207.08204.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, positive
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Message, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    a: Tensor  # the weighted sum of gradients and points
    e: Tensor  # local steps so far


@dataclass(frozen=True)
class FastFedDA(Star[Stateless, Server]):
    """Dual averaging for strongly convex losses, with local steps."""

    mu: float
    """Strong convexity of f, or less."""
    gamma: FloatOrAuto
    """Weight of the start: 1/gamma is the first step size."""
    K: int
    """Local steps of a round."""
    official_count: bool = False
    """Count the server's points as the authors' code does, which leaves a bias."""

    needs: ClassVar[Needs] = Needs(exact_downlink=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, numbers_down=1), exact=When(official_count=False), step="")

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        positive(self, "mu")
        at_least_one(self, "K")

    def largest_prox_step(self) -> float:
        return 2 / self.mu

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(-self.gamma * x0, x0.new_zeros(1))

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.a, s.e)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        a, e = f.spread(down[0]), float(down[1])
        w = self._point(a, e, h)
        if self.official_count:
            a = a - self.mu / 2 * w
        for k in range(self.K):
            a = a + f.grad(w, k)
            w = self._point(a, e + k + 1, h)
            a = a - self.mu / 2 * w
        return own, a

    def server(self, s: Server, a: Tensor, h: Regulariser, share: float) -> Server:
        return Server(a, s.e + self.K)

    def carried(self, own: Stateless, s: Server, h: Regulariser, to: FastFedDA) -> tuple[Stateless, Server]:
        """Keeps the model: a changes by x0 times the change of gamma."""
        return own, s._replace(a=s.a + (self.gamma - to.gamma) * self.model(s, h))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return self._point(s.a, float(s.e), h)

    def _point(self, a: Tensor, e: float, h: Regulariser) -> Tensor:
        q = self.gamma + e * self.mu / 2
        return h.prox(-a / q, e / q)

    def tied(self, s: float) -> dict[str, float]:
        return {"gamma": 1 / s}
