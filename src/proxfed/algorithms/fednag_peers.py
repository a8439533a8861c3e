"""FedNAG without a server: an iteration is a round, and weights and momenta are mixed over a graph.

    v_i <- gamma v_i - eta grad f_i(x_i),   x_i <- x_i + gamma v_i - eta grad f_i(x_i)
    x <- mix x,   v <- mix v

On the complete graph in every tau-th round (topology = {name = "every", of = {name = "complete"}, k = tau}) it is
FedNAG with uniform weights: nothing is sent in between, and the model is w(t), the mean of the workers at every
iteration, which the paper defines for its analysis and plots in its figures. Other graphs are our extension: momenta
are mixed like models. With heterogeneous data the limit is biased.

What travels: two vectors over each edge of a round.
Reference: Z. Yang, W. Bao, D. Yuan, N. H. Tran, A. Y. Zomaya, "Federated Learning with Nesterov Accelerated Gradient",
IEEE Transactions on Parallel and Distributed Systems, 2022, arXiv:2009.08716.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import real, require
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # weights
    v: Tensor  # momentum


@dataclass(frozen=True)
class FedNAGPeers(Graph[State]):
    """Nesterov accelerated gradient in every worker, with weights and momenta mixed over a graph."""

    eta: Step
    """Step size."""
    gamma: float
    """Momentum, in [0, 1]; with 1 it does not converge."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=2), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        require(real(self.gamma) and 0 <= self.gamma <= 1, f"FedNAGPeers: gamma = {self.gamma!r} must be in [0, 1]")

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x)

    def before_mix(self, s: State, f: Local, h: Regulariser) -> State:
        eta, g = at(self.eta, f.t), f.grad(s.x, 0)
        v = (self.gamma * s.v).sub_(g, alpha=eta)
        return State(s.x.add(v, alpha=self.gamma).sub_(g, alpha=eta), v)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(mix(s.x), mix(s.v))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
