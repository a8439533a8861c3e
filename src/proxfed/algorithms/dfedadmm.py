"""DFedADMM and DFedADMM-SAM: decentralised ADMM whose duals control the inconsistency of local models.

    K times     y <- y - eta_l (grad f_i(y) - g_i + (y - x_i)/lam)          from y = x_i
                with rho > 0 (SAM) the gradient is taken at y + rho grad/|grad|, on the same minibatch
    dual        g_i' = g_i - (y - x_i)/lam
    send        z_i = y - lam g_i = x_i - lam g_i'   (dual="old")   or   y - lam g_i'   (dual="new")
                x_i <- mix z_i

The dual is an average of local gradients, g_i' = (1 - w) g_i + w G_i with w = 1 - (1 - eta_l/lam)^K, so with the old
dual it is momentum SGD over the graph with step lam. The paper's algorithm and analysis use the old dual; consensus
ADMM gives the new one, which is better when lam L is large and K solves the local problem. In our runs of the paper's
experiments the new one is nearly always faster and closer to the paper's numbers, which were probably made with it.
Its fixed points are those of decentralised gradient descent with step lam: exact on the complete graph, biased by
O(lam) on others.

What travels: one vector over each edge of a round.
Reference: Q. Li, L. Shen, G. Li, Q. Yin, D. Tao, "DFedADMM: Dual Constraints Controlled Model Inconsistency for
Decentralized Federated Learning", arXiv:2308.08290, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import gradient
from proxfed.errors import at_least_one, non_negative, one_of, positive, require
from proxfed.schedules import Step, at, at_most_lam, positive_or_auto, positive_step
from proxfed.types import Constants, Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    g: Tensor  # the dual


@dataclass(frozen=True)
class DFedADMM(Graph[State]):
    """Decentralised ADMM, sharpness-aware with rho > 0, on fixed or changing graphs."""

    eta_l: Step
    """Local step size, at most the penalty length."""
    K: int
    """Local steps of a round."""
    lam: FloatOrAuto | None = None
    """Penalty length lambda: the local problem has |y - x|^2 / (2 lam). Give this or inverse_penalty."""
    inverse_penalty: float | None = None
    """1/lam: the coefficient of the quadratic; the 0.1 of the paper's experiments."""
    rho: float = 0.0
    """Radius of sharpness-aware minimisation; 0: off."""
    dual: str = "old"
    """Which dual enters the message: 'old' (the paper) or 'new' (FedPD, consensus ADMM), the faster one in our runs."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=False, step="eta_l")

    def __post_init__(self) -> None:
        at_least_one(self, "K")
        non_negative(self, "rho")
        one_of(self, "dual", ("old", "new"))
        given = [name for name in ("lam", "inverse_penalty") if getattr(self, name) is not None]
        require(len(given) == 1, "DFedADMM: give exactly one of lam and inverse_penalty")
        positive_step(self, "eta_l")
        (positive_or_auto if given == ["lam"] else positive)(self, *given)
        at_most_lam(self, "eta_l", self.length)

    @property
    def length(self) -> float:
        return self.lam if self.lam is not None else 1 / self.inverse_penalty  # type: ignore[operator]

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x)

    def before_mix(self, s: State, f: Local, h: Regulariser) -> State:
        """The local steps and the new dual, with the point that the message starts from: x for the old dual, else y."""
        eta, lam = at(self.eta_l, f.t), self.length
        y, target = s.x, s.x + lam * s.g  # the dual and the penalty together pull y towards one point
        for k in range(self.K):
            y = y.lerp(target, eta / lam).sub_(gradient(f, y, k, self.rho), alpha=eta)
        return State(s.x if self.dual == "old" else y, s.g - (y - s.x) / lam)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        return State(mix(s.x - self.length * s.g), s.g)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)

    @classmethod
    def theory(cls, c: Constants, K: int, sam: bool = False, dual: str = "old") -> DFedADMM:
        """Step sizes of the theorem and its corollary: eta_l <= 1/(96 K L), lam = sqrt(K) eta_l, rho = 1/sqrt(T)."""
        root = sqrt(c.rounds)
        checked = cls(1.0, K, lam=1.0, rho=1 / root if sam else 0.0, dual=dual)
        eta_l = 1 / (c.smoothness.L * K * max(96, root))
        return replace(checked, eta_l=eta_l, lam=sqrt(K) * eta_l)

    def tied(self, s: float) -> dict[str, float]:
        return {"lam": self.K * s}
