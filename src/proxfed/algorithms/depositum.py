"""DEPOSITUM: decentralised non-convex composite optimisation by proximal gradient tracking with momentum.

    v = m   (option="polyak")   or   gamma m + (1 - gamma) y   (option="nesterov")
    x <- mix prox_{alpha beta h}(x - alpha v)
    y <- mix (y + beta (grad f_i(x_new) - grad f_i(x_old)))
    m <- gamma m + (1 - gamma) y

A round is T0 such iterations; only the last of them mixes, x first and then y, with the graph of that round. It begins
with x = x0 and all other variables zero, so that mean(y) = beta mean(grad f_i) at all times.

The paper takes the prox with step alpha. Its fixed points then minimise f + h/beta, not f + h, so prox_step="alpha"
is kept for reproducing its experiments only; the two agree for beta = 1 and for indicators.

Without tracking (`tracking` = false; the ablation of section IV-A, for beta = 1) momentum uses each client's own
gradients, y = beta grad f_i(x_new), and only x is mixed. Clients then descend on their own f_i, which causes a bias on
heterogeneous data.

What travels: two vectors over each edge of a round; one without tracking.
Reference: Y. Zhou, X. Shi, X. Li, J. Zhong, G. Wen, J. Cao, "Decentralized Nonconvex Composite Federated Learning with
Gradient Tracking and Momentum", arXiv:2504.12742, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import at_least_one, below_one, one_of, positive, require
from proxfed.schedules import positive_or_auto
from proxfed.types import Constants, Facts, FloatOrAuto, Graph, Local, Mean, Mix, Needs, Regulariser, Sends, When


class State(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # tracks beta times the mean gradient
    g: Tensor  # gradient at x
    m: Tensor  # momentum of the next step


@dataclass(frozen=True)
class Depositum(Graph[State]):
    """Proximal gradient tracking with momentum and local updates, on a graph."""

    alpha: FloatOrAuto
    """Step size."""
    beta: float = 1.0
    """Gain of the gradient tracking; only alpha * beta matters."""
    gamma: float = 0.5
    """Momentum, in [0, 1)."""
    T0: int = 1
    """Iterations per round; the last one mixes."""
    option: str = "polyak"
    """'polyak' (OPTION I) or 'nesterov' (OPTION II)."""
    prox_step: str = "alpha_beta"
    """'alpha_beta' solves f + h; 'alpha', the paper's, solves f + h/beta."""
    mix_offset: int = 0
    """0: iterations T0, 2 T0, ... mix (the paper); 1: iterations T0 - 1, 2 T0 - 1, ... do."""
    tracking: bool = True
    """False: momentum of each client's own gradients, without gradient tracking."""

    needs: ClassVar[Needs] = Needs(doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(
        Sends(edge=2),
        exact=When(tracking=True, prox_step="alpha_beta") | When(tracking=True, beta=1),
        step="alpha",
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "alpha")
        positive(self, "beta")
        at_least_one(self, "T0")
        below_one(self, "gamma")
        one_of(self, "option", ("polyak", "nesterov"))
        one_of(self, "prox_step", ("alpha_beta", "alpha"))
        one_of(self, "mix_offset", (0, 1))

    def sends(self) -> Sends:
        return Sends(edge=2 if self.tracking else 1)

    @property
    def s(self) -> float:
        return self.alpha * self.beta if self.prox_step == "alpha_beta" else self.alpha

    def largest_prox_step(self) -> float:
        return self.s

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        start = State(x, 0 * x, 0 * x, 0 * x)
        return start if self.mix_offset else self._iterate(start, f, h, 0, _alone)

    def before_mix(self, s: State, f: Local, h: Regulariser) -> State:
        """All iterations but the last."""
        for k in range(self.T0 - 1):
            s = self._iterate(s, f, h, k, _alone)
        return s

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        return self._iterate(s, f, h, self.T0 - 1, mix)

    def _iterate(self, s: State, f: Local, h: Regulariser, draw: int, mix: Mix) -> State:
        x = mix(h.prox(s.x.sub(self._direction(s.m, s.y), alpha=self.alpha), self.s))
        g = f.grad(x, draw)
        y = mix(s.y.add(g - s.g, alpha=self.beta)) if self.tracking else self.beta * g
        return State(x, y, g, self._momentum(s.m, y))

    def _momentum(self, m: Tensor, y: Tensor) -> Tensor:
        return y.lerp(m, self.gamma)

    def _direction(self, m: Tensor, y: Tensor) -> Tensor:
        return m if self.option == "polyak" else self._momentum(m, y)

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        """The next prox step of the averages: it has the structure of h, where mixing blurs the zeros of mean(x)."""
        v = self._direction(mean(s.m), mean(s.y))
        return h.prox(mean(s.x) - self.alpha * v, self.s)

    def shown(self, s: State) -> dict[str, Tensor]:
        """nu^{t+1} of the paper beside x^t: the direction of the next step, with either option."""
        return {"nu": self._direction(s.m, s.y)}

    @classmethod
    def theory(
        cls, c: Constants, gamma: float = 0.5, T0: int = 1, option: str = "polyak", schedule: str = "constant"
    ) -> Depositum:
        """Step sizes of the convergence theorem, or of its linear speed-up corollary (schedule="speed_up")."""
        checked = cls(1.0, 1.0, gamma, T0, option)
        L, n, rho, lam = c.smoothness.L, c.n, c.weak_convexity, c.psi
        T = c.rounds * T0 + 1
        if schedule == "speed_up":
            least = max(n, ceil(4 * n * rho**2 / L**2))
            require(least <= T, f"Depositum: the speed-up schedule needs at least {least} iterations, not {T}")
            gamma = 1 - sqrt(n / T)
            alpha = sqrt(n) / (24 * L * sqrt(T))
        else:
            require(schedule == "constant", f"Depositum: schedule = {schedule!r} is not one of 'constant', 'speed_up'")
            pull = gamma if option == "polyak" else gamma**2
            alpha = 1 / (16 * L)
            alpha = min(alpha, (1 - gamma) / (24 * pull * L)) if pull > 0 else alpha
            alpha = min(alpha, 1 / (48 * rho)) if rho > 0 else alpha
        if rho > 0:  # alpha rho < 1 - lam^{1/(2 T0)} keeps delta1 positive
            alpha = min(alpha, (1 - lam ** (1 / (2 * T0))) / (2 * rho))
        if lam > 0:
            delta1 = lam * (1 - lam) * ((1 - alpha * rho) ** 2 - lam ** (1 / T0))
            delta2 = lam * (1 - lam) * (1 - lam ** (1 / T0))
        else:
            delta2 = T0**T0 / (1 + T0) ** (T0 + 1)
            delta1 = delta2 * (1 - alpha * rho) ** (2 * T0 + 2)
        if schedule == "speed_up":
            beta2 = 3200 * delta1 * delta2 / ((1584 * delta1 + 1077 * T0) * sqrt(T0 * T) + 75 * T0**2)
        else:
            beta2 = 8 * delta1 * delta2 * (96 * n - 71) / (9 * T0 * (11 * delta1 + 6 * T0 + 2 * n * T0))
        omega = (1 + 3 * gamma) / (1 - gamma) if option == "nesterov" else 1
        return replace(checked, alpha=alpha, beta=sqrt(beta2 / omega), gamma=gamma)


def _alone(x: Tensor) -> Tensor:
    return x
