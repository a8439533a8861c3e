"""Algorithms that use what no registered one does: states that move from field to field, random downlinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.keyed_random import Key
from proxfed.types import Compressor, Facts, Graph, Local, Mean, Mix, Needs, Packed, Regulariser, Sends, Star


class Point(NamedTuple):
    x: Tensor


class LastTwo(NamedTuple):
    z: Tensor  # the last gradient
    old: tuple[Tensor]  # the one before


@dataclass(frozen=True)
class ExtrapolatedGradients(Star[LastTwo, Point]):
    """x <- x - eta mean(g + (g - z)/2 - (z - old)/4), where every client keeps its last two gradients."""

    eta: float
    """Step."""
    clones: bool = False
    """Copy the last gradient, which may as well move."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[LastTwo, Point]:
        g = f.grad(f.spread(x0), 0)
        return LastTwo(g, (g,)), Point(x0)

    def client(self, own: LastTwo, x: Tensor, f: Local, h: Regulariser) -> tuple[LastTwo, Tensor]:
        g, z, (old,) = f.grad(x, 0), own.z, own.old
        return LastTwo(g, (z.clone() if self.clones else z,)), g + (g - z) / 2 - (z - old) / 4

    def server(self, s: Point, g: Tensor, h: Regulariser, share: float) -> Point:
        return Point(s.x - self.eta * g)


class Pair(NamedTuple):
    x: Tensor  # the model
    before: Tensor  # the model of the round before


@dataclass(frozen=True)
class DecentralisedHeavyBall(Graph[Pair]):
    """x <- mix (x - eta grad f(x) + gamma (x - x of the round before))."""

    eta: float
    """Step."""
    gamma: float
    """Momentum."""
    clones: bool = False
    """Copy the last model, which may as well move."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=False)

    def init(self, x0, f, h, mix):  # without annotations, as somebody may well write it
        x = f.spread(x0)
        return Pair(x, x)

    def before_mix(self, s: Pair, f: Local, h: Regulariser) -> Pair:
        x = s.x - self.eta * f.grad(s.x, 0) + self.gamma * (s.x - s.before)
        return Pair(x, s.x.clone() if self.clones else s.x)

    def step(self, s: Pair, f: Local, h: Regulariser, mix: Mix) -> Pair:
        return s._replace(x=mix(s.x))

    def model(self, s: Pair, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)


class Known(NamedTuple):
    w: Tensor  # what clients know of x


class Server(NamedTuple):
    x: Tensor  # the model
    w: Tensor  # what clients know of it


@dataclass(frozen=True)
class CompressedDownlink(Star[Known, Server]):
    """Proximal gradient descent with error feedback on the way down.

        server sends    D = C(x - w),   w <- w + D
        client          w <- w + D,   sends grad f_i(w)
        server          x <- prox_{gamma h}(x - gamma mean grad f_i(w))

    Reference: K. Gruntkowska, A. Tyurin, P. Richtarik, "EF21-P and Friends", 2023.
    """

    gamma: float
    """Step."""
    downlink: Compressor
    """Of what the server sends."""

    needs: ClassVar[Needs] = Needs(everyone=True, contractive=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("down",)), exact=True)

    def largest_prox_step(self) -> float:
        return self.gamma

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Known, Server]:
        return Known(f.spread(x0)), Server(x0, x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Packed]:
        D = self.downlink((s.x - s.w)[None], key)
        return Server(s.x, s.w + D.dense[0]), D

    def client(self, own: Known, D: Tensor, f: Local, h: Regulariser) -> tuple[Known, Tensor]:
        w = own.w + D
        return Known(w), f.grad(w, 0)

    def server(self, s: Server, g: Tensor, h: Regulariser, share: float) -> Server:
        return s._replace(x=h.prox(s.x - self.gamma * g, self.gamma))
