"""SCALLION and SCAFCOM: SCAFFOLD with one compressed vector up.

    K times     y <- y - eta (grad f_i(y) + c - c_i)            from y = x
    client      u = mean of its K gradients
    SCALLION    D_i = C(alpha (u - c_i))                                                C unbiased
    SCAFCOM     v_i <- (1 - beta) v_i + beta u,   D_i = C(v_i - c_i)                    C contractive
    client      c_i <- c_i + D_i
    server      x <- x - eta_g eta K (c + mean D_i),   c <- c + share mean D_i

SCAFFOLD sends y - x and the change of c_i, but the first follows from the second. Both methods are SCAFFOLD for C the
identity and alpha = 1, beta = 1. A small alpha tames the noise of an unbiased compressor, a small beta that of
stochastic gradients; both slow down x and c alike. SCAFCOM is FedCEF for h = 0, except for the downlink.

What travels: C(d) up, two vectors down.
Reference: X. Huang, P. Li, X. Li, "Stochastic Controlled Averaging for Federated Learning with Communication
Compression", ICLR 2024, arXiv:2308.08165.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import corrected_sgd
from proxfed.compressors import Identity
from proxfed.errors import at_least_one, positive, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Local, Message, Needs, Packed, Regulariser, Sends, Star


class Control(NamedTuple):
    c: Tensor  # own control variate


class Client(NamedTuple):
    c: Tensor  # own control variate: the server's estimate of v
    v: Tensor  # own gradient estimate


class Server(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # mean control variate


@dataclass(frozen=True)
class Scallion(Star[Control, Server]):
    """SCAFFOLD with an unbiased compressor on the uplink."""

    eta: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    compressor: Compressor = Identity()
    """Unbiased compressor of the uplink."""
    alpha: float = 0.1
    """Part of the change of a control variate that is sent, in (0, 1]."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False, unbiased=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=2, compressed=("up",)), exact=True, exact_partial=True, averaging="alpha"
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        up_to_one(self, "alpha")
        at_least_one(self, "K")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Control, Server]:
        return Control(f.spread(0 * x0)), Server(x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.x, s.c)

    def client(self, own: Control, down: Message, f: Local, h: Regulariser) -> tuple[Control, Packed]:
        x, c = down
        _, u = corrected_sgd(f, f.spread(x), self.eta, self.K, shift=c - own.c)
        D = self.compressor(self.alpha * (u - own.c), f.key)
        return Control(own.c + D.dense), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x - self.eta_g * self.eta * self.K * (s.c + D), s.c + share * D)


@dataclass(frozen=True)
class Scafcom(Star[Client, Server]):
    """SCAFFOLD with momentum and a contractive compressor on the uplink."""

    eta: FloatOrAuto
    """Local step size."""
    K: int
    """Local steps of a round."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""
    beta: float = 0.2
    """Momentum of the gradient estimate, in (0, 1]; 1: none."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False, contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=2, compressed=("up",)), exact=True, exact_partial=True, averaging="beta"
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive(self, "eta_g")
        up_to_one(self, "beta")
        at_least_one(self, "K")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        zero = f.spread(0 * x0)
        return Client(zero, zero), Server(x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.x, s.c)

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        x, c = down
        _, u = corrected_sgd(f, f.spread(x), self.eta, self.K, shift=c - own.c)
        v = (1 - self.beta) * own.v + self.beta * u
        D = self.compressor(v - own.c, f.key)
        return Client(own.c + D.dense, v), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x - self.eta_g * self.eta * self.K * (s.c + D), s.c + share * D)
