"""FedNova: normalised averaging, for clients that take different numbers of local steps.

    K_i times   u <- rho u + grad f_i(y),   y <- y - eta u              from y = x, u = 0
    client      a_i = sum of the weights that its gradients have in (x - y)/eta;   a_i = K_i for rho = 0
    server      x <- x - mean(a_i) mean((x - y)/a_i)

Plain averaging of y would weight a client by the number of its steps, and so minimise another objective. Here a
client's K_i is drawn once, when the run begins, from K_min .. K: a fast or a slow device. With K_min = K, rho = 0 it
is FedAvg. Clients run in parallel; those with fewer steps wait, and their unused gradients are counted, too.

What travels: one vector and one number up, one vector down.
Reference: J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020, arXiv:2007.07481.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.errors import at_least_one, below_one, require
from proxfed.schedules import Step, at, positive_step
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star, When


class Client(NamedTuple):
    steps: Tensor  # K_i, (c, 1)


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedNova(Star[Client, Server]):
    """Local SGD with different numbers of steps per client, and normalised averaging."""

    eta: Step
    """Local step size."""
    K: int
    """The most local steps per round."""
    K_min: int = 1
    """The fewest local steps per round."""
    rho: float = 0.0
    """Momentum of the local steps, in [0, 1)."""

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, numbers_up=1), exact=When(K=1))

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K", "K_min")
        require(self.K_min <= self.K, f"FedNova: K_min = {self.K_min} must be at most K = {self.K}")
        below_one(self, "rho")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        steps = self.K_min + keyed_random.integers(f.key, 1, self.K - self.K_min + 1)
        return Client(torch.as_tensor(steps, dtype=x0.dtype, device=x0.device)), Server(x0)

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Message]:
        eta, y = at(self.eta, f.t), f.spread(x)
        u = 0 * y
        w = a = 0 * own.steps
        for k in range(self.K):
            goes_on = own.steps > k
            u = self.rho * u + f.grad(y, k)
            w = self.rho * w + 1  # the weights follow the gradients: a is what y would be if each of them were -1/eta
            y = y - eta * goes_on * u
            a = a + goes_on * w
        return own, ((x - y) / a, a)

    def server(self, s: Server, up: Message, h: Regulariser, share: float) -> Server:
        direction, a = up
        return Server(s.x - a * direction)
