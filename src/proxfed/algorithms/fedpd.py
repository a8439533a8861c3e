"""FedPD: a primal-dual method that skips communication at random.

    client      y_i ~ argmin f_i(y) + <g_i, y - x> + |y - x|^2/(2 eta)          by K gradient steps from its last y_i
                g_i <- g_i + (y_i - x)/eta
                x <- y_i + eta g_i,  and again from the top, with probability p
    server      x <- mean x_i

All clients share the coin that decides whether to communicate: the number of passes in a round is a function of `seed`
and the round, so it need not be sent. A round here ends with communication. For p = 0 it is FedADMM without
regulariser, and exact; a pass without communication takes every client towards its own solution.

Partial participation (`partial`; ours): clients send the change of x_i, and x <- x + share mean of it is the mean of
the last x_i of all clients. For p = 0 it is then also FedADMM without regulariser.

The authors' MATLAB code sends y_i + eta g_i with the g_i from before its update; the paper, and their Python code, with
the one after it, as here.

What travels: one vector up, one down, however many of these passes a round takes.
Reference: X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu, "FedPD: A Federated Learning Framework with Adaptivity to
Non-IID Data", IEEE Transactions on Signal Processing, 2021, arXiv:2005.11418.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import anchored_sgd, trials
from proxfed.errors import at_least_one, below_one
from proxfed.schedules import Step, at, positive_or_auto, positive_step
from proxfed.types import Facts, FloatOrAuto, Local, Needs, Regulariser, Sends, Star, When


class Client(NamedTuple):
    y: Tensor  # last local solution
    g: Tensor  # the dual


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedPD(Star[Client, Server]):
    """Consensus ADMM for smooth losses that skips rounds at random."""

    eta: FloatOrAuto
    """Penalty length: the local problem has |y - x|^2 / (2 eta)."""
    eta_l: Step
    """Step size of the local solver."""
    K: int
    """Steps of the local solver."""
    p: float = 0.0
    """Probability of another pass without communication, in [0, 1)."""
    seed: int = 0
    """Seed of the shared coin."""
    partial: bool = False
    """Whether to allow partial participation."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=When(p=0), step="eta_l", exact_partial=When(p=0))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        positive_step(self, "eta_l")
        at_least_one(self, "K")
        below_one(self, "p")

    def requires(self) -> Needs:
        return self.needs._replace(everyone=not self.partial)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x = f.spread(x0)
        return Client(x, 0 * x), Server(x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        eta, K, (y, g) = self.eta, self.K, own
        for j in range(trials(1 - self.p, self.seed, f.t)):
            y = anchored_sgd(f.grad, y, at(self.eta_l, f.t), K, anchor=x, pull=1 / eta, shift=g, draw=j * K)
            g = g + (y - x) / eta
            x = y + eta * g
        return Client(y, g), x - (own.y + eta * own.g) if self.partial else x

    def server(self, s: Server, up: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + share * up if self.partial else up)

    def carried(self, own: Client, s: Server, h: Regulariser, to: FedPD) -> tuple[Client, Server]:
        """Keeps x the mean of all y_i + eta g_i."""
        return own._replace(y=s.x.lerp(own.y, to.eta / self.eta)), s

    def tied(self, s: float) -> dict[str, float]:
        return {"eta": self.K * s}
