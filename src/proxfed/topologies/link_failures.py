"""Links that fail at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfed.errors import require
from proxfed.keyed_random import keys, uniforms
from proxfed.topologies.checks import check, whole_seed
from proxfed.topologies.spectrum import largest_eigenvalue
from proxfed.types import Mixing, Topology


@dataclass(frozen=True)
class LinkFailures:
    """Another graph whose edges fail independently in each round, with probability p and in both directions.

    A client uses its own value instead of a missing neighbour's: w_ij moves to the diagonal on both sides, so that the
    matrix stays symmetric with row sums of one. Symmetric graphs only.
    """

    of: Topology
    """The graph without failures, the same in every round."""
    p: float
    """Probability that an edge fails, in [0, 1)."""
    n: int = 0
    """The number of clients; 0: as many as the graph has."""
    seed: int = 0
    """Seed of the draws."""

    period: ClassVar[None] = None
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n or self.of.n)
        require(self.of.n == self.n, f"LinkFailures: of has {self.of.n} clients, but n = {self.n!r}")
        require(self.of.period == 1, f"LinkFailures: of = {self.of} is not the same graph in every round")
        require(0 <= self.p < 1, f"LinkFailures: p = {self.p!r} must be at least 0 and below 1")
        whole_seed(self)
        check(self.of, symmetric=True)

    def W(self, t: int) -> Mixing:
        n, row, col, weight = self.of.W(0)
        edge = np.minimum(row, col) * n + np.maximum(row, col)  # the same number for both directions
        fails = (row != col) & (uniforms(keys(self.seed, "LinkFailures", edge, t), 1)[:, 0] < self.p)
        kept = np.bincount(row[fails], weight[fails], n)
        own = np.arange(n)
        place = np.append((row * n + col)[~fails], own * (n + 1))
        code, where = np.unique(place, return_inverse=True)
        together = np.bincount(where, np.append(weight[~fails], kept)).astype(np.float64)
        return Mixing(n, code // n, code % n, together)

    def spectral_gap(self) -> float:
        """1 - sqrt(E|WX - JX|^2 / |X - JX|^2) for the worst X.

        W = I - sum over the edges that work of w_ij (e_i - e_j)(e_i - e_j)', each with probability q = 1 - p. So, with
        the graph's Laplacians L of w and L2 of w^2, E[W W] = (I - q L)^2 + 2 p q L2.
        """
        n, row, col, weight = self.of.W(0)
        q = 1 - self.p

        def laplacian(w: np.ndarray, x: np.ndarray) -> np.ndarray:
            return np.bincount(row, w * (x[row] - x[col]), n)

        def squared(x: np.ndarray) -> np.ndarray:
            once = x - q * laplacian(weight, x)
            y = once - q * laplacian(weight, once) + 2 * self.p * q * laplacian(weight**2, x)
            return y - y.mean()

        return 1 - math.sqrt(max(0.0, largest_eigenvalue(squared, n))) if n > 1 else 1.0
