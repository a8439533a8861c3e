"""FedNAG: Nesterov momentum in the workers; weights and momenta are both averaged.

    tau times   v_i <- gamma v_i - eta grad f_i(w_i),   w_i <- w_i + gamma v_i - eta grad f_i(w_i)
    server      w = sum p_i w_i,   v = sum p_i v_i

The effective step is eta/(1 - gamma). For tau > 1 and heterogeneous data the limit is biased.

What travels: two vectors up and two down (and one number up with output="best").
Reference: Z. Yang, W. Bao, D. Yuan, N. H. Tran, A. Y. Zomaya, "Federated Learning with Nesterov Accelerated Gradient",
IEEE Transactions on Parallel and Distributed Systems, 2022, arXiv:2009.08716.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed.errors import at_least_one, one_of, real, require
from proxfed.keyed_random import Key
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Constants, Facts, Local, Message, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    w: Tensor  # weights
    v: Tensor  # momentum
    best: Tensor  # the aggregated point of the lowest loss so far, for output="best"
    value: Tensor  # its loss; infinite until one is known


@dataclass(frozen=True)
class FedNAG(Star[Stateless, Server]):
    """Nesterov accelerated gradient in every worker, with weights and momenta averaged by a server."""

    eta: Step
    """Step size."""
    gamma: float
    """Momentum, in [0, 1]; with 1 it does not converge, as the paper shows."""
    tau: int
    """Local steps of a round."""
    output: str = "last"
    """The model is the 'last' aggregated point w(k tau), or the 'best' of them by its loss. Clients then report their
    losses at the point that they receive, so each point is compared one round later."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=2, down=2), exact=When(tau=1))

    def __post_init__(self) -> None:
        at_least_one(self, "tau")
        positive_step(self, "eta")
        require(real(self.gamma) and 0 <= self.gamma <= 1, f"FedNAG: gamma = {self.gamma!r} must be in [0, 1]")
        one_of(self, "output", ("last", "best"))

    def requires(self) -> Needs:
        return self.needs._replace(everyone=self.output == "best")

    def sends(self) -> Sends:
        return Sends(up=2, down=2, numbers_up=int(self.output == "best"))

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, 0 * x0, best=x0, value=x0.new_full((1,), torch.inf))

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        return s, (s.w, s.v)

    def client(self, own: Stateless, down: Message, f: Local, h: Regulariser) -> tuple[Stateless, Message]:
        w, v = map(f.spread, down)
        loss = (self._loss(w, f),) if self.output == "best" else ()
        eta = at(self.eta, f.t)
        for k in range(self.tau):
            g = f.grad(w, k)
            v = (self.gamma * v).sub_(g, alpha=eta)
            w = w.add(v, alpha=self.gamma).sub_(g, alpha=eta)
        return own, (w, v, *loss)

    def _loss(self, w: Tensor, f: Local) -> Tensor:
        """At the aggregated point; the starting point, sent in round 1, does not count."""
        return f.value(w)[:, None] if f.t > 1 else w.new_full((len(w), 1), torch.inf)

    def server(self, s: Server, up: Message, h: Regulariser, share: float) -> Server:
        w, v, *loss = up
        if not loss:
            return Server(w, v, best=w, value=s.value)
        value = torch.minimum(loss[0], s.value)
        best = w if value.isinf() else torch.where(loss[0] < s.value, s.w, s.best)
        return Server(w, v, best, value)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return s.best

    @classmethod
    def theory(cls, c: Constants, tau: int, gamma: float = 0.9, output: str = "last") -> FedNAG:
        """The largest step of the analysis, L eta (1 + gamma) = 1."""
        return replace(cls(1.0, gamma, tau, output), eta=1 / (c.smoothness.L * (1 + gamma)))
