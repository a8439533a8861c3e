"""DEPOSITUM: the accumulated errors of its analysis, and the right-hand sides (13) to (25) that bound them.

With the library's prox step alpha beta a run is the paper's with step alpha beta and gain 1, whose y and nu are ours
over beta (T00f). For gain 1 the proofs are right, so this is what is bounded here; alpha below is alpha beta. Where the
paper has beta^2 <= ..., only the product alpha^2 beta^2 enters, and the condition is that of `positive` below.

Two things are put right (E00.10, E00.11 of docs/theory.md). Lemma 4 has |J x^{t+1} - J x^t|^2 = alpha^2 |G|^2/n, where
it is at most alpha^2 |G|^2, as equal clients show. So the terms of G in (15), (18), (19), (20) and (21) lose their 1/n,
and in the condition on beta 96 n - 71 and 2 n become 25 and 2: those for n = 1. And (15) bounds g^1 - g^0 by
L |x^1 - x^0|, but g^0 is 0 and no gradient: y^1 = g^1 differs between clients as their data do. So (15), (18), (19),
(22) and (23) have one more term, in proportion to `start` = |J y^1 - y^1|^2.

Sums are over the iterations 0 .. T (s, G, estimation), 0 .. T+1 (x, y) and 1 .. T+1 (nu), and of norms of all clients'
rows together. `Every` runs iterations as rounds, so that all of them can be summed. noise is sigma^2/B, which can only
be estimated; it is 0 for full gradients. phi* is known of convex problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from torch import Tensor

from proxfed.algorithms.depositum import Depositum, State
from proxfed.errors import require
from proxfed.types import Constants, Problem


class Terms(NamedTuple):
    """Of x^t, y^t and nu^{t+1}; or their sums."""

    s: float  # |G^alpha(x)|^2 + L^2 |J x - x|^2 + n |mean_i grad f_i(x_i) - mean nu|^2
    G: float  # |G^alpha(x, nu)|^2
    estimation: float  # |mean_i grad f_i(x_i) - mean nu|^2
    x: float  # |J x - x|^2
    y: float
    nu: float


def terms(a: Depositum, p: Problem, state: State) -> Terms:
    """Of all clients at once, with uniform weights."""
    f, alpha, x = p.f.local(0, range(p.f.n)), a.alpha * a.beta, state.x
    y, nu = state.y / a.beta, a.shown(state)["nu"] / a.beta

    def G(gradients: Tensor) -> float:
        return float(((x - p.h.prox(x - alpha * gradients, alpha)) / alpha).square().sum())

    def apart(rows: Tensor) -> float:
        return float((rows - rows.mean(0)).square().sum())

    everywhere = x.new_empty(x.shape)
    for i, row in enumerate(x):
        everywhere[i] = f.full_grad(row).mean(0)
    estimation = float((f.full_grad(x).mean(0) - nu.mean(0)).square().sum())
    s = G(everywhere) + p.f.smoothness().L ** 2 * apart(x) + p.f.n * estimation
    return Terms(s, G(nu), estimation, apart(x), apart(y), apart(nu))


def accumulated(found: Sequence[Terms]) -> Terms:
    """The sums, from the terms of the iterations 0 .. T+1."""
    totals = Terms(*map(sum, zip(*found[:-1], strict=True)))
    return totals._replace(x=totals.x + found[-1].x, y=totals.y + found[-1].y)


@dataclass(frozen=True)
class Analysis:
    """Propositions 1 to 4, Theorem 1 and Corollary 1 for these steps; c.psi is lambda."""

    a: Depositum
    c: Constants

    def __post_init__(self) -> None:
        a, rho, L = self.a, self.c.weak_convexity, self.c.smoothness.L
        fits = a.tracking and a.mix_offset == 0 and (a.prox_step == "alpha_beta" or a.beta == 1)
        require(fits, "Depositum: its analysis needs tracking, mix_offset 0, and prox_step 'alpha_beta' or beta 1")
        largest = min(1 / (16 * L), 1 / (48 * rho) if rho > 0 else 1 / (16 * L))
        fits = self.alpha <= largest * (1 + 1e-12)
        require(fits, f"Depositum: its analysis needs alpha beta <= {largest:g}, not {self.alpha:g}")
        require(self.delta1 > 0, "Depositum: its analysis needs alpha beta rho < 1 - lambda^(1/(2 T0))")

    @property
    def alpha(self) -> float:
        """The prox step, alpha beta of the library."""
        return self.a.alpha * self.a.beta

    @property
    def omega(self) -> float:
        """The constant of (16) and (17)."""
        return (1 + 3 * self.a.gamma) / (1 - self.a.gamma) if self.a.option == "nesterov" else 1.0

    @property
    def pull(self) -> float:
        """gamma, or gamma^2 of OPTION II."""
        return self.a.gamma if self.a.option == "polyak" else self.a.gamma**2

    @property
    def delta1(self) -> float:
        """The constant of (14)."""
        lam, T0, kept = self.c.psi, self.a.T0, 1 - self.alpha * self.c.weak_convexity
        if lam > 0:
            return lam * (1 - lam) * (kept**2 - lam ** (1 / T0))
        return T0**T0 * kept ** (2 * T0 + 2) / (1 + T0) ** (T0 + 1)

    @property
    def delta2(self) -> float:
        """The constant of (15)."""
        lam, T0 = self.c.psi, self.a.T0
        return lam * (1 - lam) * (1 - lam ** (1 / T0)) if lam > 0 else T0**T0 / (1 + T0) ** (T0 + 1)

    def proposition_1(self, sums: Terms, gap: float) -> float:
        """(13), of the sum of s, with x up to T+1 as in all that follows; gap is phi(x0) - phi*."""
        n, alpha = self.c.n, self.alpha
        return -sums.G + 8 * n / alpha * gap + 142 * n * sums.estimation + 6 / alpha**2 * sums.x + 11 * sums.nu

    def consensus_x(self, sums: Terms) -> float:
        """(14), of the sum of |J x - x|^2."""
        return self.a.T0 * self.alpha**2 / self.delta1 * sums.nu

    def consensus_y(self, sums: Terms, T: int, start: float, noise: float = 0.0) -> float:
        """(15), of the sum of |J y - y|^2; start is |J y^1 - y^1|^2."""
        T0, L2 = self.a.T0, self.c.smoothness.L**2
        moved = 3 * self.alpha**2 * L2 * sums.G + 6 * L2 * sums.x
        return T0 / self.delta2 * (moved + start + 2 * self.c.n * T * noise)

    def consensus_nu(self, sums: Terms) -> float:
        """(16) and (17), of the sum of |J nu - nu|^2."""
        return self.omega * sums.y

    @property
    def _left(self) -> float:
        """delta1 delta2 - 6 omega T0^2 alpha^2 L^2."""
        left = self.delta1 * self.delta2 - 6 * self.omega * (self.a.T0 * self.alpha * self.c.smoothness.L) ** 2
        require(left > 0, "Depositum: Proposition 3 needs a shorter step alpha beta")
        return left

    def consensus_y_alone(self, sums: Terms, T: int, start: float, noise: float = 0.0) -> float:
        """(18) and (19), of the sum of |J y - y|^2."""
        moved = 3 * (self.alpha * self.c.smoothness.L) ** 2 * sums.G
        return self.a.T0 * self.delta1 / self._left * (moved + start + 2 * self.c.n * T * noise)

    def estimation(self, sums: Terms, T: int, gradient: float, noise: float = 0.0) -> float:
        """(20) and (21), of the sum of the estimation errors; gradient is |grad f(x0)|^2."""
        n, gamma, L2 = self.c.n, self.a.gamma, self.c.smoothness.L**2
        spread = 1 if self.a.option == "polyak" else 1 + 2 * gamma**2
        moved = 3 * self.alpha**2 * sums.G + 6 * sums.x
        first = (self.pull / (1 - gamma)) ** 2 * L2 / n * moved + gradient / (1 - gamma)
        return first + (1 - gamma) * spread * (1 + T) * noise / n

    @property
    def positive(self) -> float:
        """What is left of |G|^2 in (48) and (49): the theorem holds while it is not negative."""
        alpha_L2 = (self.alpha * self.c.smoothness.L) ** 2
        kept = 1 - 426 * alpha_L2 * (self.pull / (1 - self.a.gamma)) ** 2
        return kept - 3 * self.omega * self.a.T0 * self.delta1 * alpha_L2 * self._heavy / self._left

    @property
    def _heavy(self) -> float:
        return 11 + 359 * self.a.T0 / (48 * self.delta1)

    def theorem(self, T: int, gap: float, gradient: float, start: float, noise: float = 0.0) -> float:
        """(22) and (23), of the mean of s/n over the iterations 0 .. T."""
        gamma, L = self.a.gamma, self.c.smoothness.L
        short = 24 * self.pull * L * self.alpha <= (1 - gamma) * (1 + 1e-12)
        largest = (1 - gamma) / (24 * self.pull * L) if self.pull else float("inf")
        power = "gamma" if self.a.option == "polyak" else "gamma^2"
        bound = f"(1 - gamma)/(24 {power} L) = {largest:g}"
        require(short, f"Depositum: Theorem 1 needs alpha beta <= {bound}, not {self.alpha:g}")
        require(self.positive >= 0, "Depositum: Theorem 1 needs a shorter step alpha beta on this graph")
        momentum = (142 if self.a.option == "polyak" else 426) * (1 - gamma) / self.c.n
        local = self.omega * self.a.T0 * self.delta1 * self._heavy / self._left
        first = 8 * gap / self.alpha + 142 * gradient / (1 - gamma) + local * start / self.c.n
        return first / (T + 1) + (momentum + 2 * local) * noise


def corollary(option: str, n: int, T: int, T0: int, L: float, gap: float, gradient: float, sigma2: float) -> float:
    """(24) and (25) as they are printed, for B = sqrt(n); not proved, because their beta is not 1."""
    momentum = 142 if option == "polyak" else 426
    first = 192 * L * gap + 142 * gradient + 400 * sigma2 * sqrt(T0) / 9
    return first / sqrt(n * (T + 1)) + momentum * sigma2 / (n * sqrt(T + 1))
