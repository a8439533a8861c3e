"""PLEDGE: proximal local steps with extrapolation, drift correction, and error feedback on every message.

    server sends    q = C'(zt - y),   k                                          zt: where z should be;  S as below
    everybody       c' = (x - y - q)/S                                           with x of the last round
                    z+ = y + q,   y <- z+ + theta (z+ - z),   z <- z+,   x = prox_{S h}(y)
    client          G_i = walk(x, shift = c' - v_i)                              tau local steps
                    v_i <- (1 - a) v_i + a G_i,   D_i = C(v_i - u_i),   u_i <- u_i + D_i
    client sends    D_i
    server          c <- c + mean D_i,   zt = x - S c

z and y, the model before its prox and its extrapolation, are public: server and clients compute them from the same
messages by the same operations, so they are equal to the bit. The server sends how far zt is from where everybody
expects it, and clients read the mean gradient c' off the same message. u_i is what the server knows of v_i, so c is the
mean of all u_i whatever C is. Both compressed differences go to zero, and with them what a compressor loses.

walk: with V = G = 0 and s = t = 0, tau times

    y' = prox_{b h}(x - (G + beta V) - b shift),   b = s + beta t;   V <- beta V + eta grad f_i(y'),   t <- beta t + eta
    G <- G + V,   s <- s + t

from which G_i = G/s and S = s (eta tau for beta = 0). theta is k/(k + 3), at most the `theta` that is given. k counts
the rounds since the last restart: the server sets it to 0 where q (z+ - z) < 0, as the extrapolation then leads away.
With `guard`, a walk is held against what drives it at x, u = g + shift + xi: its first gradient g, and xi = (y - x)/S,
which is a subgradient of h at x. r = (x - prox_{S h}(x - S (G_i + shift)))/S is its mean speed, G_i + shift for h = 0.
Of a walk that ran away, |r - u| > |u|, only the first step counts: G_i + shift + xi = (t/s) u. v_i must not remember
gradients of points far away, nor grow by what it has led to.

On a tree (a spanning tree of any graph; the server is its root) a node with children's messages D_j sends

    D_i = C(v_i + sum_j D_j - u_i),   u_i <- u_i + D_i - sum_j D_j

to its parent: what a compressor loses of others' messages waits in v_i - u_i like its own losses. The root sends D_i to
the server as it is, and c is still the mean of all u_i. A tree needs no W, no gossip step and no spectral gap.

With some of the clients (`partial`), and theta = 0, since to extrapolate along old gradients does not settle in trials:

    server          c <- c + share mean D_i

so that who stays away counts with its u_i. But z and y are running sums of what the server sent, so everybody must get
every message down: who comes back gets those that it missed, which is counted when they are sent.

Start: z = y = zt = x0 and v_i = u_i = c = (x - x0)/S, so that nobody corrects anything in the first round.

A solution is a fixed point: with v_i = u_i = grad f_i(x), z = y = zt = x - S grad f(x) all messages are 0, and the walk
stays at x. Linear convergence is proved for every tau, a and restart rule, for theta < 1/3 and both compressors, but
with steps that shrink with tau and theta (docs/theory.md); that longer walks and more extrapolation pay rests on
special cases and on trials. Along a deep tree messages must be finer: q^2 of 0.3/depth or less.

What travels: C(d) up, C'(d) and one byte (k) down. Along a tree: the same over each of its edges.
Reference: The authors of proxfed, "PLEDGE: Proximal Local steps, Extrapolation, Drift correction, Gradient Error
feedback", docs/explanation/pledge.md, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.algorithms.local_steps import walk, walk_length
from proxfed.compressors import ErrorBoundedQuantiser
from proxfed.compressors.contractive import contraction
from proxfed.errors import at_least_one, below_one, non_negative, require, up_to_one
from proxfed.keyed_random import Key
from proxfed.schedules import positive_or_auto
from proxfed.types import (
    Compressor,
    Constants,
    Facts,
    FloatOrAuto,
    Local,
    Message,
    Needs,
    Regulariser,
    Relay,
    Sends,
    Smoothness,
    When,
)

LARGEST_Q2 = 0.25
"""Coarser messages and extrapolation fight each other: trials end far from the solution."""

QUANTISER = ErrorBoundedQuantiser(0.1)


class Client(NamedTuple):
    v: Tensor  # own gradient estimate
    u: Tensor  # what the server knows of it
    z: Tensor  # public: the model before its prox
    y: Tensor  # public: the same, extrapolated


class Server(NamedTuple):
    c: Tensor  # mean of all u
    z: Tensor  # public
    y: Tensor  # public
    zt: Tensor  # where z should be
    k: Tensor  # rounds since the last restart, up to 255


@dataclass(frozen=True)
class Pledge(Relay[Client, Server]):
    """Both directions compressed, local steps, prox, momentum, exact; with a server or along a tree of any graph."""

    eta: FloatOrAuto
    """Local step size."""
    tau: int = 4
    """Local steps of a round."""
    theta: float = 0.7
    """Extrapolation of the model: with restart at most this, in [0, 1]; without always this, below 1."""
    restart: bool = True
    """Begin the extrapolation again at 0 where it leads away."""
    beta: float = 0.0
    """Momentum of the local steps, in [0, 1)."""
    a: float = 1.0
    """Weight of the new gradients in the own estimate, in (0, 1]; stochastic ones of networks like 0.3 to 0.5."""
    rho: float = 0.0
    """Radius of sharpness-aware local gradients; 0: plain ones."""
    guard: bool = True
    """Count only the first step of a walk that runs away, as one with long steps on a network may."""
    compressor_up: Compressor = QUANTISER
    """Contractive compressor of the uplink."""
    compressor_down: Compressor = QUANTISER
    """Contractive compressor of the downlink."""
    partial: bool = False
    """Clients may stay away from rounds; needs theta = 0."""

    needs: ClassVar[Needs] = Needs(everyone=True, all_hear=True, contractive=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, bytes_down=1, compressed=("up", "down")),
        exact=When(rho=0),
        exact_partial=When(rho=0),
        averaging="a",
        variate="v",
    )

    def __post_init__(self) -> None:
        positive_or_auto(self, "eta")
        at_least_one(self, "tau")
        non_negative(self, "theta", "rho")
        require(self.theta <= 1, f"Pledge: theta = {self.theta!r} must be at most 1")
        require(self.restart or self.theta < 1, "Pledge: theta = 1 needs restart = True")
        below_one(self, "beta")
        up_to_one(self, "a")
        still = not self.partial or self.theta == 0
        require(still, f"Pledge: partial = True needs theta = 0, not {self.theta!r}: extrapolation needs all gradients")

    def requires(self) -> Needs:
        needs = self.needs._replace(everyone=not self.partial)
        return needs._replace(largest_q2=LARGEST_Q2) if self.theta > 0 else needs

    def sends(self) -> Sends:
        return self.facts.sends._replace(bytes_down=int(self.restart))

    @property
    def S(self) -> float:
        return walk_length(self.eta, self.tau, self.beta)

    def largest_prox_step(self) -> float:
        return self.S

    def known_step(self, L: float, rho: float) -> float:
        """1/L, and S at most half of what h allows."""
        most = inf if rho == 0 else 1 / (2 * rho * walk_length(1.0, self.tau, self.beta))
        return min(1 / L, most)

    def advice(self, s: Smoothness) -> str:
        """More extrapolation for a bad condition number."""
        theta = nesterov(float(self.eta), self.tau, s.mu)
        fits = self.restart and not self.partial and self.beta == 0
        return f"for L/mu = {s.L / s.mu:.0f} try theta = {theta:.2g}" if fits and theta > self.theta + 0.02 else ""

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        c = (h.prox(x0, self.S) - x0) / self.S
        v, z = f.spread(c), f.spread(x0)
        return Client(v, v, z, z), Server(c, x0, x0, x0, torch.zeros(1, dtype=torch.uint8, device=x0.device))

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        q = self.compressor_down((s.zt - s.y)[None], key)
        z = s.y + q.dense[0]
        leads_away = (q.dense[0] * (z - s.z)).sum() < 0
        k = torch.where(leads_away, 0, s.k.clamp(max=254) + 1)
        sent = (q, k) if self.restart else (q,)
        return s._replace(z=z, y=self._extrapolate(z, s.z, *sent[1:]), k=k), sent

    def _extrapolate(self, z: Tensor, old: Tensor, k: Tensor | None = None) -> Tensor:
        """From public numbers to public numbers, one operation at a time: the same bits for a row and for many."""
        theta = self.theta if k is None else (k.to(z) / (k.to(z) + 3)).clamp(max=self.theta)
        return z + theta * (z - old)

    def hear(self, own: Client, down: Message) -> Client:
        q, *k = down
        z = own.y + q
        return own._replace(z=z, y=self._extrapolate(z, own.z, *k))

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Tensor]:
        now = self.hear(own, down)
        c = (h.prox(own.y, self.S) - now.z) / self.S
        x = h.prox(now.y, self.S)
        xi = (now.y - x) / self.S
        G = walk(f, h, x, c - own.v, self.eta, self.tau, self.beta, self.rho, self.guard, xi)
        v = own.v.lerp(G, self.a)
        return now._replace(v=v), v

    def relay(self, own: Client, v: Tensor, below: Tensor | float, key: Key | None) -> tuple[Client, Message]:
        change = v + below - own.u
        if key is None:  # at the root of a tree nothing is lost
            return own._replace(u=v), change
        D = self.compressor_up(change, key)
        return own._replace(u=own.u + D.dense - below), D

    def server(self, s: Server, D: Tensor, h: Regulariser, share: float) -> Server:
        c = s.c + share * D
        return s._replace(c=c, zt=h.prox(s.y, self.S) - self.S * c)

    def carried(self, own: Client, s: Server, h: Regulariser, to: Pledge) -> tuple[Client, Server]:
        """prox_{S h}(y), which everybody knows, stays."""
        r = to.S / self.S
        known, x = h.prox(own.y, self.S), h.prox(s.y, self.S)
        own = own._replace(z=known + r * (own.z - known), y=known + r * (own.y - known))
        return own, s._replace(z=x + r * (s.z - x), y=x + r * (s.y - x), zt=x + r * (s.zt - x))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return h.prox(s.zt, self.S)

    @classmethod
    def theory(
        cls,
        c: Constants,
        tau: int | None = None,
        proved: bool = False,
        compressor_up: Compressor = QUANTISER,
        compressor_down: Compressor = QUANTISER,
    ) -> Pledge:
        """eta = 1/L and so many local steps that S is about 3/(4 sqrt(mu L)), up to 5 of them: a rule of trials.

        theta is that of Nesterov's method for walks in the place of steps, 0.7 at least; restarts keep it in check.

        proved: half the largest S of the theorem, without extrapolation and for one local step if no tau is given.
        """
        L, mu = c.smoothness.L, c.smoothness.mu
        half = 1 / (2 * c.weak_convexity) if c.weak_convexity > 0 else inf  # of what a weakly convex h allows
        if proved:
            checked = cls(1.0, tau or 1, 0.0, False, compressor_up=compressor_up, compressor_down=compressor_down)
            q_up, q_down = (sqrt(contraction(C, c.d, "Pledge")) for C in (compressor_up, compressor_down))
            most = largest_proved_step(c, q_up, q_down, checked.tau)
            return replace(checked, eta=min(most / 2, half) / checked.tau)
        if tau is None:
            S = 3 / (4 * sqrt(mu * L)) if mu > 0 else 4 / L
            tau = min(max(1, ceil(min(S, half) * L)), 5)
        checked = cls(1.0, tau, compressor_up=compressor_up, compressor_down=compressor_down)
        eta = min(1 / L, half / tau)
        return replace(checked, eta=eta, theta=max(checked.theta, nesterov(eta, tau, mu)))


def nesterov(eta: float, tau: int, mu: float) -> float:
    """theta of Nesterov's method, with walks of tau steps in the place of its steps; 0 unless mu > 0."""
    if mu <= 0:
        return 0.0
    slow = sqrt(1 - (1 - min(eta * mu, 1.0)) ** tau)  # of the walk's contraction in the flattest direction
    return (1 - slow) / (1 + slow)


def gain(S: float, L: float, q_up: float, q_down: float, tau: int = 1, theta: float = 0.0, a: float = 1.0) -> float:
    """Gamma of the theorem (docs/theory.md) for r = 1: how much of its own motion comes back to x as an error.

    L is that of every f_i, convex or not. The state is (A, B, D, Z); infinite where errors feed themselves.
    """
    w = (tau - 1) / tau * S * L
    if w >= 1:
        return inf
    s = (tau - 1) / tau * w / (1 - w)
    A, B, D, Z, X = np.eye(5)
    moved = (1 + q_down) * D + theta * Z
    driven = A + (1 + S * L) * X + theta * moved
    late = (1 - a) * (A + S * L * X) + a * s * driven
    unknown = B + a * (A + S * L * X + s * driven)
    rest = q_down * D + theta * moved
    system = np.stack([late, q_up * unknown, X + (1 + q_up) * unknown + rest, moved])
    M, m = system[:, :4], system[:, 4]
    if np.abs(np.linalg.eigvals(M)).max() >= 1:
        return inf
    return float((A + B + rest)[:4] @ np.linalg.solve(np.eye(4) - M, m))


def largest_proved_step(
    c: Constants, q_up: float, q_down: float, tau: int = 1, theta: float = 0.0, a: float = 1.0
) -> float:
    """S below this makes the Lyapunov function of docs/theory.md fall."""
    feedback = q_down + (1 + q_down) * theta / (1 - theta)
    limit = "q + (1 + q) theta/(1 - theta) < 1/2 with the q of its downlink, q^2 < 0.25 without extrapolation"
    require(feedback < 0.5, f"Pledge: the theorem needs {limit}, not {feedback:.3g} of q^2 = {q_down**2:.3g}")
    fits = tau == 1 or c.weak_convexity == 0
    require(fits, f"Pledge: the theorem with tau = {tau} needs a regulariser that is convex")
    L, half = c.smoothness.L, (c.smoothness.L_f + c.weak_convexity) / 2
    low, high = 0.0, 1 / half
    for _ in range(60):
        S = (low + high) / 2
        low, high = (S, high) if S * half + gain(S, L, q_up, q_down, tau, theta, a) < 1 else (low, S)
    return low
