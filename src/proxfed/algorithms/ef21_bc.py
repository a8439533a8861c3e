"""EF21-BC: gradient descent with compressed changes of gradients in both directions.

    all sides       x <- x - gamma b
    client sends    D_i = C(grad f_i(x) - u_i),   u_i <- u_i + D_i
    server sends    q = C'(c - b),   b <- b + q                                    c <- c + mean D_i before

The gradient estimate b of all steps and x are public: they follow from the messages. c is the mean of all u_i. All
begin at zero, so x does not move in the first round.

Partial participation (ours: the paper has both extensions, but not together) takes c <- c + share mean D_i, as in EF21.
b and x are running sums of the server's messages, so every client needs all of them: one that returns gets those that
it missed.

What travels: C(d) up, C'(d) down.
Reference: I. Fatkhullin, I. Sokolov, E. Gorbunov, Z. Li, P. Richtarik, "EF21 with Bells & Whistles: Six Algorithmic
Extensions of Modern Error Feedback", arXiv:2110.03294, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Local, Needs, Packed, Regulariser, Sends, Star


class Client(NamedTuple):
    x: Tensor  # public: the model
    b: Tensor  # public: the gradient estimate of all steps
    u: Tensor  # the server's estimate of the own gradient


class Server(NamedTuple):
    x: Tensor  # public
    b: Tensor  # public
    c: Tensor  # mean of all u


@dataclass(frozen=True)
class EF21BC(Star[Client, Server]):
    """Gradient descent with error feedback in both directions, with a server."""

    gamma: FloatOrAuto
    """Step size."""
    compressor_up: Compressor = Identity()
    """Contractive compressor of the uplink."""
    compressor_down: Compressor = Identity()
    """Contractive compressor of the downlink."""

    needs: ClassVar[Needs] = Needs(composite=False, all_hear=True, contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, compressed=("up", "down")), exact=True, step="gamma", exact_partial=True
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(x, 0 * x, 0 * x), Server(x0, 0 * x0, 0 * x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Packed]:
        q = self.compressor_down((s.c - s.b)[None], key)
        b = s.b + q.dense[0]
        return Server(s.x - self.gamma * b, b, s.c), q

    def hear(self, own: Client, q: Tensor) -> Client:
        b = own.b + q
        return own._replace(x=own.x - self.gamma * b, b=b)

    def client(self, own: Client, q: Tensor, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        x, b, _ = self.hear(own, q)
        D = self.compressor_up(f.grad(x, 0) - own.u, f.key)
        return Client(x, b, own.u + D.dense), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        return s._replace(c=s.c + share * D)
