"""Your own graph, matrix, or sequence of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import networkx as nx
import numpy as np

from proxfed.errors import InputError, at_least_one, one_of, require
from proxfed.topologies.base import FixedTopology
from proxfed.topologies.checks import check, unreached
from proxfed.topologies.mixing import WEIGHTS, Pairs, weigh
from proxfed.topologies.spectrum import psi
from proxfed.types import Mixing


@dataclass(frozen=True, eq=False)
class FromGraph(FixedTopology):
    """An undirected, connected graph."""

    edges: Any
    """A list of pairs of clients 0 .. n-1, or a networkx graph; nodes with other names are numbered in the order of the
    graph."""
    n: int = 0
    """The number of clients; 0: as many as the edges have."""
    weights: str = "metropolis"
    """The weight rule, see `proxfed.topologies`."""

    def __post_init__(self) -> None:
        one_of(self, "weights", WEIGHTS)
        nodes, pairs = self._graph
        object.__setattr__(self, "n", self.n or nodes)
        at_least_one(self, "n")
        require(nodes <= self.n, f"FromGraph: edges has {nodes} clients, which is more than n = {self.n}")
        lost = unreached(self.n, *pairs)
        require(lost is None, f"FromGraph: client {lost} cannot be reached from client 0 along the edges")

    @cached_property
    def _graph(self) -> tuple[int, Pairs]:
        return _read_graph(self.edges)

    @cached_property
    def _mixing(self) -> Mixing:
        return weigh(self.n, self._graph[1], self.weights)


def _read_graph(edges: Any) -> tuple[int, Pairs]:
    """(number of clients, edges)."""
    nodes = 0
    if isinstance(edges, nx.Graph):
        require(not edges.is_directed(), "FromGraph: edges is a directed graph; give its matrix to FromMatrix")
        nodes = len(edges)
        named = set(edges) == set(range(nodes))
        number = {node: node if named else k for k, node in enumerate(edges)}
        edges = [(number[a], number[b]) for a, b in edges.edges()]
    try:
        ends = np.array(list(edges) or np.empty((0, 2), np.int64))
        good = ends.ndim == 2 and ends.shape[1] == 2 and ends.dtype.kind == "i" and bool((ends >= 0).all())
    except (TypeError, ValueError):
        good = False
    require(good, "FromGraph: edges must be a list of pairs of clients, which are whole numbers >= 0")
    return max(nodes, int(ends.max(initial=-1)) + 1), (ends[:, 0], ends[:, 1])


@dataclass(frozen=True, eq=False)
class FromMatrix(FixedTopology):
    """A given matrix: non-negative, rows and columns with sum 1, connected; not necessarily symmetric."""

    matrix: Any
    """An array or nested lists, n x n."""
    n: int = 0
    """The number of clients; 0: as many as the matrix has rows."""

    def __post_init__(self) -> None:
        rows = self._mixing.n
        object.__setattr__(self, "n", self.n or rows)
        require(self.n == rows, f"FromMatrix: matrix has {rows} rows, but n = {self.n!r}")
        check(self._mixing)

    @cached_property
    def _mixing(self) -> Mixing:
        return _read_matrix(self.matrix, "FromMatrix: matrix")


@dataclass(frozen=True, eq=False)
class FromMatrices:
    """A cycle of matrices, one per round: non-negative, rows and columns with sum 1. Their union must be connected, a
    single one need not be.
    """

    matrices: Any
    """A list of arrays or nested lists, n x n each."""
    n: int = 0
    """The number of clients; 0: as many as the matrices have rows."""

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(len(self._rounds) > 0, "FromMatrices: matrices is empty, but there must be at least one")
        object.__setattr__(self, "n", self.n or self._rounds[0].n)
        for k, mixing in enumerate(self._rounds):
            require(mixing.n == self.n, f"FromMatrices: matrices[{k}] has {mixing.n} rows, but n = {self.n!r}")
        check(self)

    @cached_property
    def _rounds(self) -> list[Mixing]:
        return [_read_matrix(W, f"FromMatrices: matrices[{k}]") for k, W in enumerate(self.matrices)]

    @property
    def period(self) -> int:
        return len(self._rounds)

    def W(self, t: int) -> Mixing:
        return self._rounds[t % self.period]

    def spectral_gap(self) -> float:
        """1 - |product of W over a period - J|_2^(1/period)."""
        return 1 - psi(*self._rounds) ** (1 / self.period)


def _read_matrix(matrix: Any, what: str) -> Mixing:
    try:
        W = np.array(matrix, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be rows of numbers, all of the same length") from None
    n = len(np.atleast_1d(W))
    require(W.shape == (n, n) != (0, 0), f"{what} has shape {W.shape}, but it must be square")
    require(bool(np.isfinite(W).all()), f"{what} has an entry that is not a finite number")
    at = np.flatnonzero(W)
    return Mixing(n, at // n, at % n, W.ravel()[at])
