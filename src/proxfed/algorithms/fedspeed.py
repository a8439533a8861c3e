"""FedSpeed: a prox term, its dual as correction, and a gradient that is part sharpness-aware.

    K times     g = (1 - alpha) grad f_i(y) + alpha grad f_i(y + rho grad/|grad|)
                y <- y - eta (g - g_i + (y - x)/lam)                            from y = x
    client      g_i <- g_i - (y - x)/lam
    server      g <- g - share mean(y - x)/lam,   x <- mean y - lam g

g is the mean of the g_i of all clients, and share the fraction of clients that participate. Without perturbation
(rho = 0 or alpha = 0) it is FedDyn, and exact. With full participation x = mean(y - lam g_i), and it is DFedADMM with
the new dual on the complete graph.

The mean of all g_i follows the authors' simulator. Averaging y - lam g_i over the participants is the same with full
participation, but otherwise does not converge on heterogeneous data.

What travels: one vector up, one down.
Reference: Y. Sun, L. Shen, T. Huang, L. Ding, D. Tao, "FedSpeed: Larger Local Interval, Less Communication Round, and
Higher Generalization Accuracy", ICLR 2023, arXiv:2302.10429.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd, gradient
from proxfed.errors import at_least_one, non_negative, require
from proxfed.schedules import Step, at, at_most_lam, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, When


class Client(NamedTuple):
    g: Tensor  # the dual, an average of own gradients


class Server(NamedTuple):
    x: Tensor  # the model
    g: Tensor  # mean of all g


@dataclass(frozen=True)
class FedSpeed(Star[Client, Server]):
    """Prox-corrected local steps with a partly sharpness-aware gradient."""

    eta: Step
    """Local step size, at most lam."""
    K: int
    """Local steps of a round."""
    lam: FloatOrAuto
    """Penalty length: the local problem has |y - x|^2 / (2 lam)."""
    rho: float = 0.1
    """Radius of the perturbation; 0: none."""
    alpha: float = 1.0
    """Part of the perturbed gradient, in [0, 1]."""

    needs: ClassVar[Needs] = Needs(composite=False, exact_downlink=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1),
        exact=When(rho=0) | When(alpha=0),
        exact_partial=When(rho=0) | When(alpha=0),
    )

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        positive_or_auto(self, "lam")
        at_least_one(self, "K")
        non_negative(self, "rho", "alpha")
        require(self.alpha <= 1, f"FedSpeed: alpha = {self.alpha!r} must be in [0, 1]")
        at_most_lam(self, "eta", self.lam)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        return Client(f.spread(0 * x0)), Server(x0, 0 * x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        def grad(y: Tensor, draw: int) -> Tensor:
            return gradient(f, y, draw, self.rho, self.alpha)

        y = anchored_sgd(grad, f.spread(x), at(self.eta, f.t), self.K, anchor=x, pull=1 / self.lam, shift=-own.g)
        return Client(own.g - (y - x) / self.lam), y

    def server(self, s: Server, y: Tensor, h: Regulariser, share: float) -> Server:
        g = s.g - share * (y - s.x) / self.lam
        return Server(y - self.lam * g, g)

    def tied(self, s: float) -> dict[str, float]:
        return {"lam": self.K * s}
