"""DSGT: decentralised (stochastic) gradient tracking.

    atc     x <- mix (x - alpha y),   y <- mix (y + grad f(x_new) - grad f(x_old))
    semi    x <- mix (x - alpha y),   y <- mix y + grad f(x_new) - grad f(x_old)
    cta     x <- mix x - alpha y,     y <- mix y + grad f(x_new) - grad f(x_old)

from y_i = grad f_i(x0), so that mean(y) = mean(grad f_i(x_i)) at all times: y_i tracks the mean gradient, and with full
gradients all x_i reach the exact solution whatever the data. "semi" is DSGT as its authors state it, "cta" is DIGing,
"atc" (Aug-DGM) allows the largest steps; they mix the same two vectors at different moments.

What travels: two vectors over each edge of a round.
Reference: S. Pu, A. Nedic, "Distributed Stochastic Gradient Tracking Methods", arXiv:1805.11454, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import one_of
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # tracks the mean gradient
    g: Tensor  # gradient at x


@dataclass(frozen=True)
class DSGT(Graph[State]):
    """Gradient tracking over a graph."""

    alpha: Step
    """Step size."""
    variant: str = "atc"
    """The variables that are mixed after their update: 'atc' x and y; 'semi' x (the paper); 'cta' neither."""

    needs: ClassVar[Needs] = Needs(composite=False, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=2), exact=True, step="alpha")

    def __post_init__(self) -> None:
        positive_step(self, "alpha")
        one_of(self, "variant", ("atc", "semi", "cta"))

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        g = f.grad(x, 0)
        return State(x, g, g)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        alpha = at(self.alpha, f.t)
        x = mix(s.x) - alpha * s.y if self.variant == "cta" else mix(s.x - alpha * s.y)
        g = f.grad(x, 0)
        y = mix(s.y + g - s.g) if self.variant == "atc" else mix(s.y) + g - s.g
        return State(x, y, g)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
