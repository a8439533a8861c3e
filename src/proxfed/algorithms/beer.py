"""BEER: compressed gradient tracking between peers, for any contractive compressor.

    x <- x + gamma (s - xh) - eta v,              q = C(x - xh),   xh <- xh + q,   s <- s + mix q
    v <- v + gamma (r - vh) + g_new - g,          q = C(v - vh),   vh <- vh + q,   r <- r + mix q       g = grad f(x)

Both the model and the tracker have public copies, as in CHOCO-SGD, so that only compressed differences travel, and
mean(v) = mean(g) whatever C is. It begins with xh = s = x0, which is public, v = g = grad f(x0) and vh = r = 0.

What travels: C of two vectors over each edge of a round.
Reference: H. Zhao, B. Li, Z. Li, P. Richtarik, Y. Chi, "BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization
with Communication Compression", NeurIPS 2022, arXiv:2201.13320.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.errors import up_to_one
from proxfed.keyed_random import fold
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Compressor, Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    xh: Tensor  # its public copy
    s: Tensor  # the mixed public copies of x
    v: Tensor  # tracks the mean gradient
    vh: Tensor  # its public copy
    r: Tensor  # the mixed public copies of v
    g: Tensor  # gradient at x


@dataclass(frozen=True)
class BEER(Graph[State]):
    """Gradient tracking with compressed gossip of both vectors, on a fixed graph."""

    eta: Step
    """Step size."""
    gamma: float
    """Gossip step size, in (0, 1]: the coarser the compressor, the smaller."""
    compressor: Compressor = Identity()
    """Contractive compressor of the messages over edges."""

    needs: ClassVar[Needs] = Needs(composite=False, contractive=True, fixed_graph=True, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=2, compressed=("edge",)), exact=True)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        up_to_one(self, "gamma")

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        g = f.grad(x, 0)
        return State(x, x, x, g, 0 * x, 0 * x, g)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        x = s.x + self.gamma * (s.s - s.xh) - at(self.eta, f.t) * s.v
        q = self.compressor(x - s.xh, f.key)
        xh, mixed = s.xh + q.dense, s.s + mix(q)
        g = f.grad(x, 0)
        v = s.v + self.gamma * (s.r - s.vh) + g - s.g
        q = self.compressor(v - s.vh, fold(f.key, 1))
        return State(x, xh, mixed, v, s.vh + q.dense, s.r + mix(q), g)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
