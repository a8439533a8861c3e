"""ProxGT: decentralised proximal gradient tracking with several gossip steps.

    y <- mix^Q (y + grad f(x) - g),   g <- grad f(x)
    x <- mix^Q prox_{alpha h}(x - alpha y)

from x = x0 and y = g = 0, so that mean(y) = mean(grad f_i) at the previous points. With minibatch gradients it is the
paper's ProxGT-SA, whose analysis takes large batches and a Q that makes W^Q nearly the average.

What travels: 2 Q vectors over each edge of a round.
Reference: R. Xin, S. Das, U. A. Khan, S. Kar, "A Stochastic Proximal Gradient Framework for Decentralized Non-Convex
Composite Optimization: Topology-Independent Sample Complexity and Communication Efficiency", arXiv:2110.01594, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one
from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # tracks the mean gradient
    g: Tensor  # gradient at the previous x
    v: Tensor  # the argument of the last prox step


@dataclass(frozen=True)
class ProxGT(Graph[State]):
    """Proximal gradient tracking over a graph, with Q gossip steps of both vectors."""

    alpha: FloatOrAuto
    """Step size."""
    Q: int = 1
    """Gossip steps of each of the two vectors in a round."""

    needs: ClassVar[Needs] = Needs(doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=2, times="Q"), exact=True, step="alpha")

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")
        at_least_one(self, "Q")

    def sends(self) -> Sends:
        return Sends(edge=2 * self.Q)

    def largest_prox_step(self) -> float:
        return self.alpha

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x, 0 * x, x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        g = f.grad(s.x, 0)
        y = self._gossip(s.y + g - s.g, mix)
        v = s.x - self.alpha * y
        return State(self._gossip(h.prox(v, self.alpha), mix), y, g, v)

    def _gossip(self, x: Tensor, mix: Mix) -> Tensor:
        for _ in range(self.Q):
            x = mix(x)
        return x

    def carried(self, s: State, to: ProxGT) -> State:
        return s._replace(v=s.x.lerp(s.v, to.alpha / self.alpha))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        """The prox of the average: unlike mean(x), whose zeros mixing blurs, it has the structure of h."""
        return h.prox(mean(s.v), self.alpha)
