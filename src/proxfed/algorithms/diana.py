"""DIANA: proximal gradient descent with an unbiased compressor on gradient differences.

    client sends    D_i = C(grad f_i(x) - c_i),   c_i <- c_i + alpha D_i
    server          x <- prox_{gamma h}(x - gamma (c + mean D_i)),   c <- c + alpha mean D_i

c_i learns the client's gradient, so the argument of C goes to zero; c is the mean of all c_i. c + mean D_i is the mean
gradient in expectation, which requires an unbiased C. For alpha = 1 it is EF21 with an unbiased C. c and all c_i begin
at zero.

`CompressedDownlink` around it is EF21-P + DIANA (K. Gruntkowska, A. Tyurin, P. Richtarik, arXiv:2209.15218): the server
sends C'(x - w), all sides set w <- w + C'(x - w), and clients take their gradients at w.

What travels: C(d) up, one vector down.
Reference: K. Mishchenko, E. Gorbunov, M. Takac, P. Richtarik, "Distributed Learning with Compressed Gradient
Differences", arXiv:1901.09269, 2019; any unbiased C: S. Horvath, D. Kovalev, K. Mishchenko, S. Stich, P. Richtarik,
"Stochastic Distributed Learning with Gradient Quantization and Variance Reduction", arXiv:1904.05115, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.errors import up_to_one
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Local, Needs, Packed, Regulariser, Sends, Star


class Client(NamedTuple):
    c: Tensor  # learned estimate of the own gradient


class Server(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # mean of all c


@dataclass(frozen=True)
class Diana(Star[Client, Server]):
    """Proximal gradient descent with an unbiased compressor on the uplink."""

    gamma: FloatOrAuto
    """Step size."""
    compressor: Compressor = Identity()
    """Unbiased compressor of the uplink."""
    alpha: float = 0.5
    """How fast c learns, in (0, 1]; at most 1/(1 + omega) in the theorem, where E|C(v) - v|^2 <= omega |v|^2."""

    needs: ClassVar[Needs] = Needs(everyone=True, unbiased=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("up",)), exact=True, step="gamma", averaging="alpha")

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        up_to_one(self, "alpha")

    def largest_prox_step(self) -> float:
        return self.gamma

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0)), Server(x0, 0 * x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        D = self.compressor(f.grad(x, 0) - own.c, f.key)
        return Client(own.c + self.alpha * D.dense), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        x = h.prox(s.x - self.gamma * (s.c + D), self.gamma)
        return Server(x, s.c + self.alpha * D)
