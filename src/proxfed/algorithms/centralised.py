"""Centralised references: the steps of one machine with all the data, with the same rounds and the same report.

A round asks every client for its gradient at the server's point y; their weighted mean g is the gradient of f there.

    gradient descent      x <- x - eta g                                                                   y = x
    heavy ball            v <- gamma v - eta g,   x <- x + v                                               y = x
    Nesterov              v <- gamma v - eta g,   x <- x + gamma v - eta g                                 y = x
    proximal gradient     x <- prox_{eta h}(x - eta g)                                                     y = x
    FISTA                 x_new = prox_{eta h}(y - eta g),   t_new = (1 + sqrt(1 + 4 t^2))/2
                          y <- x_new + (t - 1)/t_new (x_new - x),   with t = 1 again if <y - x_new, x_new - x> > 0

Nesterov is FedNAG with tau = 1: momentum in the coordinates of the extrapolated point. With minibatches they are SGD
and its kin on the union of the clients' minibatches.

What travels: one vector up, one down.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed.errors import below_one
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Constants, Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, Stateless


class State(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # the point of the next gradients
    v: Tensor  # momentum
    t: Tensor  # FISTA's count of steps since its last restart


@dataclass(frozen=True)
class _Pooled(Star[Stateless, State]):
    """Clients send their gradients; a subclass defines the server's step with their mean."""

    eta: FloatOrAuto
    """Step size."""

    def largest_prox_step(self) -> float:
        return self.eta if self.needs.composite else 0.0

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, State]:
        return (), State(x0, x0, 0 * x0, x0.new_ones(()))

    def down(self, s: State, key: Key) -> tuple[State, Tensor]:
        return s, s.y

    def client(self, own: Stateless, y: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, f.grad(y, 0)

    @abstractmethod
    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State: ...


@dataclass(frozen=True)
class GradientDescent(_Pooled):
    """Gradient descent on all the data; with minibatches SGD.

    Reference: A. Cauchy, "Methode generale pour la resolution des systemes d'equations simultanees", Comptes Rendus,
    1847.
    """

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")

    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State:
        x = s.x - self.eta * g
        return s._replace(x=x, y=x)

    @classmethod
    def theory(cls, c: Constants) -> GradientDescent:
        """eta = 1/L_f."""
        return cls(1 / c.smoothness.L_f)


@dataclass(frozen=True)
class HeavyBall(_Pooled):
    """Polyak's heavy ball on all the data.

    Reference: B. T. Polyak, "Some methods of speeding up the convergence of iteration methods", USSR Computational
    Mathematics and Mathematical Physics, 1964.
    """

    gamma: float
    """Momentum, in [0, 1)."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        below_one(self, "gamma")

    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State:
        v = self.gamma * s.v - self.eta * g
        x = s.x + v
        return s._replace(x=x, y=x, v=v)

    @classmethod
    def theory(cls, c: Constants) -> HeavyBall:
        """The fastest on quadratics: eta = 4/(sqrt L_f + sqrt mu)^2, sqrt gamma = (1 - r)/(1 + r), r = sqrt(mu/L_f)."""
        L, mu = c.smoothness.L_f, c.smoothness.mu
        return cls(4 / (sqrt(L) + sqrt(mu)) ** 2, _momentum(c) ** 2)


@dataclass(frozen=True)
class Nesterov(_Pooled):
    """Nesterov's accelerated gradient on all the data.

    Reference: Y. Nesterov, "A method for solving the convex programming problem with convergence rate O(1/k^2)", Soviet
    Mathematics Doklady, 1983.
    """

    gamma: float
    """Momentum, in [0, 1)."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        below_one(self, "gamma")

    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State:
        v = self.gamma * s.v - self.eta * g
        x = s.x + self.gamma * v - self.eta * g
        return s._replace(x=x, y=x, v=v)

    @classmethod
    def theory(cls, c: Constants) -> Nesterov:
        """eta = 1/L_f, gamma = (1 - r)/(1 + r), r = sqrt(mu/L_f)."""
        return cls(1 / c.smoothness.L_f, _momentum(c))


@dataclass(frozen=True)
class ProximalGradient(_Pooled):
    """Proximal gradient descent on all the data.

    Reference: P.-L. Lions, B. Mercier, "Splitting Algorithms for the Sum of Two Nonlinear Operators", SIAM Journal on
    Numerical Analysis, 1979.
    """

    needs: ClassVar[Needs] = Needs(everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")

    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State:
        x = h.prox(s.x - self.eta * g, self.eta)
        return s._replace(x=x, y=x)

    @classmethod
    def theory(cls, c: Constants) -> ProximalGradient:
        """eta = 1/L_f, or half of the largest step that a weakly convex h allows, if that is less."""
        return cls(1 / max(c.smoothness.L_f, 2 * c.weak_convexity))


@dataclass(frozen=True)
class FISTA(_Pooled):
    """Accelerated proximal gradient on all the data, restarted whenever its momentum points uphill.

    Reference: A. Beck, M. Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems",
    SIAM Journal on Imaging Sciences, 2009; restarts: B. O'Donoghue, E. Candes, "Adaptive Restart for Accelerated
    Gradient Schemes", Foundations of Computational Mathematics, 2015, arXiv:1204.3982.
    """

    restart: bool = True
    """Forget the momentum when it points uphill: linear convergence on strongly convex problems."""

    needs: ClassVar[Needs] = Needs(convex=True, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")

    def server(self, s: State, g: Tensor, h: Regulariser, share: float) -> State:
        x = h.prox(s.y - self.eta * g, self.eta)
        uphill = torch.dot(s.y - x, x - s.x) > 0
        t = torch.where(uphill, 1.0, s.t) if self.restart else s.t
        t_next = (1 + (1 + 4 * t * t).sqrt()) / 2
        return s._replace(x=x, y=x + (t - 1) / t_next * (x - s.x), t=t_next)

    @classmethod
    def theory(cls, c: Constants) -> FISTA:
        """eta = 1/L_f."""
        return cls(1 / c.smoothness.L_f)


def _momentum(c: Constants) -> float:
    r = sqrt(c.smoothness.mu / c.smoothness.L_f)
    return (1 - r) / (1 + r)
