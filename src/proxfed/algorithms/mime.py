"""Mime and MimeLite: local steps that mimic SGD with momentum on all data.

    MimeLite    K times  y <- y - eta ((1 - beta) grad f_i(y) + beta m)                                 from y = x
    Mime        K times  y <- y - eta ((1 - beta) (grad f_i(y) - grad f_i(x) + c) + beta m)
    server      c = mean of the full grad f_i(x),   x <- x + eta_g (mean y - x),   m <- (1 - beta) c + beta m

Both minibatch gradients of Mime are taken on the same minibatch, so its direction at y = x is grad f, and its limit
exact with full participation. MimeLite leaves the correction out and is biased. m is constant during local steps: it is
the momentum of the whole network, not of a client.

What travels: MimeLite two vectors up (y, and the full gradient) and two down (x, m). Mime needs c before its local
steps, and so two exchanges: here they are two rounds, of which the odd ones collect c (one vector up, one down) and the
even ones take the steps (one up; x, m and c down). With partial participation the two have different clients.
Reference: S. P. Karimireddy, M. Jaggi, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "Breaking the centralized
barrier for cross-device federated learning" (Mime), NeurIPS 2021, arXiv:2008.03606.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.epochs import Steps, local_steps
from proxfed.errors import below_one, positive
from proxfed.keyed_random import Key
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star, Stateless, When


class LiteServer(NamedTuple):
    x: Tensor  # the model
    m: Tensor  # momentum


class Server(NamedTuple):
    x: Tensor  # the model
    m: Tensor  # momentum
    c: Tensor  # mean gradient at x
    known: Tensor  # 1 if c is known, else 0


@dataclass(frozen=True)
class MimeLite(Star[Stateless, LiteServer]):
    """Local SGD with the momentum of the whole network."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    beta: float = 0.9
    """Momentum, in [0, 1)."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=2, down=2), exact=When(K=1))

    def __post_init__(self) -> None:
        _check(self)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, LiteServer]:
        return (), LiteServer(x0, 0 * x0)

    def down(self, s: LiteServer, key: Key) -> tuple[LiteServer, Message]:
        return s, (s.x, s.m)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Message]:
        x, m = down
        eta, y = at(self.eta, f.t), f.spread(x)
        for k in range(self.K):
            y = y - eta * ((1 - self.beta) * f.grad(y, k) + self.beta * m)
        return own, (y, f.full_grad(x))

    def server(self, s: LiteServer, up: Message, h: Regulariser, share: float) -> LiteServer:
        y, c = up
        return LiteServer(s.x + self.eta_g * (y - s.x), (1 - self.beta) * c + self.beta * s.m)


@dataclass(frozen=True)
class Mime(Star[Stateless, Server]):
    """Variance-reduced local SGD with the momentum of the whole network."""

    eta: Step
    """Local step size; a schedule counts only every second round."""
    K: Steps
    """Local steps of every second round."""
    beta: float = 0.9
    """Momentum, in [0, 1)."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False, exact_downlink=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=2, on_average=True), exact=True)

    def __post_init__(self) -> None:
        _check(self)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, 0 * x0, 0 * x0, known=x0.new_zeros(1))

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.x, s.m, s.c) if s.known else (s.x,)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        x, *rest = down
        if not rest:
            return own, f.full_grad(x)
        m, c = rest
        eta, y = at(self.eta, f.t // 2), f.spread(x)  # round 2 takes the first steps
        for k in range(self.K):
            y = y - eta * ((1 - self.beta) * (f.grad(y, k) - f.grad(x, k) + c) + self.beta * m)
        return own, y

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        if not s.known:
            return Server(s.x, s.m, c=up, known=s.known + 1)
        return Server(s.x + self.eta_g * (up - s.x), (1 - self.beta) * s.c + self.beta * s.m, s.c, known=0 * s.known)


def _check(method: MimeLite | Mime) -> None:
    positive_step(method, "eta")
    local_steps(method, "K")
    below_one(method, "beta")
    positive(method, "eta_g")
