"""DFedAvg and DFedAvgM: local SGD, without and with momentum, over a graph.

    K times     v <- theta v - eta grad f_i(y),  y <- y + v              from y = x_i and v = 0 in every round
                x_i <- mix y

DFedAvg is theta = 0. With heterogeneous data the limit is biased, by O(eta K).

The paper's quantised form, x_i <- x_i + mix Q(y - x), is not implemented, because the x_i themselves are never mixed.
Even with Q the identity every client ends at its own minimiser if W is positive definite, and their disagreement grows
without bound if W has a negative eigenvalue, as on a ring. ChocoSGD compresses the same exchange soundly.

What travels: one vector over each edge of a round.
Reference: T. Sun, D. Li, B. Wang, "Decentralized Federated Averaging", arXiv:2104.11375, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.errors import at_least_one, below_one
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class DFedAvg(Graph[State]):
    """Local SGD over a graph."""

    eta: Step
    """Local step size."""
    K: int
    """Local steps of a round."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K")

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(f.spread(x0))

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(mix(sgd(f, s.x, at(self.eta, f.t), self.K)))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)


@dataclass(frozen=True)
class DFedAvgM(Graph[State]):
    """Local SGD with heavy-ball momentum, reset in every round, over a graph."""

    eta: Step
    """Local step size."""
    K: int
    """Local steps of a round."""
    theta: float = 0.9
    """Momentum, in [0, 1)."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K")
        below_one(self, "theta")

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(f.spread(x0))

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        eta = at(self.eta, f.t)
        y, v = s.x, 0 * s.x
        for k in range(self.K):
            v = self.theta * v - eta * f.grad(y, k)
            y = y + v
        return State(mix(y))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
