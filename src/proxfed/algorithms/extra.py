"""EXTRA and PG-EXTRA: exact decentralised (proximal) gradient descent with a fixed step.

    z = mix x - alpha grad f(x) + c,   x <- prox_{alpha h}(z),   c <- c + (mix x - x)/2

from c = 0; EXTRA is h = 0. This is the papers' two-step form
z'' = W x' + z' - (I + W)/2 x - alpha (grad f(x') - grad f(x)) with the sum c of the disagreement instead of the last
iterates; c converges to the value that balances alpha (grad f_i - mean grad f). Exact for convex problems with full
gradients, a fixed and symmetric W, and alpha < (1 + smallest eigenvalue of W)/L.

What travels: one vector over each edge of a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.schedules import positive_or_auto
from proxfed.types import Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    c: Tensor  # correction: half the sum of mix x - x so far


class ProxState(NamedTuple):
    x: Tensor  # the model
    z: Tensor  # the model before its prox
    c: Tensor  # correction: half the sum of mix x - x so far


@dataclass(frozen=True)
class Extra(Graph[State]):
    """Exact decentralised gradient descent on a fixed graph, for convex smooth problems.

    Reference: W. Shi, Q. Ling, G. Wu, W. Yin, "EXTRA: An Exact First-Order Algorithm for Decentralized Consensus
    Optimization", SIAM Journal on Optimization, 2015, arXiv:1404.6264.
    """

    alpha: FloatOrAuto
    """Step size."""

    needs: ClassVar[Needs] = Needs(composite=False, fixed_graph=True, symmetric=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=True, step="alpha")

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        mixed = mix(s.x)
        x = mixed - self.alpha * f.grad(s.x, 0) + s.c
        return State(x, s.c + (mixed - s.x) / 2)

    def carried(self, s: State, to: Extra) -> State:
        return s._replace(c=s.c * (to.alpha / self.alpha))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)


@dataclass(frozen=True)
class PGExtra(Graph[ProxState]):
    """Exact decentralised proximal gradient descent on a fixed graph, for convex problems.

    Reference: W. Shi, Q. Ling, G. Wu, W. Yin, "A Proximal Gradient Algorithm for Decentralized Composite Optimization",
    IEEE Transactions on Signal Processing, 2015.
    """

    alpha: FloatOrAuto
    """Step size."""

    needs: ClassVar[Needs] = Needs(convex=True, fixed_graph=True, symmetric=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=True, step="alpha")

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")

    def largest_prox_step(self) -> float:
        return self.alpha

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> ProxState:
        x = f.spread(x0)
        return ProxState(x, x, 0 * x)

    def step(self, s: ProxState, f: Local, h: Regulariser, mix: Mix) -> ProxState:
        mixed = mix(s.x)
        z = mixed - self.alpha * f.grad(s.x, 0) + s.c
        return ProxState(h.prox(z, self.alpha), z, s.c + (mixed - s.x) / 2)

    def carried(self, s: ProxState, to: PGExtra) -> ProxState:
        r = to.alpha / self.alpha
        return ProxState(s.x, s.x.lerp(s.z, r), s.c * r)

    def model(self, s: ProxState, h: Regulariser, mean: Mean) -> Tensor:
        """The prox of the average: unlike mean(x), whose zeros the averaging blurs, it has the structure of h."""
        return h.prox(mean(s.z), self.alpha)
