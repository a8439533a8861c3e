"""SlowMo: slow momentum on top of local steps.

    K times     y <- y - eta grad f_i(y)                        from y = x
    server      u <- beta u + (x - mean y)/eta,   x <- x - alpha eta u

For beta = 0 it is FedAvg with server step alpha; the effective step is alpha/(1 - beta) times as large.

The base optimiser is SGD. eta is a number, not a schedule, because the server's step contains it.

What travels: one vector up, one down.
Reference: J. Wang, V. Tantia, N. Ballas, M. Rabbat, "SlowMo: Improving Communication-Efficient Distributed SGD with
Slow Momentum", ICLR 2020, arXiv:1910.00643.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import below_one, positive
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    x: Tensor  # the model
    u: Tensor  # slow momentum


@dataclass(frozen=True)
class SlowMo(Star[Stateless, Server]):
    """Local SGD with heavy-ball momentum at the server."""

    eta: FloatOrAuto
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    beta: float = 0.7
    """Slow momentum, in [0, 1)."""
    alpha: float = 1.0
    """Slow step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "alpha")
        local_steps(self, "K")
        below_one(self, "beta")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, 0 * x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, sgd(f, f.spread(x), self.eta, self.K)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        u = self.beta * s.u + (s.x - y) / self.eta
        return Server(s.x - self.alpha * self.eta * u, u)
