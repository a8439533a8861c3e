"""FedCEF: what happens inside a round, Lemmas 1 to 4, the Lyapunov function of the analysis, and the bound of eq. (16).

    Psi   = F(z) - F* + (8 beta/eta) |v - grad f(z')|^2 + 17 beta/(1 - q) mean_i |v_i - c_i|^2
            + 70 eta beta/(1 - q)^2 mean_i |v_i - grad f_i(z')|^2                       z' the z of the round before
    (1/T) sum_{t < T} |G_beta(z^t)|^2 <= Psi^0/(0.15 beta T) + C_stoc sigma^2/(K B) + C_approx (L beta B_h/eta_g)^2

F* is known of convex problems, B_h bounds the subgradients of h: weight sqrt(d) for l1. sigma^2, the variance of a
sample's gradient, can only be estimated. Psi is the appendix's (E01.10), where the text leaves its weights open.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import NamedTuple

from torch import Tensor

from proxfed.algorithms.fedcef import Client, FedCEF, Server
from proxfed.compressors.contractive import contraction
from proxfed.errors import require
from proxfed.types import Constants, Local, Problem

GAMMA = 0.15


class Inside(NamedTuple):
    """What happens inside a round."""

    U: float  # mean over clients and k = 1 .. K of |x_i^{t,k} - z^t|^2: how far local steps lead
    sent: float  # mean_i |Delta_i|^2, of what is sent; `size_unsent` measures what is not


def inside(a: FedCEF, p: Problem, own: Client, s: Server, t: int, seed: int = 0) -> Inside:
    """Of round t, from the states before it: it is played once more. Of all clients at once, with uniform weights.

    The last local point, which no gradient is taken at, is that of one local step more with the same beta.
    """
    f, down = Watched(p.f.local(t, range(p.f.n), seed)), (s.zt, s.c) if a.partial else s.zt
    _, D = a.client(own, down, f, p.h)
    f.seen.clear()
    replace(a, K=a.K + 1, eta_g=a.eta_g * a.K / (a.K + 1)).client(own, down, f, p.h)
    z, *points = f.seen
    U = sum(float((x - z).square().sum()) for x in points) / (p.f.n * a.K)
    return Inside(U, float(D.dense.square().sum()) / p.f.n)


class Watched(Local):
    """A Local that remembers where gradients were taken."""

    def __init__(self, f: Local) -> None:
        self.f, self.t, self.ids, self.seed = f, f.t, f.ids, f.seed
        self.seen: list[Tensor] = []

    def grad(self, x: Tensor, draw: int) -> Tensor:
        self.seen.append(x)
        return self.f.grad(x, draw)

    def full_grad(self, x: Tensor) -> Tensor:
        return self.f.full_grad(x)

    def value(self, x: Tensor) -> Tensor:
        return self.f.value(x)


class Errors(NamedTuple):
    """What Lemmas 1 to 4 bound the next round by; z' is the z of the round before."""

    step: float  # |z - z'|^2
    mean: float  # |v - grad f(z')|^2
    local: float  # mean_i |v_i - grad f_i(z')|^2
    unsent: float  # mean_i |v_i - c_i|^2
    U: float  # of `inside`


def lemma_1(a: FedCEF, L: float, e: Errors, F: float, moved: float, G: float) -> float:
    """Of F(z^{t+1}), eq. (10) with E01.5: F at z^t, moved = |z^{t+1} - z^t|^2, G = |G_beta(z^t)|^2. Full gradients."""
    beta, eta = a.beta, a.eta
    errors = 10 * L**2 * e.step + 4 * e.mean + 6 * (e.unsent + eta**2 * e.local) + 6 * (eta * L) ** 2 * e.U
    return F + (L / 2 - 1 / (2 * beta)) * moved + beta * errors + beta * (L * beta - 0.5) * G


def lemma_2(a: FedCEF, L: float, e: Errors) -> float:
    """Of the next `local`, eq. (11); with `mean` in its place Lemma 3, eq. (12). Full gradients."""
    return (1 - a.eta / 2) * e.local + 2 * L**2 * (e.step / a.eta + a.eta * e.U)


def lemma_3(a: FedCEF, L: float, e: Errors) -> float:
    """Of the next `mean`, eq. (12). Full gradients."""
    return lemma_2(a, L, e._replace(local=e.mean))


def lemma_4(a: FedCEF, L: float, e: Errors, q: float) -> float:
    """Of the next `unsent`, eq. (13). Full gradients."""
    more = (1 + 2 / (1 - q)) * L**2 * e.U + 4 / (1 - q) * (e.local + L**2 * e.step)
    return q * e.unsent + (a.eta * q) ** 2 * more


def lyapunov(a: FedCEF, p: Problem, own: Client, z: Tensor, before: Tensor, best: float) -> float:
    """Psi^t at z = z^t with before = z^{t-1}, which is z^0 at the start; best is F*. Of all clients at once."""
    f, q = p.f.local(0, range(p.f.n)), _q(a, p.f.d)
    F = float(f.value(z).mean() + p.h.value(z))
    g = f.full_grad(before)
    mean = float((own.v.mean(0) - g.mean(0)).square().sum())
    unsent, wrong = (float((own.v - rows).square().sum() / p.f.n) for rows in (own.c, g))
    return F - best + a.beta * (8 / a.eta * mean + 17 / (1 - q) * unsent + 70 * a.eta / (1 - q) ** 2 * wrong)


def C_stoc(eta: float, q: float, N: int) -> float:
    """The factor of sigma^2/(K B) in eq. (16)."""
    return 6.7 * (17 * eta / N + 14 * eta**2 / (1 - q) + 140 * eta**3 / (1 - q) ** 2)


def C_approx(eta: float, q: float) -> float:
    """The factor of (L beta B_h/eta_g)^2 in eq. (16)."""
    return 18.4 / GAMMA * (16 + 161 * eta**2 / (1 - q) ** 2)


def theorem(a: FedCEF, c: Constants, first: float, noise: float, B_h: float) -> float:
    """The right-hand side after `c.rounds` rounds, where first is Psi^0 and noise is sigma^2/B."""
    L, q, beta = c.smoothness.L, _q(a, c.d), a.beta
    least = sqrt(16 * (1 - q) ** 2 + 161 * a.eta**2) / (5 * a.eta * (1 - q))
    fits = beta <= min(a.eta**2, (1 - q) ** 2) / (25 * L) * (1 + 1e-12) and a.eta_g >= least * (1 - 1e-12)
    require(fits, "FedCEF: the theorem is for beta <= min(eta^2, (1-q)^2)/(25 L) and a large eta_g; see FedCEF.theory")
    residual = C_stoc(a.eta, q, c.n) * noise / a.K + C_approx(a.eta, q) * (L * beta * B_h / a.eta_g) ** 2
    return first / (GAMMA * beta * c.rounds) + residual


def _q(a: FedCEF, d: int) -> float:
    return sqrt(contraction(a.compressor, d, "FedCEF"))
