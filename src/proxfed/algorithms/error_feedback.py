"""Error feedback, old and new: EF14, EF21 and EF21-SGDM.

    EF14        K times y <- y - eta grad f_i(y) from y = x,   e_i <- e_i + x - y
                send D_i = C(e_i),   e_i <- e_i - D_i
                x <- x - mean D_i
    EF21        send D_i = C(grad f_i(x) - c_i),   c_i <- c_i + D_i
                c <- c + share mean D_i,   x <- prox_{gamma h}(x - gamma c)
    EF21-SGDM   v_i <- (1 - eta) v_i + eta grad f_i(x)
                as EF21, with v_i in place of the gradient

EF14 adds the compression error of a message to the next one; with heterogeneous data it stops at a distance
proportional to eta. EF21 sends changes: c_i converges to the gradient, so the compression error vanishes, and c is the
mean of all c_i under partial participation, too (ours for EF21-SGDM, whose paper has full participation). Stochastic
gradients need the momentum of EF21-SGDM. All of them begin with zeros.

What travels: C(d) up, one vector down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.compressors import Identity
from proxfed.compressors.contractive import contraction
from proxfed.errors import at_least_one, up_to_one
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import (
    Compressor,
    Constants,
    Facts,
    FloatOrAuto,
    Local,
    Needs,
    Packed,
    Regulariser,
    Sends,
    Star,
    When,
)


class Lost(NamedTuple):
    e: Tensor  # the accumulated compression error


class Known(NamedTuple):
    c: Tensor  # the server's estimate of the own gradient


class Estimate(NamedTuple):
    c: Tensor  # the server's estimate of v
    v: Tensor  # own gradient estimate


class Point(NamedTuple):
    x: Tensor  # the model


class Server(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # mean of all c


@dataclass(frozen=True)
class EF14(Star[Lost, Point]):
    """Compressed local SGD with error feedback.

    Reference: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014; with K > 1: X. Li, P. Li, "Analysis of Error
    Feedback in Federated Non-Convex Optimization with Biased Compression", ICML 2023, arXiv:2211.14292.
    """

    eta: Step
    """Step size."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""
    K: int = 1
    """Local steps of a round."""

    needs: ClassVar[Needs] = Needs(composite=False, contractive=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("up",)), exact=When(K=1, compressor=Identity()))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Lost, Point]:
        return Lost(f.spread(0 * x0)), Point(x0)

    def client(self, own: Lost, x: Tensor, f: Local, h: Regulariser) -> tuple[Lost, Packed]:
        e = own.e + x - sgd(f, f.spread(x), at(self.eta, f.t), self.K)
        D = self.compressor(e, f.key)
        return Lost(e - D.dense), D

    def server(self, s: Point, D: Tensor, h: Regulariser, share: float) -> Point:
        return Point(s.x - D)


@dataclass(frozen=True)
class EF21(Star[Known, Server]):
    """Proximal gradient descent with compressed changes of gradients.

    Reference: P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
    Faster Error Feedback", NeurIPS 2021, arXiv:2106.05203; with prox steps and partial participation: I. Fatkhullin, I.
    Sokolov, E. Gorbunov, Z. Li, P. Richtarik, "EF21 with Bells & Whistles: Practical Algorithmic Extensions of Modern
    Error Feedback", arXiv:2110.03294, 2021.
    """

    gamma: FloatOrAuto
    """Step size."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""

    needs: ClassVar[Needs] = Needs(contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, compressed=("up",)), exact=True, step="gamma", exact_partial=True
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")

    def largest_prox_step(self) -> float:
        return self.gamma

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Known, Server]:
        return Known(f.spread(0 * x0)), Server(x0, 0 * x0)

    def client(self, own: Known, x: Tensor, f: Local, h: Regulariser) -> tuple[Known, Packed]:
        D = self.compressor(f.grad(x, 0) - own.c, f.key)
        return Known(own.c + D.dense), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        c = s.c + share * D
        return Server(h.prox(s.x - self.gamma * c, self.gamma), c)

    @classmethod
    def theory(cls, c: Constants, compressor: Compressor = Identity()) -> EF21:
        """The largest step of the theorem, 1/(L_f + L q/(1 - q))."""
        checked = cls(1.0, compressor)
        q = sqrt(contraction(compressor, c.d, cls.__name__))
        return replace(checked, gamma=1 / (c.smoothness.L_f + c.smoothness.L * q / (1 - q)))


@dataclass(frozen=True)
class EF21SGDM(Star[Estimate, Server]):
    """EF21 with momentum, for stochastic gradients.

    Reference: I. Fatkhullin, A. Tyurin, P. Richtarik, "Momentum Provably Improves Error Feedback!", NeurIPS 2023,
    arXiv:2305.15155.
    """

    gamma: FloatOrAuto
    """Step size."""
    eta: float
    """Momentum of the gradient estimate, in (0, 1]; 1: none."""
    compressor: Compressor = Identity()
    """Contractive compressor of the uplink."""

    needs: ClassVar[Needs] = Needs(contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, compressed=("up",)), exact=True, step="gamma", exact_partial=True, averaging="eta"
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        up_to_one(self, "eta")

    def largest_prox_step(self) -> float:
        return self.gamma

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Estimate, Server]:
        zero = f.spread(0 * x0)
        return Estimate(zero, zero), Server(x0, 0 * x0)

    def client(self, own: Estimate, x: Tensor, f: Local, h: Regulariser) -> tuple[Estimate, Packed]:
        v = (1 - self.eta) * own.v + self.eta * f.grad(x, 0)
        D = self.compressor(v - own.c, f.key)
        return Estimate(own.c + D.dense, v), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        c = s.c + share * D
        return Server(h.prox(s.x - self.gamma * c, self.gamma), c)
