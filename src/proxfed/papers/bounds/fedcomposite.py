"""FedComposite: the Lyapunov function of eq. (4) and the right-hand side of Theorem 3.4.

    Omega^r      = |P(x) - x*|^2 + (1/n) sum_i |Lambda_i - mean Lambda|^2,     Lambda_i = eta tau (grad f_i(P(x)) + c_i)
    Omega^{R+1} <= (1 - mu S/3)^R Omega^1 + 30 eta eta_g sigma^2 / (mu n b) + 21 tau eta eta_g B_g^2 / (mu n)

L and mu are known of linear models (`Problem.smoothness`), x* is the reference solution, and B_g bounds the
subgradients of h: weight sqrt(d) for l1. sigma^2, the variance of a sample's gradient, can only be estimated.
"""

from __future__ import annotations

from torch import Tensor

from proxfed.algorithms.fedcomposite import Client, FedComposite, Server
from proxfed.errors import require
from proxfed.types import Constants, Problem


def lyapunov(a: FedComposite, p: Problem, own: Client, s: Server, solution: Tensor) -> float:
    """Omega^r, of all clients at once, with the c_i of the next round; uniform weights, as in the paper."""
    z = a.model(s, p.h)
    Lambda = a.eta * a.tau * (p.f.local(0, range(p.f.n)).full_grad(z) + a.shown(own, s)["c"])
    return float((z - solution).square().sum() + (Lambda - Lambda.mean(0)).square().sum() / p.f.n)


def theorem(a: FedComposite, c: Constants, first: float, noise: float, B_g: float) -> float:
    """The right-hand side after `c.rounds` rounds, where first is Omega^1 and noise is sigma^2/b.

    B_g is 0 for an indicator of a set around the minimiser (Corollary 3.6).
    """
    L, mu = c.smoothness.L, c.smoothness.mu_min
    fits = mu > 0 and mu / (150 * L**2) * (1 + 1e-12) >= a.S and abs(a.eta_g**2 - c.n) <= 1e-9 * c.n
    require(fits, "FedComposite: the theorem is for eta_g = sqrt(n) and eta_g eta tau <= mu/(150 L^2), mu > 0")
    step = a.eta * a.eta_g
    residual = 30 * step / mu * noise / c.n + 21 * a.tau * step / (mu * c.n) * B_g**2
    return (1 - mu * a.S / 3) ** c.rounds * first + residual
