"""A tree that reaches all clients along the edges of another graph."""

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
    """The shortest ways from a root to all clients, along the edges of another graph, which stays the same.

    Methods with a server run along it, the server at the root: n - 1 messages up and as many down a round, whatever the
    graph. To methods between peers it is a graph like any other.
    """

    of: Topology
    """The graph; edges that carry one way only are not used."""
    n: int = 0
    """0: as many as the graph has."""
    root: int | None = None
    """The client where the server sits; None: one in the middle, as far as two searches through the graph can tell."""
    weights: str = "metropolis"
    """The rule for W, see the head of the package."""

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
    """Of each client those whom it hears and who hear it, in order."""
    n, row, col, _ = W
    both = (row != col) & np.isin(row * n + col, col * n + row)
    return np.split(col[both], np.searchsorted(row[both], np.arange(1, n)))


def _middle(neighbours: list[np.ndarray]) -> int:
    """Half-way between a client that is farthest from client 0 and one that is farthest from that: in a tree its
    centre, in other graphs near it."""
    end = _shortest_ways(neighbours, int(_shortest_ways(neighbours, 0).levels[-1][0]))
    node = int(end.levels[-1][0])
    for _ in range((len(end.levels) - 1) // 2):
        node = int(end.parent[node])
    return node


def _shortest_ways(neighbours: list[np.ndarray], root: int) -> Rooted:
    """Level by level; who can be reached through several is the child of the first of them."""
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
