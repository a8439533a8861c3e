"""CHOCO-SGD: decentralised SGD with compressed gossip, for any contractive compressor.

Every client keeps a public copy xh_i of its model, which its neighbours can follow from the messages, and
s_i = sum_j w_ij xh_j. Only the compressed difference between the model and its public copy travels:

    atc     y = x - eta grad f(x)
            q = C(y - xh),   xh <- xh + q,   s <- s + mix q
            x <- y + gamma (s - xh)
    cta     x <- x - eta grad f(x) + gamma (s - xh)
            q = C(x - xh),   xh <- xh + q,   s <- s + mix q

"atc" is the algorithm of 2019, "cta" that of 2020 (and of the code of both), whose exchange and gradients may run at
the same time. With C the identity and gamma = 1 they are D-PSGD of the same name. K > 1 takes K local steps before it
communicates. The mean of the x_i moves by the mean gradient whatever C is. s is a running sum, so W must stay the same
in all rounds. It begins with xh = s = x0, which is public.

What travels: C of one vector over each edge of a round.
Reference: A. Koloskova, S. U. Stich, M. Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", ICML 2019, arXiv:1902.00340; A. Koloskova, T. Lin, S. U. Stich, M. Jaggi, "Decentralized Deep
Learning with Arbitrary Communication Compression", ICLR 2020, arXiv:1907.09356.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.compressors import Identity
from proxfed.errors import at_least_one, one_of, up_to_one
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Compressor, Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    xh: Tensor  # its public copy
    s: Tensor  # the mixed public copies


@dataclass(frozen=True)
class ChocoSGD(Graph[State]):
    """Decentralised SGD with compressed gossip and error feedback, on a fixed graph."""

    eta: Step
    """Step size."""
    gamma: float
    """Gossip step size, in (0, 1]: the coarser the compressor, the smaller."""
    compressor: Compressor = Identity()
    """Contractive compressor of the messages over edges."""
    K: int = 1
    """Local steps of a round."""
    variant: str = "atc"
    """'atc': step, then mix; 'cta': step and mix the messages of the last round at the same time."""

    needs: ClassVar[Needs] = Needs(composite=False, contractive=True, fixed_graph=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1, compressed=("edge",)), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        up_to_one(self, "gamma")
        at_least_one(self, "K")
        one_of(self, "variant", ("atc", "cta"))

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, x, x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        y = sgd(f, s.x, at(self.eta, f.t), self.K)
        if self.variant == "cta":
            x = y + self.gamma * (s.s - s.xh)
            xh, mixed = self._publish(x, s, f, mix)
        else:
            xh, mixed = self._publish(y, s, f, mix)
            x = y + self.gamma * (mixed - xh)
        return State(x, xh, mixed)

    def _publish(self, x: Tensor, s: State, f: Local, mix: Mix) -> tuple[Tensor, Tensor]:
        """The public copies, own and mixed, after all clients have sent their changes for the new x."""
        q = self.compressor(x - s.xh, f.key)
        return s.xh + q.dense, s.s + mix(q)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
