"""FedNAG: virtual updates, the gaps to them (Lemmas 2 and 3, Theorem 1), the bounds of Theorems 2 and 3 and of FedAvg,
and where they cross.

    h(x)     how far x local steps may lead away from one machine that holds all data: eq. (16); FedAvg's in (21)
    alpha    of Theorem 2, (rate) eta (1 - L eta/2) for FedAvg
    f(T)     = 1/(2 T omega alpha) + sqrt(1/(4 T^2 omega^2 alpha^2) + rho h(tau)/(omega alpha tau)) + rho h(tau)
             f_1 of FedNAG, eq. (22), and f_2 of FedAvg, eq. (23), both of F(w^f) - F*
    eta_bar  the largest step with f_1(T) < f_2(T)

The paper's beta is L here. No constant but L is known in advance: `observed` takes them from the aggregated points of
a run, which is all that the proofs use of them. For small steps alpha is negative (it goes to -1/2), and then the
theorem says nothing: f_1 is infinite there, so that f_1 < f_2 holds, if at all, between two steps and not from 0 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from torch import Tensor

from proxfed.algorithms.fednag import FedNAG, Server
from proxfed.errors import InputError, require
from proxfed.types import Problem


class Observed(NamedTuple):
    """The constants of the analysis, along the virtual paths of a run."""

    L: float  # every f_i is L-smooth
    delta: float  # sum_i p_i max |grad f_i - grad f|
    rho: float  # |F(w) - F(w_[k])| <= rho |w - w_[k]|
    omega: float  # min 1/|w_[k] - w*|^2
    p: float  # max |gamma v_[k]| / |eta grad F(w_[k])|


def virtual(a: FedNAG, p: Problem, s: Server, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """w_[k](t), v_[k](t) of eqs. (13) and (14): from here on, one machine that holds all data. Full gradients."""
    f, (w, v), eta = p.f.local(0, range(p.f.n)), (s.w, s.v), one_step(a)
    for _ in range(steps):
        g = p.f.weights @ f.full_grad(w)
        v = a.gamma * v - eta * g
        w = w + a.gamma * v - eta * g
        yield w, v


def observed(a: FedNAG, p: Problem, aggregated: Iterable[Server], solution: Tensor) -> Observed:
    """The constants on a run with these states, one for each round and the start.

    F is convex, so that F(w) - F(w_[k]) <= |grad F(w)| |w - w_[k]|, and rho is the largest gradient at any w(k tau).
    """
    f, weights, eta = p.f.local(0, range(p.f.n)), p.f.weights, one_step(a)
    delta, rho, omega, ratio = weights.new_zeros(p.f.n), 0.0, inf, 0.0
    for s in aggregated:
        rho = max(rho, float((weights @ f.full_grad(s.w)).norm()))
        for w, v in [(s.w, s.v), *virtual(a, p, s, a.tau)]:
            own = f.full_grad(w)
            mean = weights @ own
            delta = delta.maximum((own - mean).norm(dim=1))
            omega = min(omega, 1 / float((w - solution).square().sum()))
            ratio = max(ratio, float(a.gamma * v.norm() / (eta * mean.norm())))
    return Observed(p.f.smoothness().L, float(weights @ delta), rho, omega, ratio)


def f_i(eta: float, gamma: float, x: int, L: float, delta_i: float) -> float:
    """Of Lemma 2, eq. (32): how far a worker may be from the virtual path after x local steps."""
    A, B, C, D = _roots(eta, gamma, L)
    return delta_i / L * (C * (gamma * A) ** x + D * (gamma * B) ** x - 1)


def momentum_gap(eta: float, gamma: float, x: int, L: float, delta: float) -> float:
    """Of Lemma 3, eq. (39): how far v may be from the virtual one after x local steps."""
    A, B, C, D = _roots(eta, gamma, L)
    first, second = C * (gamma * A) ** x / (gamma * (A - 1)), D * (gamma * B) ** x / (gamma * (B - 1))
    return eta * delta * (first + second - (gamma**x - 1) / (gamma - 1))


def _roots(eta: float, gamma: float, L: float) -> tuple[float, float, float, float]:
    """A, B of Theorem 1 and C, D of Lemma 1."""
    q = 1 + eta * L
    root = sqrt(q**2 * (1 + gamma) ** 2 - 4 * gamma * q)
    A, B = (q * (1 + gamma) + root) / (2 * gamma), (q * (1 + gamma) - root) / (2 * gamma)
    return A, B, (A - 1) / (A - B), (1 - B) / (A - B)


def h(eta: float, gamma: float, x: int, L: float, delta: float) -> float:
    """Of eq. (16), 0 for x = 0 and x = 1."""
    require(0 < gamma < 1, f"FedNAG: the bound of its theorem is for 0 < gamma < 1, not {gamma!r}")
    A, B, _, _ = _roots(eta, gamma, L)
    E = (gamma * A + A - 1) / ((A - B) * (gamma * A - 1))
    F = (gamma * B + B - 1) / ((A - B) * (1 - gamma * B))
    tail = (gamma**2 * (gamma**x - 1) - (gamma - 1) * x) / (gamma - 1) ** 2
    return float(eta * delta * (E * (gamma * A) ** x + F * (gamma * B) ** x - 1 / (eta * L) - tail))


def h_of_fedavg(eta: float, x: int, L: float, delta: float) -> float:
    """Of eq. (21)."""
    return delta / L * ((eta * L + 1) ** x - 1) - eta * delta * x


def alpha(eta: float, gamma: float, L: float, p: float) -> float:
    """Of Theorem 2."""
    u, s = eta * (gamma + 1), (eta * gamma * p) ** 2
    return u * (1 - L * u / 2) - L * s / 2 - (1 - L * u) * (1 + s) / 2


def theorem_2(eta: float, gamma: float, tau: int, T: int, c: Observed, epsilon: float) -> float:
    """The right-hand side of eq. (18), if F(w_[k](k tau)) - F* and F(w(T)) - F* are at least epsilon (conditions 3, 4).

    Infinite where condition 2 fails: the gap of tau local steps then outweighs what they gain.
    """
    _require_short(eta, gamma, c)
    gap = max(h(eta, gamma, tau, c.L, c.delta), 0.0)
    rate = c.omega * alpha(eta, gamma, c.L, c.p) - c.rho * gap / (tau * epsilon**2)
    return 1 / (T * rate) if rate > 0 else inf


def _require_short(eta: float, gamma: float, c: Observed) -> None:
    """Condition 1 of Theorems 2 and 3."""
    fits = c.L * eta * (1 + gamma) <= 1 + 1e-12
    require(fits, f"FedNAG: its theorem is for L eta (1 + gamma) <= 1, not eta = {eta!r} with L = {c.L:g}")


def f_1(eta: float, gamma: float, tau: int, T: int, c: Observed) -> float:
    """The right-hand side of Theorem 3 after T iterations; infinite where alpha <= 0, which it does not allow."""
    _require_short(eta, gamma, c)
    return _bound(T, tau, alpha(eta, gamma, c.L, c.p), h(eta, gamma, tau, c.L, c.delta), c)


def f_2(eta: float, tau: int, T: int, c: Observed) -> float:
    """The same of FedAvg, eq. (20)."""
    return _bound(T, tau, eta * (1 - c.L * eta / 2), h_of_fedavg(eta, tau, c.L, c.delta), c)


def _bound(T: int, tau: int, rate: float, gap: float, c: Observed) -> float:
    if rate <= 0:
        return inf
    first, gap = 1 / (2 * T * c.omega * rate), max(gap, 0.0)  # h(1) = 0 up to rounding
    return first + sqrt(first**2 + c.rho * gap / (c.omega * rate * tau)) + c.rho * gap


def eta_bar(gamma: float, tau: int, T: int, c: Observed, digits: int = 6) -> float | None:
    """The threshold of Theorem 4: the largest step that the analysis allows with f_1(T) < f_2(T); None: there is none.

    By search on a grid, then by bisection, with constants that stay as they are though they depend on the step.
    """
    largest = 1 / (c.L * (1 + gamma))
    steps = np.geomspace(largest * 1e-4, largest, 400)
    good = [k for k, eta in enumerate(steps) if _better(eta, gamma, tau, T, c)]
    if not good or good[-1] == len(steps) - 1:
        return largest if good else None
    low, high = steps[good[-1]], steps[good[-1] + 1]
    while high - low > 10**-digits * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _better(middle, gamma, tau, T, c) else (low, middle)
    return float(low)


def _better(eta: float, gamma: float, tau: int, T: int, c: Observed) -> bool:
    return f_1(eta, gamma, tau, T, c) < f_2(eta, tau, T, c)


def one_step(a: FedNAG) -> float:
    """eta, which the analysis has the same in all rounds."""
    if callable(a.eta):
        raise InputError(f"FedNAG: its analysis is for a step that is a number, not eta = {a.eta!r}")
    return float(a.eta)
