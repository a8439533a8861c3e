"""Graphs that change with the round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfed.errors import at_least_one, one_of, require
from proxfed.keyed_random import keys, uniforms
from proxfed.topologies.checks import whole_seed
from proxfed.topologies.mixing import circulant, partition
from proxfed.topologies.spectrum import gap_of_partition
from proxfed.types import Mixing

READINGS = ("partition", "clique", "independent")


@dataclass(frozen=True)
class OnePeerExponentialGraph:
    """Directed, one message per client: in round t, client i sends to i + 2^(t mod ceil(log2 n)), and averages its own
    value with the one received. All clients agree exactly after a period if, and only if, n is a power of two."""

    n: int
    """Clients."""

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")

    @property
    def period(self) -> int:
        return max(1, (self.n - 1).bit_length())

    def W(self, t: int) -> Mixing:
        return circulant(self.n, sorted({0, 2 ** (t % self.period) % self.n}))

    def spectral_gap(self) -> float:
        """1 - |product of W over a period - J|_2^(1/period).

        The eigenvalues of the product are products of cosines, |sin(2^period u) / (2^period sin u)| at u = pi k / n;
        reduced modulo n first, they are exactly 0 when n is a power of two.
        """
        k, power = np.arange(1, self.n), 2**self.period
        eigenvalues = np.sin(np.pi * (k * power % self.n) / self.n) / (power * np.sin(np.pi * k / self.n))
        return 1 - float(eigenvalues.max(initial=0.0)) ** (1 / self.period)


@dataclass(frozen=True)
class RandomMatching:
    """Random pairs average in each round; if n is odd, one client is idle."""

    n: int
    """Clients."""
    seed: int = 0
    """Seed of the draws."""

    period: ClassVar[None] = None
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")
        whole_seed(self)

    def W(self, t: int) -> Mixing:
        return partition(self.n, _groups(_shuffled(self, t), 2))

    def spectral_gap(self) -> float:
        """1 - sqrt(E|WX - JX|^2 / |X - JX|^2); the mean square is (n - 2)/(2 (n - 1)) for even n, 1/2 for odd."""
        return gap_of_partition(self.n, -(-self.n // 2))


@dataclass(frozen=True)
class RandomGroups:
    """Random groups of clients average in each round."""

    n: int
    """Clients."""
    size: int
    """Clients per group; with "independent": the number of other clients that each client averages with."""
    seed: int = 0
    """Seed of the draws."""
    reading: str = "partition"
    """The definition of a group.

    'partition': all clients are split into groups, the last one possibly smaller; 'clique': one group, all others
    idle; 'independent': each client averages itself and `size` random others; rows sum to 1 but columns do not, so the
    average over the clients drifts.
    """

    period: ClassVar[None] = None

    def __post_init__(self) -> None:
        at_least_one(self, "n", "size")
        one_of(self, "reading", READINGS)
        whole_seed(self)
        least, most = (1, self.n - 1) if self.reading == "independent" else (2, self.n)
        fits = self.n == 1 or least <= self.size <= most
        require(fits, f"RandomGroups: size = {self.size} must be from {least} to {most} for n = {self.n} clients")

    @property
    def doubly_stochastic(self) -> bool:
        return self.reading != "independent"

    def W(self, t: int) -> Mixing:
        if self.reading == "independent":
            return self._listen(t)
        order, size = _shuffled(self, t), min(self.size, self.n)
        if self.reading == "partition":
            return partition(self.n, _groups(order, size))
        idle = np.full((self.n - size, size), self.n)
        idle[:, 0] = order[size:]
        return partition(self.n, np.vstack([order[None, :size], idle]))

    def _listen(self, t: int) -> Mixing:
        """Each client's own sample of the others without replacement, by Floyd's algorithm: each draw is from one more
        candidate than the last; if it was drawn before, the newest candidate replaces it."""
        n, size = self.n, min(self.size, self.n - 1)
        newest, me = np.arange(n - 1 - size, n - 1), np.arange(n)[:, None]
        drawn = (uniforms(keys(self.seed, "RandomGroups", me[:, 0], t), size) * (newest + 1)).astype(np.int64)
        for k in range(1, size):
            again = (drawn[:, :k] == drawn[:, k, None]).any(axis=1)
            drawn[again, k] = newest[k]
        others = drawn + (drawn >= me)
        col = np.sort(np.hstack([me, others]), axis=1)
        return Mixing(n, np.repeat(np.arange(n), size + 1), col.ravel(), np.full(col.size, 1 / (size + 1)))

    def spectral_gap(self) -> float:
        """1 - sqrt(E|WX - JWX|^2 / |X - JX|^2), with the mean over the draws; it is the same for all X.

        With groups of g it is (number of groups - 1)/(n - 1), that is (n - g)/((n - 1) g) when g divides n; with a
        clique, 1 - (g - 1)/(n - 1).
        """
        n, size = self.n, self.size
        if n == 1:
            return 1.0
        if self.reading == "partition":
            return gap_of_partition(n, -(-n // size))
        if self.reading == "clique":
            return gap_of_partition(n, n - size + 1)
        mean = (1 - size / (n - 1)) / (size + 1)  # E[WX] = mean * X if JX = 0
        variance = size * (n - 1 - size) / max(n - 2, 1) * (1 - 1 / (n - 1) ** 2) / (size + 1) ** 2
        return 1 - math.sqrt(mean**2 + variance * (1 - 1 / n))  # a part 1/n of the variance moves the average


def _shuffled(topology: RandomMatching | RandomGroups, t: int) -> np.ndarray:
    """The clients in the random order of round t."""
    return np.argsort(keys(topology.seed, type(topology).__name__, np.arange(topology.n), t))


def _groups(order: np.ndarray, size: int) -> np.ndarray:
    """Rows of `size` clients each, the last one padded with n."""
    n = len(order)
    return np.append(order, np.full(-n % size, n)).reshape(-1, size)
