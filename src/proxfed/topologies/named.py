"""Named fixed graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from proxfed.errors import at_least_one, require
from proxfed.topologies.base import FixedTopology, Undirected
from proxfed.topologies.mixing import Pairs, circulant
from proxfed.topologies.spectrum import psi_by_fourier
from proxfed.types import Mixing


@dataclass(frozen=True)
class Complete(Undirected):
    """All clients are neighbours: W = J, psi = 0. It has n^2 entries, for a few thousand clients at most."""

    def pairs(self) -> Pairs:
        require(self.n <= 10_000, f"Complete: n = {self.n} would make n^2 entries; at most n = 10000 is allowed")
        return np.triu_indices(self.n, 1)

    def spectral_gap(self) -> float:
        return 1 - psi_by_fourier(self._mixing, self.n)


@dataclass(frozen=True)
class Ring(Undirected):
    """Client i and its neighbours i - 1, i + 1: psi = 1/3 + 2/3 cos(2 pi / n) for n >= 4."""

    def pairs(self) -> Pairs:
        i = np.arange(self.n)
        return i, (i + 1) % self.n

    def spectral_gap(self) -> float:
        return 1 - psi_by_fourier(self._mixing, self.n)


@dataclass(frozen=True)
class StarGraph(Undirected):
    """Client 0 is the neighbour of all others: psi = 1 - 1/n for n >= 3."""

    def pairs(self) -> Pairs:
        leaves = np.arange(1, self.n)
        return np.zeros_like(leaves), leaves


@dataclass(frozen=True)
class Grid(Undirected):
    """A grid of rows x cols clients with open ends, numbered row by row."""

    rows: int | None = None
    """How many rows; None: what is nearest to a square."""
    cols: int | None = None
    """How many columns; None: those that fit the rows."""

    def pairs(self) -> Pairs:
        at = np.arange(self.n).reshape(_sides(self))
        return np.append(at[:, :-1], at[:-1]), np.append(at[:, 1:], at[1:])


@dataclass(frozen=True)
class Torus(Undirected):
    """A grid with joined ends: psi = 1/5 + 2/5 (1 + cos(2 pi / max(rows, cols))) for sides of 3 and more."""

    rows: int | None = None
    """How many rows; None: what is nearest to a square."""
    cols: int | None = None
    """How many columns; None: those that fit the rows."""

    def pairs(self) -> Pairs:
        at = np.arange(self.n).reshape(_sides(self))
        return np.append(at, at), np.append(np.roll(at, -1, axis=0), np.roll(at, -1, axis=1))

    def spectral_gap(self) -> float:
        return 1 - psi_by_fourier(self._mixing, *_sides(self))


def _sides(sheet: Grid | Torus) -> tuple[int, int]:
    """rows and cols with rows * cols = n."""
    n, rows, cols = sheet.n, sheet.rows, sheet.cols
    at_least_one(sheet, *(side for side in ("rows", "cols") if getattr(sheet, side) is not None))
    if rows is None:
        rows = n // cols if cols else next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
    if cols is None:
        cols = n // rows
    require(rows * cols == n, f"{type(sheet).__name__}: {rows} rows of {cols} cols do not make n = {n} clients")
    return rows, cols


@dataclass(frozen=True)
class SymmetricExponentialGraph(Undirected):
    """Client i and i +- 2^l for all 2^l < n: some 2 log2 n neighbours; psi = .73 at n = 100."""

    def pairs(self) -> Pairs:
        i = np.arange(self.n)[:, None]
        j = (i + _powers(self.n)) % self.n
        return np.broadcast_to(i, j.shape).ravel(), j.ravel()

    def spectral_gap(self) -> float:
        return 1 - psi_by_fourier(self._mixing, self.n)


@dataclass(frozen=True)
class ExponentialGraph(FixedTopology):
    """Directed: client i sends to i + 2^l for all 2^l < n, uniform weights; psi = 1 - 2/(1 + ceil(log2 n)) for even
    n."""

    n: int
    """Clients."""

    def __post_init__(self) -> None:
        at_least_one(self, "n")

    def spectral_gap(self) -> float:
        return 1 - psi_by_fourier(self._mixing, self.n)

    @cached_property
    def _mixing(self) -> Mixing:
        return circulant(self.n, [0, *_powers(self.n)])


def _powers(n: int) -> np.ndarray:
    """The ceil(log2 n) powers of two below n."""
    return 2 ** np.arange((n - 1).bit_length())
