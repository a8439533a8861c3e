"""FedAdam, FedYogi and FedAdagrad: an adaptive optimiser at the server, with the mean update as its gradient.

    K times     y <- y - eta grad f_i(y)                                from y = x
    server      D = mean y - x,   m <- beta1 m + (1 - beta1) D
                v <- beta2 v + (1 - beta2) D^2                          rule = "adam"
                v <- v - (1 - beta2) D^2 sign(v - D^2)                  rule = "yogi"
                v <- v + D^2                                            rule = "adagrad"
                x <- x + eta_g m/(sqrt(v) + tau)

entry by entry, from m = 0 and v = tau^2. tau is the size of an entry of D below which steps are no longer adapted;
if it is large compared with D, the server takes plain steps with momentum beta1. There is no bias correction.

The paper's FedAdagrad has beta1 = 0.

What travels: one vector up, one down.
Reference: S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan, "Adaptive
Federated Optimization", ICLR 2021, arXiv:2003.00295.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import sgd
from proxfed.epochs import Steps, local_steps
from proxfed.errors import below_one, one_of, positive
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    x: Tensor  # the model
    m: Tensor  # mean update
    v: Tensor  # mean square of its entries


@dataclass(frozen=True)
class FedOpt(Star[Stateless, Server]):
    """Local SGD with Adam, Yogi or Adagrad at the server."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    eta_g: float
    """Server step size: about as far as an entry of x moves in a round. It does not follow from 1/L, so it cannot be
    "auto"; `proxfed tune` chooses it."""
    rule: str = "adam"
    """'adam' (FedAdam), 'yogi' (FedYogi) or 'adagrad' (FedAdagrad)."""
    tau: float = 1e-3
    """Degree of adaptivity: a smaller tau adapts more."""
    beta1: float = 0.9
    """Memory of the mean update, in [0, 1)."""
    beta2: float = 0.99
    """Memory of the squares, in [0, 1); Adagrad forgets nothing."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        positive(self, "eta_g", "tau")
        one_of(self, "rule", ("adam", "yogi", "adagrad"))
        below_one(self, "beta1", "beta2")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0, 0 * x0, 0 * x0 + self.tau**2)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, sgd(f, f.spread(x), at(self.eta, f.t), self.K)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        D = y - s.x
        m = self.beta1 * s.m + (1 - self.beta1) * D
        v = self._squares(s.v, D.square())
        return Server(s.x + self.eta_g * m / (v.sqrt() + self.tau), m, v)

    def _squares(self, v: Tensor, new: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return v + new
        if self.rule == "yogi":
            return v - (1 - self.beta2) * new * (v - new).sign()
        return self.beta2 * v + (1 - self.beta2) * new
