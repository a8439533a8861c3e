"""CDProxSGT: proximal gradient tracking between peers with both vectors compressed.

    y' = y + g_new - g,   q = C(y' - yh),   yh <- yh + q,   r <- r + mix q,   y <- y' + gamma_y (r - yh)
    v = x - eta y,   x' = prox_{eta h}(v)
    q = C(x' - xh),   xh <- xh + q,   s <- s + mix q,   x <- x' + gamma_x (s - xh)

with g = grad f(x) at the beginning of a round, from x = xh = s = x0 and y = g = yh = r = 0: mean(y) = mean(g) whatever
C is. Without C and with gamma_x = gamma_y = 1 it is ProxGT with one gossip step, DProxSGT of the same paper.

What travels: C of two vectors over each edge of a round.
Reference: Y. Yan, J. Chen, P.-Y. Chen, X. Cui, S. Lu, Y. Xu, "Compressed Decentralized Proximal Stochastic Gradient
Method for Nonconvex Composite Problems with Heterogeneous Data", ICML 2023, arXiv:2302.14252.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.errors import up_to_one
from proxfed.keyed_random import fold
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    xh: Tensor  # its public copy
    s: Tensor  # xh mixed
    y: Tensor  # tracks the mean gradient
    yh: Tensor  # its public copy
    r: Tensor  # yh mixed
    g: Tensor  # gradient at the previous x
    v: Tensor  # the argument of the last prox step


@dataclass(frozen=True)
class CDProxSGT(Graph[State]):
    """Compressed proximal gradient tracking, on a fixed graph."""

    eta: FloatOrAuto
    """Step size."""
    gamma_x: float = 0.5
    """Gossip step size of the model, in (0, 1]: the coarser the compressor, the smaller."""
    gamma_y: float = 0.5
    """Gossip step size of the tracker."""
    compressor: Compressor = Identity()
    """Contractive compressor of the messages over edges."""

    needs: ClassVar[Needs] = Needs(contractive=True, fixed_graph=True, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=2, compressed=("edge",)), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        up_to_one(self, "gamma_x", "gamma_y")

    def largest_prox_step(self) -> float:
        return self.eta

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, x, x, 0 * x, 0 * x, 0 * x, 0 * x, x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        g = f.grad(s.x, 0)
        y = s.y + g - s.g
        q = self.compressor(y - s.yh, f.key)
        yh, r = s.yh + q.dense, s.r + mix(q)
        y = y + self.gamma_y * (r - yh)
        v = s.x - self.eta * y
        x = h.prox(v, self.eta)
        q = self.compressor(x - s.xh, fold(f.key, 1))
        xh, mixed = s.xh + q.dense, s.s + mix(q)
        return State(x + self.gamma_x * (mixed - xh), xh, mixed, y, yh, r, g, v)

    def carried(self, s: State, to: CDProxSGT) -> State:
        return s._replace(v=s.x.lerp(s.v, to.eta / self.eta))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        """The prox of the average: unlike mean(x), whose zeros mixing blurs, it has the structure of h."""
        return h.prox(mean(s.v), self.eta)
