"""DFedSAM and DFedSAM-MGS: local sharpness-aware steps, then one or several gossip steps.

    K times     y <- y - eta grad f_i(y + rho grad/|grad|),  both gradients on the same minibatch         from y = x_i
                x_i <- mix ... mix y   (Q times)

Q = 1 is DFedSAM; Q > 1 is DFedSAM-MGS (multiple gossip steps), which acts like the better connected graph W^Q. With
rho = 0 it is DFedAvg.

What travels: Q vectors over each edge of a round.
Reference: Y. Shi, L. Shen, K. Wei, Y. Sun, B. Yuan, X. Wang, D. Tao, "Improving the Model Consistency of Decentralized
Federated Learning", ICML 2023, arXiv:2302.04083.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.errors import at_least_one, non_negative
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class DFedSAM(Graph[State]):
    """Local sharpness-aware minimisation over a graph; with Q > 1 gossip steps DFedSAM-MGS."""

    eta: Step
    """Local step size."""
    K: int
    """Local steps of a round."""
    rho: float
    """Radius of sharpness-aware minimisation; 0: plain SGD."""
    Q: int = 1
    """Gossip steps of a round."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1, times="Q"), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K", "Q")
        non_negative(self, "rho")

    def sends(self) -> Sends:
        return Sends(edge=self.Q)

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(f.spread(x0))

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        x = sgd(f, s.x, at(self.eta, f.t), self.K, self.rho)
        for _ in range(self.Q):
            x = mix(x)
        return State(x)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
