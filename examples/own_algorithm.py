"""An algorithm of your own: local proximal gradient steps with a server average of the dual points.

Subclass Star (a server) or Graph (peers), write the equations for one block of clients, and run it like any other.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed import FedAvg, Linear, Logistic, load, run
from proxfed.keyed_random import Key
from proxfed.regularisers import L1
from proxfed.types import Facts, Local, Needs, Regulariser, Sends, Star, Stateless


class Server(NamedTuple):
    z: Tensor  # the model before its prox


@dataclass(frozen=True)
class DualAverage(Star[Stateless, Server]):
    """Clients take K gradient steps from the prox point; the server averages models before their prox step."""

    eta: float
    """Local step size."""
    K: int
    """Local steps of a round."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=False)

    def largest_prox_step(self) -> float:
        return self.eta * self.K

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Server]:
        return (), Server(x0)

    def down(self, s: Server, key: Key) -> tuple[Server, Tensor]:
        return s, s.z

    def client(self, own: Stateless, z: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        w = f.spread(h.prox(z, self.eta * self.K))
        for k in range(self.K):
            w = w - self.eta * f.grad(w, k)
        return own, w

    def server(self, s: Server, w: Tensor, h: Regulariser, share: float) -> Server:
        return Server(w)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.z, self.eta * self.K)


data = load("synthetic_binary", alpha=1.0, beta=1.0, clients=10, samples=100, features=20)
problem = Linear(data, Logistic(), l2=0.01, batch=10) + L1(0.01)
best = problem.solve()
for algorithm in (FedAvg(eta=0.5, K=5), DualAverage(eta=0.5, K=5)):
    row = run(problem, algorithm, rounds=100, every=100, reference=best).rows[-1]
    print(f"{type(algorithm).__name__:12}  error {row['error']:.3f}  non-zeros {row['nonzeros']} of {problem.f.d}")
