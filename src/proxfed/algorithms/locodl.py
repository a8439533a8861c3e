"""LoCoDL: local steps, and compressed differences from a shared model.

    each step       xh_i = x_i - gamma grad f_i(x_i) + gamma u_i,   yh = y - gamma grad g(y) + gamma v
                    with probability p:
                        client sends    d_i = C(xh_i - yh)
                        server sends    db = mean d_i/2
                        x_i = (1 - rho) xh_i + rho (yh + db),   u_i <- u_i + (p chi/(gamma (1 + 2 omega))) (db - d_i)
                        y = yh + rho db,                        v <- v + (p chi/(gamma (1 + 2 omega))) db
                    else
                        x_i = xh_i,   y = yh

f = mean f_i + g with a public g, so y and v are public. E|C(v) - v|^2 <= omega |v|^2, and C is unbiased. The paper
requires smooth and strongly convex f_i and g; problems without a g split it off from the f_i: here
g(x) = (mu_g/2) |x|^2 is subtracted from each f_i. mean u_i + v = 0 at all times. At a fixed point d_i = 0, so all x_i
are y, and u_i, v are the gradients of f_i and g.

All clients share the coin: the number of steps in a round is a function of `seed` and of the rounds so far. A round is
all steps up to the one that communicates, 1/p on average.

What travels: C(d) up, one vector down.
Reference: L. Condat, A. Maranjyan, P. Richtarik, "LoCoDL: Communication-Efficient Distributed Learning with Local
Training and Compression", ICLR 2025, arXiv:2403.04348.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.algorithms.local_steps import trials
from proxfed.compressors import Identity
from proxfed.errors import non_negative, positive, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import Compressor, Facts, FloatOrAuto, Local, Needs, Packed, Regulariser, Sends, Star


class Client(NamedTuple):
    xh: Tensor  # own model before the server's message
    u: Tensor  # own control variate, without the part of db
    yh: Tensor  # public: the shared model before the server's message
    v: Tensor  # public: its control variate
    t: Tensor  # public: rounds so far


class Server(NamedTuple):
    yh: Tensor  # public
    v: Tensor  # public
    t: Tensor  # public
    db: Tensor  # half the mean of the clients' messages


@dataclass(frozen=True)
class LoCoDL(Star[Client, Server]):
    """Local steps with control variates, and an unbiased compressor on the uplink."""

    gamma: FloatOrAuto
    """Step size."""
    p: float
    """Probability that a step communicates, in (0, 1]."""
    compressor: Compressor = Identity()
    """Unbiased compressor of the uplink."""
    mu_g: float = 0.0
    """Curvature moved from every f_i to g; must be below their strong convexity."""
    rho: float = 1.0
    """Step towards the mean, in (0, 1]."""
    chi: float = 1.0
    """Step of the control variates."""
    seed: int = 0
    """Seed of the shared coin."""

    needs: ClassVar[Needs] = Needs(composite=False, everyone=True, unbiased=True, exact_downlink=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("up",)), exact=True, step="gamma", variate="u")

    def __post_init__(self) -> None:
        positive_or_auto(self, "gamma")
        up_to_one(self, "p", "rho")
        non_negative(self, "mu_g")
        positive(self, "chi")

    def _dual_step(self, d: int) -> float:
        return self.p * self.chi / (self.gamma * (1 + 2 * self.compressor.contraction(d)))

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        x, t = f.spread(x0), x0.new_zeros(1)
        return Client(x, 0 * x, x, 0 * x, f.spread(t)), Server(x0, 0 * x0, t, 0 * x0)

    def _shared(self, yh: Tensor, v: Tensor, db: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """yh and v after the server's message and the steps of a round: the same operations for one row or many."""
        v = v + self._dual_step(db.shape[-1]) * db
        y = yh + self.rho * db
        for _ in range(steps):
            y = y - self.gamma * (self.mu_g * y) + self.gamma * v
        return y, v

    def down(self, s: Server, key: Key) -> tuple[Server, Tensor]:
        t = s.t + 1
        yh, v = self._shared(s.yh, s.v, s.db, trials(self.p, self.seed, int(t)))
        return s._replace(yh=yh, v=v, t=t), s.db

    def client(self, own: Client, db: Tensor, f: Local, h: Regulariser) -> tuple[Client, Packed]:
        t, k = own.t + 1, self._dual_step(db.shape[-1])
        steps = trials(self.p, self.seed, int(t[0])) if len(t) else 0
        x, u = own.xh.lerp(own.yh + db, self.rho), own.u + k * db
        for j in range(steps):
            x = x - self.gamma * (f.grad(x, j) - self.mu_g * x) + self.gamma * u
        yh, v = self._shared(own.yh, own.v, db, steps)
        D = self.compressor(x - yh, f.key)
        return Client(x, u - k * D.dense, yh, v, t), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        return s._replace(db=D / 2)

    def carried(self, own: Client, s: Server, h: Regulariser, to: LoCoDL) -> tuple[Client, Server]:
        """Keeps mean u_i + v = 0: the clients' messages use the new dual step, db the old one."""
        d = s.db.shape[-1]
        return own._replace(u=own.u + 2 * (self._dual_step(d) - to._dual_step(d)) * s.db), s

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return s.yh + self.rho * s.db
