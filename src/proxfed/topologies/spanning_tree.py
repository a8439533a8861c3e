"""Spanning trees of another graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from proxfed.errors import one_of, require, whole
from proxfed.topologies.base import FixedTopology
from proxfed.topologies.mixing import WEIGHTS, weigh
from proxfed.types import Mixing, Topology


class Rooted(NamedTuple):
    """A tree seen from its root."""

    parent: np.ndarray  # (n,), -1 at the root
    levels: tuple[np.ndarray, ...]  # the clients at each distance from the root, in order; the root comes first


@dataclass(frozen=True)
class SpanningTree(FixedTopology):
    """The tree of shortest paths from a root to all clients along the edges of another, fixed graph.

    Methods with a server run along it with the server at the root: n - 1 messages up and n - 1 down per round for any
    graph. For decentralised methods it is a graph like any other.
    """

    of: Topology
    """The graph; edges in one direction only are not used."""
    n: int = 0
    """The number of clients; 0: as many as the graph has."""
    root: int | None = None
    """The client at which the server is; None: a central one, found by two breadth-first searches."""
    weights: str = "metropolis"
    """The weight rule for W, see `proxfed.topologies`."""

    def __post_init__(self) -> None:
        one_of(self, "weights", WEIGHTS)
        object.__setattr__(self, "n", self.n or self.of.n)
        require(self.of.n == self.n, f"SpanningTree: of has {self.of.n} clients, but n = {self.n!r}")
        require(self.of.period == 1, f"SpanningTree: of = {self.of} is not the same graph in every round")
        fits = self.root is None or (whole(self.root) and 0 <= self.root < self.n)
        require(fits, f"SpanningTree: root = {self.root!r} must be one of the clients 0..{self.n - 1}")
        lost = np.setdiff1d(np.arange(self.n), np.concatenate(self.rooted.levels))
        require(len(lost) == 0, f"SpanningTree: client {lost[:1].sum()} cannot be reached along the edges of {self.of}")

    @cached_property
    def rooted(self) -> Rooted:
        """The tree seen from its root."""
        neighbours = _neighbours(self.of.W(0))
        return _shortest_ways(neighbours, _middle(neighbours) if self.root is None else self.root)

    @cached_property
    def _mixing(self) -> Mixing:
        child = np.flatnonzero(self.rooted.parent >= 0)
        return weigh(self.n, (child, self.rooted.parent[child]), self.weights)


def _neighbours(W: Mixing) -> list[np.ndarray]:
    """The clients linked to each client in both directions, in order."""
    n, row, col, _ = W
    both = (row != col) & np.isin(row * n + col, col * n + row)
    return np.split(col[both], np.searchsorted(row[both], np.arange(1, n)))


def _middle(neighbours: list[np.ndarray]) -> int:
    """Half-way between a client farthest from client 0 and one farthest from that: in a tree its centre, in other
    graphs near it."""
    end = _shortest_ways(neighbours, int(_shortest_ways(neighbours, 0).levels[-1][0]))
    node = int(end.levels[-1][0])
    for _ in range((len(end.levels) - 1) // 2):
        node = int(end.parent[node])
    return node


def _shortest_ways(neighbours: list[np.ndarray], root: int) -> Rooted:
    """Breadth-first; a client reachable through several parents is the child of the first."""
    parent = np.full(len(neighbours), -1)
    seen, levels = np.zeros(len(neighbours), bool), [np.array([root])]
    seen[root] = True
    while True:
        near = [neighbours[i] for i in levels[-1]]
        found, first = np.unique(np.concatenate(near), return_index=True)
        through = np.repeat(levels[-1], [len(some) for some in near])[first]
        new = ~seen[found]
        if not new.any():
            return Rooted(parent, tuple(levels))
        parent[found[new]], seen[found[new]] = through[new], True
        levels.append(found[new])
