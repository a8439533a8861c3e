"""What Mosaic's server decides, from numbers: damping, the way back, how fine messages are, whether to ask for a piece.

`docs/explanation/mosaic.md` has the questions and answers in words, and the head of mosaic.py in symbols.
"""

from __future__ import annotations

from math import floor, inf, log2, sqrt
from typing import NamedTuple

from torch import Tensor

from proxfed.algorithms.curvature_pieces import GRADES
from proxfed.algorithms.proximal_model import Metric
from proxfed.types import Regulariser

LESS = 2.0**0.25
"""After a step that was too long, sigma stays above twice what it was then; that wears off by so much a round."""

PATIENCE = 12
"""Rounds that need not be good."""

SURE = 0.5
"""A new x is the model if the last step left less than this part of the way and the next one is as much shorter."""

FAR_BITS = 20.0
"""A piece must pay within the messages of so many further bits of accuracy."""


class Heard(NamedTuple):
    """What the messages of a round say, besides the mean gradient."""

    l: float  # mean of the l_i
    hidden: float  # variance of what compression hides of c
    e: float  # and a bound of it
    clients: int
    share: float  # 1/sqrt(n), or the norm of the weights

    @property
    def nu(self) -> float:
        return sqrt(self.hidden)


class Numbers(NamedTuple):
    """What the server remembers besides vectors."""

    l2: float
    round: float = 0.0
    sigma: float = 1.0  # delta is so many times the mean of the l_i
    least: float = 0.0  # what sigma does not fall below: it was too small
    delta: float = 0.0  # damping
    kappa: float = 0.99  # contraction of the last step
    l: float = 0.0  # mean of the l_i
    fall: float = 0.5  # what a piece leaves of it
    L: float = 0.0  # largest curvature seen
    nu: float = 0.0  # standard deviation of what compression hides of c
    noise: float = 0.0  # its square, in the norm of B^-1
    base_nu: float = 0.0  # both where the last step began
    base_noise: float = 0.0
    kept_e: float = inf  # bound of what was hidden at the kept point
    tau: float = 1.0  # how much of the last step is left
    tries: float = 0.0  # how often it was shortened
    back: float = 0.0  # quarters of an octave by which it is shortened next
    floor: float = 0.0  # least damping
    since: float = 0.0  # the last good round
    up: float = 1.0  # grade of the messages up
    down: float = 1.0  # and down
    ask: float = 1.0  # for a piece
    mark: float = 0.0  # this point is to be kept
    to_kept: float = 0.0  # the next step begins at the kept point
    sure: float = 0.0  # the last model was nearly right
    above: float = 0.0  # a bound of phi(y - q) - phi(best)

    @property
    def safe(self) -> bool:
        """B = L I: the proximal gradient method of the theorem."""
        return self.floor >= self.L

    def first(self, heard: Heard, L: float, alike: bool) -> Numbers:
        """After the first round: residuals of clients that differ average out."""
        return self._replace(L=max(self.l2 + L, 1e-12), sigma=1.0 if alike else heard.share)

    def measured(self, heard: Heard, q: Tensor, Bq: Tensor, dg: Tensor, B: Metric) -> tuple[Numbers, bool]:
        """(what the last step says of sigma, kappa, L and the way back; whether (q, dg) is a secant pair)."""
        n, qB = self, float(q @ Bq)
        if qB <= 0:
            return n._replace(back=0.0, tries=0.0), False
        noise, rest = heard.hidden * float(B.mean_inverse), dg - Bq
        left = float(rest @ B.solve(rest))
        kappa = sqrt(max(left - n.base_noise - noise, 0) / qB)
        n = n._replace(kappa=min(max(kappa, n.kappa / 4, 0.01), 0.99), noise=noise, sure=float(left < SURE**2 * qB))
        along, nz = float(dg @ q), heard.nu + n.base_nu
        t, ray = n.tau * along / qB, along / float(q @ q)
        clear = float(dg.norm()) > 2 * nz
        if clear and ray > n.L:
            n = n._replace(L=1.05 * ray)
        if t > 1.5 + n.tau * nz * float(q.norm()) / qB and n.tries < 12:
            shorter = min(max(-floor(-4 * log2(t)), 2), 26)
            sigma = max(2 * n.sigma, 0.5 * ray / max(n.l, 1e-300))
            least = 2 * n.delta / max(n.l, 1e-300)
            return n._replace(back=float(shorter), tries=n.tries + 1, sigma=sigma, least=least), False
        least = n.least / LESS
        sigma = 2 * n.sigma if t > 1.1 else max(n.sigma / 2, least) if t < 0.9 else n.sigma
        return n._replace(back=0.0, tries=0.0, sigma=sigma, least=least), along > 0.05 * qB and clear

    def watched(self, G: float, least: float, fell: float, e: float) -> Numbers:
        """Whether the round was good, and what is done if none is. G: the certified residual here, least: at the kept
        point, fell: what phi has fallen by for certain, e: what compression hides here."""
        n, mark = self._replace(mark=float(least > G), to_kept=0.0), least > G
        n = n._replace(kept_e=e) if mark else n
        if 0.9 * least > G or fell >= G * G / (100 * n.L):
            return n._replace(since=0.0, floor=n.floor / 2 if n.floor > n.L / 256 else 0.0)
        if n.since < PATIENCE:
            return n._replace(since=n.since + 1)
        return n._replace(since=0.0, floor=min(max(4 * n.floor, n.L / 64), n.L), to_kept=float(not mark))

    def damped(self, heard: Heard) -> Numbers:
        """With the damping of the next model."""
        sigma = min(self.sigma, 4 * self.L / max(self.l, 1e-300))
        delta = max(sigma * self.l, self.floor)
        kappa = max(self.l2 / (8 * self.L), sqrt(GRADES[-1])) if self.safe else self.kappa
        return self._replace(sigma=sigma, delta=delta, base_nu=heard.nu, base_noise=self.noise, kappa=kappa)

    def grade_up(self, B: Metric, p: Tensor, share: float) -> float:
        """Noise of the messages up passes through B^-1: what is asked of them is kappa, less that."""
        amplified = self.l * float(p.norm()) * sqrt(float(B.mean_inverse)) * share / max(B.norm(p), 1e-300)
        wanted = self.kappa * min(1.0, 0.5 / max(amplified, 1e-300))
        return float(max(1, next((k for k, q2 in enumerate(GRADES) if sqrt(q2) <= wanted), len(GRADES) - 1)))

    def asks(self, d: int) -> bool:
        """Whether a piece saves more bytes than it costs."""

        def message(q: float) -> float:
            return d * log2(1 / min(q, 0.32)) / 8 + 0.05 * d + 5

        def left(kappa: float) -> float:
            return FAR_BITS / log2(1 / kappa) * 2 * message(kappa)

        return left(self.kappa) - left(max(self.fall * self.kappa, 0.01)) > message(0.1) + 1


def residual(y: Tensor, c: Tensor, L: float, h: Regulariser) -> float:
    """The norm of the prox-gradient map."""
    return L * float((y - h.prox(y - c / L, 1 / L)).norm())
