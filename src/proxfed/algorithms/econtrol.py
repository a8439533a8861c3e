"""EControl: error feedback that adds only a part of the accumulated error to the next message.

    client sends    D_i = C(eta e_i + grad f_i(x) - c_i)
                    e_i <- e_i + grad f_i(x) - c_i - D_i,   c_i <- c_i + D_i
    server          c <- c + mean D_i,   x <- x - gamma c

c_i is the server's estimate of the gradient, as in EF21; e_i accumulates the compression error, as in EF14. With
eta = 0 it is EF21. At a fixed point D_i = 0 and e_i is constant, so c_i is the gradient: the limit is exact. All begin
at zero (in the paper c_i begins with the first gradient, sent uncompressed).

What travels: C(d) up, one vector down.
Reference: Y. Gao, R. Islamov, S. U. Stich, "EControl: Fast Distributed Optimization with Compression and Error
Control", ICLR 2024, arXiv:2311.05645.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.errors import non_negative, require
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Local, Needs, Packed, Regulariser, Sends, Star


class Client(NamedTuple):
    c: Tensor  # the server's estimate of the own gradient
    e: Tensor  # the accumulated compression error


class Server(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # mean of all c


@dataclass(frozen=True)
class EControl(Star[Client, Server]):
    """Gradient descent with a contractive compressor on the uplink and controlled error feedback."""

    gamma: FloatOrAuto
    """Step size."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""
    eta: float = 0.05
    """Part of the accumulated error that is sent next, in [0, 1]; the coarser the compressor, the smaller."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True, contractive=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("up",)), exact=True, step="gamma")

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        non_negative(self, "eta")
        require(self.eta <= 1, f"EControl: eta = {self.eta!r} must be at most 1")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        zero = f.spread(0 * x0)
        return Client(zero, zero), Server(x0, 0 * x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        change = f.grad(x, 0) - own.c
        D = self.compressor(self.eta * own.e + change, f.key)
        return Client(own.c + D.dense, own.e + change - D.dense), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        c = s.c + D
        return Server(s.x - self.gamma * c, c)
