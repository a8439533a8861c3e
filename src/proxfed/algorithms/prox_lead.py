"""Prox-LEAD: proximal primal-dual gossip with one compressed vector per edge.

    z = x - eta (grad f(x) + d)
    q = C(z - H),   zh = H + q,   zw = Hw + mix q,   H <- H + alpha q,   Hw <- Hw + alpha mix q
    d <- d + gamma/(2 eta) (zh - zw),   x <- prox_{eta h}(z - gamma/2 (zh - zw))

from H = Hw = x0, which is public, and d = 0. Hw is H mixed at all times, and sum_i d_i = 0 whatever C is. C is
meant to be unbiased, and then alpha <= 1/(1 + omega); with a contractive C alpha = 1. LEAD is h = 0. With alpha = 1 it
is PLEDGE between peers with one local step, gamma/2 for its gossip step and without extrapolation. Without C it is
Prox-ED, which for gamma = 1 and h = 0 is exact diffusion and NIDS.

LEAD ends a round by x <- x - eta (grad f(x) + d) with the new d, which equals z - gamma/2 (zh - zw); Prox-LEAD adds the
prox. We know the authors' listing of Prox-LEAD from memory only and found no code of theirs. LEAD's first step without
a message is left out, which is another start of the same recursion.

What travels: C(d) over each edge of a round.
Reference: Y. Li, X. Liu, J. Tang, M. Yan, K. Yuan, "Decentralized Composite Optimization with Compression",
arXiv:2108.04448, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.compressors import Identity
from proxfed.errors import up_to_one
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    d: Tensor  # correction: grad f - grad f_i in the end
    H: Tensor  # the neighbours' prediction of z
    Hw: Tensor  # H mixed
    v: Tensor  # the model before its prox


@dataclass(frozen=True)
class ProxLEAD(Graph[State]):
    """Exact proximal gradient descent with compressed gossip, on a fixed graph, for convex problems."""

    eta: FloatOrAuto
    """Step size."""
    gamma: float = 1.0
    """Gossip step size, in (0, 1]: the coarser the compressor, the smaller."""
    alpha: float = 1.0
    """Step of the prediction H towards z, in (0, 1]."""
    compressor: Compressor = Identity()
    """Unbiased or contractive compressor of the messages over edges."""

    needs: ClassVar[Needs] = Needs(fixed_graph=True, symmetric=True, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1, compressed=("edge",)), exact=True)

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        up_to_one(self, "gamma", "alpha")

    def largest_prox_step(self) -> float:
        return self.eta

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x, x, x, x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        z = s.x - self.eta * (f.grad(s.x, 0) + s.d)
        q = self.compressor(z - s.H, f.key)
        mixed = mix(q)
        e = self.gamma / 2 * (s.H + q.dense - s.Hw - mixed)
        v = z - e
        H, Hw = s.H + self.alpha * q.dense, s.Hw + self.alpha * mixed
        return State(h.prox(v, self.eta), s.d + e / self.eta, H, Hw, v)

    def carried(self, s: State, to: ProxLEAD) -> State:
        return s._replace(v=s.x.lerp(s.v, to.eta / self.eta))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return h.prox(mean(s.v), self.eta)
