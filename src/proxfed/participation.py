"""Which clients take part in a round: (t, n, seed) -> sorted ids, a pure function.

The cost of a draw is proportional to the cohort, not to all clients: a thousand of a million are drawn in 0.1 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxfed.errors import at_least_one, below_one, positive, require
from proxfed.explained import explain
from proxfed.keyed_random import Ids, Key, keys, uniforms
from proxfed.registry import Registry
from proxfed.types import Participation

__all__ = [
    "PARTICIPATIONS",
    "BernoulliSampling",
    "Dropouts",
    "Full",
    "UniformSampling",
    "arrived",
    "attendance",
    "cohort",
]


@dataclass(frozen=True)
class Full:
    """All clients in every round: a range, so that the network need not select rows."""

    def __call__(self, t: int, n: int, seed: int) -> range:
        return range(n)


@dataclass(frozen=True)
class UniformSampling:
    """m of the n clients, drawn anew each round without replacement."""

    m: int
    """Clients in a round."""

    def __post_init__(self) -> None:
        at_least_one(self, "m")

    def __call__(self, t: int, n: int, seed: int) -> np.ndarray:
        require(self.m <= n, f"UniformSampling: m = {self.m} is more than the n = {n} clients there are")
        key = keys(seed, "uniform participation", [0], t)
        if 2 * self.m <= n:
            return _first_different(key, self.m, n)
        return np.delete(np.arange(n), _first_different(key, n - self.m, n))  # the absent clients are drawn


@dataclass(frozen=True)
class BernoulliSampling:
    """Each client independently with probability p. A round may have no clients: an empty array."""

    p: float
    """Probability to take part, in (0, 1]."""

    def __post_init__(self) -> None:
        positive(self, "p")
        require(self.p <= 1, f"BernoulliSampling: p = {self.p!r} must be <= 1")

    def __call__(self, t: int, n: int, seed: int) -> np.ndarray:
        if self.p == 1:
            return np.arange(n)
        key, count = keys(seed, "bernoulli participation", [0], t), _enough(n * self.p)
        while True:
            u = uniforms(key, count)[0]
            skipped = np.minimum(np.log1p(-u) / np.log1p(-self.p), n)  # its integer part is geometric: absent clients
            ids = np.cumsum(skipped.astype(np.int64) + 1) - 1
            if ids[-1] >= n:
                return ids[: np.searchsorted(ids, n)]
            count *= 2


def _first_different(key: Key, m: int, n: int) -> np.ndarray:
    """The first m distinct numbers, sorted, of an infinite sequence uniform on 0 .. n-1; m <= n/2."""
    count = _enough(m + m * m / n)
    while True:
        numbers = (uniforms(key, count)[0] * n).astype(np.int64)
        different, first = np.unique(numbers, return_index=True)
        if len(different) >= m:
            return different[first <= np.partition(first, m - 1)[m - 1]] if m else different[:0]
        count *= 2


def _enough(expected: float) -> int:
    """A number of draws that rarely falls short; drawing more does not change the first ones."""
    return int(expected + 4 * expected**0.5) + 8


@dataclass(frozen=True)
class Dropouts:
    """Clients that drop out during a round: they receive the server's message and compute, but their message does not
    arrive. Its bytes count as sent; the server averages over the messages that arrive."""

    p: float
    """Probability that a client of the cohort drops out, in [0, 1)."""
    among: Participation = Full()
    """The cohort before dropouts."""
    rollback: bool = True
    """Whether a client that drops out returns to its state before the round. If not, its state and the server's copy
    differ from then on, and no method with memory is exact."""

    def __post_init__(self) -> None:
        below_one(self, "p")

    def __call__(self, t: int, n: int, seed: int) -> Ids:
        return self.among(t, n, seed)

    def arrived(self, t: int, ids: Ids, seed: int) -> np.ndarray:
        """The clients of the cohort whose messages reach the server."""
        who = np.asarray(ids, np.int64)
        return who[uniforms(keys(seed, "lost in the round", who, t), 1)[:, 0] >= self.p]


def attendance(participation: Participation, t: int, n: int, seed: int) -> tuple[Ids, Ids, Ids]:
    """(the cohort of round t, the clients whose messages arrive, the clients that keep their new states): the same
    object if they are equal."""
    ids = cohort(participation, t, n, seed)
    return ids, *arrived(participation, t, ids, seed)


def arrived(participation: Participation, t: int, ids: Ids, seed: int) -> tuple[Ids, Ids]:
    """(the clients whose messages arrive, the clients that keep their new states) of a cohort; `ids` itself if all."""
    if not isinstance(participation, Dropouts):
        return ids, ids
    there = participation.arrived(t, ids, seed)
    arrived = ids if len(there) == len(ids) else there
    return arrived, arrived if participation.rollback else ids


def cohort(participation: Participation, t: int, n: int, seed: int) -> Ids:
    """The clients of round t: a range if all take part, else an array, for any type that the participation returns."""
    ids = participation(t, n, seed)
    return ids if not isinstance(ids, range) or ids == range(n) else np.asarray(ids, np.int64)


PARTICIPATIONS: Registry[type] = Registry(
    "participations",
    {"full": Full, "uniform": UniformSampling, "bernoulli": BernoulliSampling, "dropouts": Dropouts},
    of=Participation,
)


explain(__name__)
