"""FedPAQ: FedAvg with compressed updates, without error feedback.

    K times     y <- prox_{eta h}(y - eta grad f_i(y))          from y = x
    server      x <- x + eta_g mean C(y - x)

Use it with unbiased compressors. A contractive one such as TopK loses the same part of the update in every round, so
the method stalls, unlike those with error feedback (EF14, EF21, FedCEF). With the identity it is FedAvg.

What travels: C(d) up, one vector down.
Reference: A. Reisizadeh, A. Mokhtari, H. Hassani, A. Jadbabaie, R. Pedarsani, "FedPAQ: A Communication-Efficient
Federated Learning Method with Periodic Averaging and Quantization", AISTATS 2020, arXiv:1909.13014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import proximal_sgd
from proxfed.compressors import Identity
from proxfed.errors import at_least_one, positive
from proxfed.schedules import Step, at, first, positive_step
from proxfed.types import Compressor, Facts, Local, Needs, Packed, Regulariser, Sends, Star, Stateless


class Server(NamedTuple):
    x: Tensor  # the model


@dataclass(frozen=True)
class FedPAQ(Star[Stateless, Server]):
    """Local (proximal) SGD with compressed updates and no error feedback."""

    eta: Step
    """Local step size."""
    K: int
    """Local steps of a round."""
    compressor: Compressor = Identity()
    """Compressor of the uplink."""
    eta_g: float = 1.0
    """Server step size."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("up",)), exact=False)

    def __post_init__(self) -> None:
        positive_step(self, "eta")
        at_least_one(self, "K")
        positive(self, "eta_g")

    def largest_prox_step(self) -> float:
        return first(self.eta)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Packed]:
        y = proximal_sgd(f, h, f.spread(x), at(self.eta, f.t), self.K)
        return own, self.compressor(y - x, f.key)

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        return Server(s.x + self.eta_g * D)
