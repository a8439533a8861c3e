"""DSMT: distributed stochastic momentum tracking, with loopless Chebyshev acceleration of its gossip.

    u = x - alpha y,         x <- (1 + eta_w) mix u - eta_w (x' - alpha y),         x' <- u
                             z_new = beta z + (1 - beta) grad f(x)
    w = y + z_new - z,       y <- (1 + eta_w) mix w - eta_w (y' + z_new - z),       y' <- w

from x = x' = x0 and y = y' = z = (1 - beta) grad f(x0), so that mean(y) = mean(z) at all times. eta_w = 0 is momentum
tracking with plain gossip, and beta = 0 then gradient tracking. eta_w > 0 uses the previous exchange, too: it mixes
like a Chebyshev polynomial of W without sending more vectors. W must have no negative eigenvalues, so take lazy
weights.

What travels: two vectors over each edge of a round.
Reference: K. Huang, S. Pu, A. Nedic, "An Accelerated Distributed Stochastic Gradient Method with Momentum",
arXiv:2402.09714, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import below_one
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Constants, Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends

ROUNDING = 1e-9
"""Tolerance for rounding: a computed eigenvalue of zero may be this much below zero."""


class State(NamedTuple):
    x: Tensor  # the model
    x_sent: Tensor  # the x of the last exchange, before mixing
    y: Tensor  # tracks the mean momentum
    y_sent: Tensor  # the y of the last exchange, before mixing
    z: Tensor  # momentum


@dataclass(frozen=True)
class DSMT(Graph[State]):
    """Momentum tracking over a graph, with accelerated gossip."""

    alpha: Step
    """Step size."""
    beta: float
    """Momentum, in [0, 1)."""
    eta_w: float = 0.0
    """Acceleration of the gossip, in [0, 1); 0: plain gossip."""

    needs: ClassVar[Needs] = Needs(composite=False, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=2), exact=True, step="alpha")

    def __post_init__(self) -> None:
        positive_step(self, "alpha")
        below_one(self, "beta", "eta_w")

    def requires(self) -> Needs:
        if self.eta_w == 0:
            return self.needs
        return self.needs._replace(fixed_graph=True, symmetric=True, eigenvalues_above=-ROUNDING)

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        z = (1 - self.beta) * f.grad(x, 0)
        return State(x, x, z, z, z)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        move = -at(self.alpha, f.t) * s.y
        x, x_sent = self._accelerated(s.x + move, s.x_sent + move, mix)
        z = self.beta * s.z + (1 - self.beta) * f.grad(x, 0)
        y, y_sent = self._accelerated(s.y + (z - s.z), s.y_sent + (z - s.z), mix)
        return State(x, x_sent, y, y_sent, z)

    def _accelerated(self, u: Tensor, before: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
        return (1 + self.eta_w) * mix(u) - self.eta_w * before, u

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)

    @classmethod
    def theory(cls, c: Constants, alpha: Step) -> DSMT:
        """The authors' acceleration and momentum for this graph (of lazy weights): beta = sqrt(eta_w)."""
        root = sqrt(1 - c.psi**2)
        eta_w = (1 + (1 - root) / (1 + root)) / 2
        return cls(alpha, sqrt(eta_w), eta_w)
