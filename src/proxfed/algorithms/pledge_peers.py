"""PLEDGE between peers: proximal local steps, extrapolation and compressed primal-dual gossip, on any connected graph.

    m_i <- (1 - a) m_i + a walk(x_i, shift = d_i)                                tau local steps and guard as in PLEDGE
    z_i = x_i - S (m_i + d_i)
    q_i = C(z_i - zh_i),   zh_i <- zh_i + q_i,   s_i <- s_i + mix q_i            q_i travels
    e_i = gamma (zh_i - s_i),   d_i <- d_i + e_i/S,   v_i+ = z_i - e_i
    y_i = v_i+ + theta (v_i+ - v_i),   v_i <- v_i+,   x_i = prox_{S h}(y_i),   xi_i = (y_i - x_i)/S

zh_i is what the neighbours know of z_i, and s_i = sum_j w_ij zh_j at all times. d_i settles where it balances
grad f - grad f_i; sum_i d_i = 0 for every C, because e sums to zero. One compressed vector crosses each edge: the
gradients need no tracker of their own.

Start: x = v = zh = s = x0, the rest 0.

At a fixed point all agree: d_i rests, so zh = W zh is the same for all, and C(z_i - zh_i) = 0, so z_i is zh_i; then
x_i = x = prox_{S h}(z), and the mean of z = x - S (m_i + d_i) is z = x - S mean m_i. A solution is one, with
d_i = grad f(x) - grad f_i(x), for every tau, beta, theta, a and C with C(0) = 0.

Special cases, without C: the complete graph with gamma = 1 is PLEDGE with a server; tau = 1 is Prox-ED, without h and
with gamma = 1/2 exact diffusion; h = 0 with tau > 1 is LED. Theorems of others cover these and tau = 1 with C
(docs/theory.md), none covers all settings at once. The eigenvalues of I - gamma (I - W) must not be negative, and a
coarser C asks for a smaller gamma.

What travels: C(d) over each edge of a round.
Reference: The authors of proxfed, "PLEDGE: Proximal Local steps, Extrapolation, Drift correction, Gradient Error
feedback", docs/explanation/pledge.md, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from proxfed.algorithms.local_steps import walk, walk_length
from proxfed.algorithms.pledge import LARGEST_Q2, QUANTISER
from proxfed.compressors.contractive import contraction
from proxfed.errors import at_least_one, below_one, non_negative, require, up_to_one
from proxfed.schedules import positive_or_auto
from proxfed.types import (
    Compressor,
    Constants,
    Facts,
    FloatOrAuto,
    Graph,
    Local,
    Mean,
    Mix,
    Needs,
    Regulariser,
    Sends,
    When,
)


class State(NamedTuple):
    x: Tensor  # the model
    d: Tensor  # correction: grad f - grad f_i in the end
    m: Tensor  # own gradient estimate
    zh: Tensor  # what neighbours know of z
    s: Tensor  # zh mixed
    v: Tensor  # the model before extrapolation and prox
    xi: Tensor  # the subgradient of h at x that the prox chose, for the guard


@dataclass(frozen=True)
class PledgePeers(Graph[State]):
    """Local steps, prox, momentum and one compressed vector per edge, exact, on a fixed graph."""

    eta: FloatOrAuto
    """Local step size."""
    tau: int = 2
    """Local steps of a round."""
    gamma: float = 0.5
    """Gossip step size, in (0, 1]: the coarser the compressor, the smaller."""
    theta: float = 0.3
    """Extrapolation of the model, in [0, 1)."""
    beta: float = 0.0
    """Momentum of the local steps, in [0, 1)."""
    a: float = 1.0
    """Weight of the new gradients in the own estimate, in (0, 1]; stochastic ones of networks like 0.3 to 0.5."""
    rho: float = 0.0
    """Radius of sharpness-aware local gradients; 0: plain ones."""
    guard: bool = True
    """Count only the first step of a walk that runs away, as one with long steps on a network may."""
    compressor: Compressor = QUANTISER
    """Contractive compressor of what crosses an edge."""

    needs: ClassVar[Needs] = Needs(contractive=True, fixed_graph=True, symmetric=True, doubly_stochastic=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1, compressed=("edge",)), exact=When(rho=0))

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        at_least_one(self, "tau")
        up_to_one(self, "gamma", "a")
        below_one(self, "theta", "beta")
        non_negative(self, "rho")

    def requires(self) -> Needs:
        """I - gamma (I - W) has no negative eigenvalue; rounding of J's zeros apart."""
        largest = LARGEST_Q2 if self.theta > 0 else 1.0
        return self.needs._replace(eigenvalues_above=1 - 1 / self.gamma - 1e-9, largest_q2=largest)

    @property
    def S(self) -> float:
        return walk_length(self.eta, self.tau, self.beta)

    def largest_prox_step(self) -> float:
        return self.S

    def known_step(self, L: float, rho: float) -> float:
        """1/L, and S at most half of what h allows."""
        most = inf if rho == 0 else 1 / (2 * rho * walk_length(1.0, self.tau, self.beta))
        return min(1 / L, most)

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, 0 * x, 0 * x, zh=x, s=x, v=x, xi=0 * x)

    def before_mix(self, s: State, f: Local, h: Regulariser) -> State:
        """The walk."""
        G = walk(f, h, s.x, s.d, self.eta, self.tau, self.beta, self.rho, self.guard, s.xi)
        return s._replace(m=s.m.lerp(G, self.a))

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        z = s.x - self.S * (s.m + s.d)
        q = self.compressor(z - s.zh, f.key)
        zh, mixed = s.zh + q.dense, s.s + mix(q)
        e = self.gamma * (zh - mixed)
        v = z - e
        y = v + self.theta * (v - s.v)
        x = h.prox(y, self.S)
        return State(x, s.d + e / self.S, s.m, zh, mixed, v, (y - x) / self.S)

    def carried(self, s: State, to: PledgePeers) -> State:
        return s._replace(v=s.x.lerp(s.v, to.S / self.S))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return h.prox(mean(s.v), self.S)

    @classmethod
    def theory(cls, c: Constants, compressor: Compressor = QUANTISER) -> PledgePeers:
        """S = tau/L and theta with the smallest `modal_radius` over curvatures from mu to L: a rule, not a theorem."""
        q = sqrt(contraction(compressor, c.d, cls.__name__))
        require(
            q**2 <= LARGEST_Q2, f"PledgePeers: its rule needs q^2 <= {LARGEST_Q2:g}, but {compressor} has {q**2:.3g}"
        )
        gamma = min(1 - 1.5 * q, 1 / (1 + c.psi))
        curvatures = np.geomspace(max(c.smoothness.mu / c.smoothness.L, 1e-4), 1, 12)  # in units of L
        most = inf if c.weak_convexity == 0 else c.smoothness.L / (2 * c.weak_convexity)
        tried = [(tau, theta) for tau in (1, 2, 3, 4, 6) if tau <= max(1, most) for theta in (0.0, 0.2, 0.3, 0.4, 0.5)]
        disagreement = np.linspace(1 - c.psi, 1 + c.psi, 9)
        tau, theta = min(tried, key=lambda s: modal_radius(s[0], s[0], s[1], gamma, curvatures, disagreement))
        return cls(min(1.0, most) / c.smoothness.L, tau, gamma, theta, compressor=compressor)


def modal_radius(
    S: float, tau: int, theta: float, gamma: float, curvatures: np.ndarray, eigenvalues: np.ndarray
) -> float:
    """The slowest factor of a round without C and h, where all f_i have one Hessian: over its eigenvalues, and those of
    I - W (0, the mean, is added).

    In a mode with curvature t and eigenvalue w, the walk leaves z = r x - (1 - r)/t d with r = (1 - S t/tau)^tau, and
    v+ = (1 - gamma w) z, d+ = d + gamma w z/S, x+ = (1 + theta) v+ - theta v.
    """
    t, w = (a.ravel() for a in np.meshgrid(curvatures, np.append(0.0, eigenvalues)))
    r, zero, one = (1 - S * t / tau) ** tau, np.zeros_like(t), np.ones_like(t)
    z = np.stack([r, (r - 1) / t, zero], -1)  # of (x, d, v)
    v = (1 - gamma * w)[:, None] * z
    d = np.stack([zero, one, zero], -1) + (gamma * w / S)[:, None] * z
    d[w == 0] = 0  # sum_i d_i = 0
    x = (1 + theta) * v - theta * np.stack([zero, zero, one], -1)
    return float(np.abs(np.linalg.eigvals(np.stack([x, d, v], 1))).max())
