"""D-PSGD: decentralised (stochastic) gradient descent.

    cta     x_i <- mix x - eta grad f_i(x_i)
    atc     x_i <- mix (x - eta grad f(x))                       that is sum_j w_ij (x_j - eta grad f_j(x_j))

The paper uses "cta" (combine, then adapt), whose exchange and gradients may run at the same time; "atc" (adapt, then
combine) mixes the newer points and allows the larger steps. With heterogeneous data both stop O(eta) away from the
solution, except "atc" on the complete graph, which is gradient descent.

What travels: one vector over each edge of a round.
Reference: X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, "Can Decentralized Algorithms Outperform
Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017,
arXiv:1705.09056.
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


@dataclass(frozen=True)
class DPSGD(Graph[State]):
    """Decentralised SGD: a gradient step and a gossip step."""

    eta: Step
    """Step size."""
    variant: str = "cta"
    """'cta': mix, then step (the paper); 'atc': step, then mix."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        one_of(self, "variant", ("cta", "atc"))

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(f.spread(x0))

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        eta = at(self.eta, f.t)
        g = f.grad(s.x, 0)
        return State(mix(s.x - eta * g) if self.variant == "atc" else mix(s.x) - eta * g)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
