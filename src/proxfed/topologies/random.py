"""Random graphs, drawn once and then fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from proxfed.errors import InputError, positive, require, whole
from proxfed.keyed_random import generator
from proxfed.topologies.base import Undirected
from proxfed.topologies.checks import unreached, whole_seed
from proxfed.topologies.mixing import Pairs

TRIES = 100  # draws before a random graph is refused as not connected


@dataclass(frozen=True)
class RandomRegular(Undirected):
    """A random connected graph in which all clients have equally many neighbours, drawn once."""

    degree: int
    """Neighbours of a client, less than n; n * degree is even."""
    seed: int = 0
    """Seed of the draw."""

    def pairs(self) -> Pairs:
        n, degree = self.n, self.degree
        fits = whole(degree) and 0 <= degree < n
        require(fits, f"RandomRegular: degree = {degree!r} must be a whole number from 0 to n - 1 = {n - 1}")
        require(n * degree % 2 == 0, f"RandomRegular: n * degree = {n} * {degree} must be even")
        return _first_connected(self, lambda rng: _regular(n, degree, rng))


def _regular(n: int, degree: int, rng: np.random.Generator) -> Pairs:
    """Pair `degree` stubs per client at random; loops and repetitions are drawn again together with a few good edges,
    until there are none: nearly uniform over all such graphs. A dense graph is the complement of a sparse one."""
    if 2 * degree > n - 1:
        i, j = np.triu_indices(n, 1)
        a, b = _regular(n, n - 1 - degree, rng)
        kept = np.isin(i * n + j, a * n + b, invert=True)
        return i[kept], j[kept]
    edges, stubs = np.empty(0, np.int64), np.repeat(np.arange(n), degree)
    while len(stubs):
        i, j = rng.permutation(stubs).reshape(2, -1)
        new = np.minimum(i, j) * n + np.maximum(i, j)
        fits = np.zeros(len(new), bool)
        fits[np.unique(new, return_index=True)[1]] = True
        fits &= (i != j) & np.isin(new, edges, invert=True)
        edges = np.append(edges, new[fits])
        bad = len(new) - int(np.count_nonzero(fits))
        back = rng.choice(len(edges), min((bad + 7) // 8, len(edges)), replace=False)
        again = np.append(new[~fits], edges[back])
        stubs, edges = np.append(again // n, again % n), np.delete(edges, back)
    return edges // n, edges % n


@dataclass(frozen=True)
class ErdosRenyi(Undirected):
    """A random connected graph with each edge present with probability p, drawn once; p must be above about ln(n)/n for
    the graph to be connected.
    """

    p: float
    """Probability of an edge, in (0, 1]."""
    seed: int = 0
    """Seed of the draw."""

    def pairs(self) -> Pairs:
        positive(self, "p")
        require(self.p <= 1, f"ErdosRenyi: p = {self.p!r} must be <= 1")
        return _first_connected(self, lambda rng: _erdos_renyi(self.n, self.p, rng))


def _erdos_renyi(n: int, p: float, rng: np.random.Generator) -> Pairs:
    """Draws the number of edges, then which of the n (n - 1) / 2, numbered (0, 1), (0, 2), ..., (1, 2), ..."""
    possible = n * (n - 1) // 2
    edge = rng.choice(possible, int(rng.binomial(possible, p)), replace=False)
    end = np.cumsum(np.arange(n - 1, 0, -1))  # one past the last edge whose smaller client is 0, 1, ...
    i = np.searchsorted(end, edge, side="right")
    return i, n - (end[i] - edge)


def _first_connected(graph: RandomRegular | ErdosRenyi, draw: Callable[[np.random.Generator], Pairs]) -> Pairs:
    """The first connected graph of a sequence that the seed fixes."""
    whole_seed(graph)
    for attempt in range(TRIES):
        pairs = draw(generator(graph.seed, type(graph).__name__, attempt))
        if unreached(graph.n, *pairs) is None:
            return pairs
    raise InputError(f"{graph} was not connected in any of {TRIES} draws; it needs more edges")
