"""SCAFFOLD: control variates correct the drift of local steps.

    K times     y <- y - eta (grad f_i(y) + c - c_i)            from y = x
    client      c_i' = mean of its K gradients = c_i - c + (x - y)/(K eta)          (option II)
    server      x <- x + eta_g mean(y - x),   c <- c + share mean(c_i' - c_i)

share is the fraction of clients that participate, so that c stays the mean of all c_i. At a solution c_i = grad f_i and
c = 0: nothing moves, whatever K is.

With long steps a control variate may grow with the gradients of each round. `averaging` = a < 1 (ours; the eta of
FedCEF) damps it: c_i' = c_i + a (G_i - c_i) with G_i the mean of the K gradients. It then never exceeds the largest G_i
so far and forgets a single large one at the rate 1 - a. Fixed points do not change: c_i' = c_i if and only if
G_i = c_i, for every a > 0.

What travels: two vectors up, two down.
Reference: S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020, arXiv:1910.06378.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import corrected_sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import positive, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    c: Tensor  # own control variate


class Server(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # mean control variate


@dataclass(frozen=True)
class Scaffold(Star[Client, Server]):
    """Local SGD with control variates (option II), averaged by a server."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    eta_g: float = 1.0
    """Server step size."""
    averaging: float = 1.0
    """Step of c_i towards the mean gradient of a round, in (0, 1]; values below 1 damp growing control variates."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=2, down=2), exact=True, exact_partial=True, averaging="averaging")

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        positive(self, "eta_g")
        up_to_one(self, "averaging")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0)), Server(x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.x, s.c)

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Message]:
        x, c = down
        y, G = corrected_sgd(f, f.spread(x), at(self.eta, f.t), self.K, shift=c - own.c)
        c_i = G if self.averaging == 1 else own.c.lerp(G, self.averaging)
        return Client(c_i), (y - x, c_i - own.c)

    def after(self, own: Client, down: Message, up: Message, h: Regulariser) -> Client:
        return Client(own.c + up[1])

    def server(self, s: Server, up: Message, h: Regulariser, share: float) -> Server:
        dx, dc = up
        return Server(s.x + self.eta_g * dx, s.c + share * dc)
