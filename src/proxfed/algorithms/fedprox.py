"""FedProx: FedAvg whose local steps are pulled back to the server's model.

    K times     y <- y - eta (grad f_i(y) + mu (y - x))         from y = x
    server      x <- x + eta_g (mean y - x)

The proximal term limits client drift on heterogeneous data, but the limit is biased like FedAvg's. For mu = 0 it is
FedAvg.

The paper lets clients stop anywhere near a solution of the local problem; here they take K steps.

What travels: one vector up, one down.
Reference: T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020, arXiv:1812.06127.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd
from proxfed.epochs import Epochs, Steps, local_steps
from proxfed.errors import positive, require
from proxfed.schedules import Step, at, non_negative_or_auto, positive_step
from proxfed.types import AUTO, Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, Stateless, When


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedProx(Star[Stateless, Server]):
    """Local SGD with a quadratic proximal term at the server's model."""

    eta: Step
    """Local step size."""
    K: Steps
    """Local steps of a round."""
    mu: FloatOrAuto
    """Weight of the proximal term: the local problem has mu/2 |y - x|^2."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        local_steps(self, "K")
        non_negative_or_auto(self, "mu")
        known = self.mu != AUTO or not isinstance(self.K, Epochs)
        require(known, f"FedProx: mu = 'auto' follows from K, so K = {self.K!r} must be a number")
        positive(self, "eta_g")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, anchored_sgd(f.grad, f.spread(x), at(self.eta, f.t), self.K, anchor=x, pull=self.mu)

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + self.eta_g * (y - s.x))

    def tied(self, s: float) -> dict[str, float]:
        return {} if isinstance(self.K, Epochs) else {"mu": 0.1 / (self.K * s)}
