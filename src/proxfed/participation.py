"""Which clients take part in a round: (t, n, seed) -> sorted ids, the same wherever and whenever it is asked.

A draw costs what the cohort costs, not what all clients would: of a million, a thousand are drawn in a tenth of a
millisecond.
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
    """Everybody, in every round: a range, by which a network knows that it need not pick rows."""

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
        return np.delete(np.arange(n), _first_different(key, n - self.m, n))  # drawn are those who stay away


@dataclass(frozen=True)
class BernoulliSampling:
    """Each client independently with probability p. A round may be without clients: an empty array."""

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
            skipped = np.minimum(np.log1p(-u) / np.log1p(-self.p), n)  # its whole part is geometric: who stays away
            ids = np.cumsum(skipped.astype(np.int64) + 1) - 1
            if ids[-1] >= n:
                return ids[: np.searchsorted(ids, n)]
            count *= 2


def _first_different(key: Key, m: int, n: int) -> np.ndarray:
    """The first m different ones, sorted, of an endless row of numbers that are uniform on 0 .. n-1; m <= n/2."""
    count = _enough(m + m * m / n)
    while True:
        numbers = (uniforms(key, count)[0] * n).astype(np.int64)
        different, first = np.unique(numbers, return_index=True)
        if len(different) >= m:
            return different[first <= np.partition(first, m - 1)[m - 1]] if m else different[:0]
        count *= 2


def _enough(expected: float) -> int:
    """Draws that are hardly ever too few; more do not change what the first ones are."""
    return int(expected + 4 * expected**0.5) + 8


@dataclass(frozen=True)
class Dropouts:
    """Clients that are lost in the middle of a round: they have the server's message and do their work, and what they
    send does not arrive. The bytes count as sent; the server's mean is over those it hears."""

    p: float
    """Probability that a client of the cohort is lost, in [0, 1)."""
    among: Participation = Full()
    """Who is in the cohort."""
    rollback: bool = True
    """A lost client goes back to its state before the round. Without that its state and what the server knows of it
    differ from then on, and no method with memory is exact."""

    def __post_init__(self) -> None:
        below_one(self, "p")

    def __call__(self, t: int, n: int, seed: int) -> Ids:
        return self.among(t, n, seed)

    def arrived(self, t: int, ids: Ids, seed: int) -> np.ndarray:
        """Those of the cohort whose messages the server gets."""
        who = np.asarray(ids, np.int64)
        return who[uniforms(keys(seed, "lost in the round", who, t), 1)[:, 0] >= self.p]


def attendance(participation: Participation, t: int, n: int, seed: int) -> tuple[Ids, Ids, Ids]:
    """Who takes part in round t, whose messages the server gets, and whose states go on: the same object if these are
    the same."""
    ids = cohort(participation, t, n, seed)
    return ids, *arrived(participation, t, ids, seed)


def arrived(participation: Participation, t: int, ids: Ids, seed: int) -> tuple[Ids, Ids]:
    """Those of a cohort whose messages the server gets, and those whose states go on; `ids` itself if that is all."""
    if not isinstance(participation, Dropouts):
        return ids, ids
    there = participation.arrived(t, ids, seed)
    arrived = ids if len(there) == len(ids) else there
    return arrived, arrived if participation.rollback else ids


def cohort(participation: Participation, t: int, n: int, seed: int) -> Ids:
    """The clients of round t: a range if all take part, else an array, whatever a participation returns."""
    ids = participation(t, n, seed)
    return ids if not isinstance(ids, range) or ids == range(n) else np.asarray(ids, np.int64)


PARTICIPATIONS: Registry[type] = Registry(
    "participations",
    {"full": Full, "uniform": UniformSampling, "bernoulli": BernoulliSampling, "dropouts": Dropouts},
    of=Participation,
)


explain(__name__)
