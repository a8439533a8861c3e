"""Who talks to whom: graphs as mixing matrices W, the same in all rounds or changing with t.

Row i of W says what client i makes of what it hears, x_i <- sum_j w_ij x_j, so the column is the sender. All matrices
but those of RandomGroups(reading="independent") are doubly stochastic: the average over the clients stays what it is,
and a round shrinks the disagreement |X - JX| by psi = |W - J|_2 or more, J = 11'/n.

`W(t)` lists the non-zero entries, sorted by row and then by column, so that 100,000 clients on a sparse graph are a few
megabytes; Complete has n^2 of them and is meant for a few thousand clients. Rounds that are drawn are a function of the
seed and t alone.

weights, on undirected graphs, is one of
    metropolis   w_ij = 1 / (1 + max(deg_i, deg_j)) on edges, the rest on the diagonal
    lazy         (I + W)/2 of these: no negative eigenvalue
    max_degree   w_ij = 1 / (1 + the largest degree)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import networkx as nx
import numpy as np

from proxfed.draws import generator, keys, uniforms
from proxfed.errors import InputError, at_least_one, one_of, positive, require
from proxfed.types import Mixing, Topology

Pairs = tuple[np.ndarray, np.ndarray]

WEIGHTS = ("metropolis", "lazy", "max_degree")
READINGS = ("partition", "clique", "independent")
TRIES = 100  # draws of a random graph before we say that it does not get connected
DENSE = 1500  # up to this n, |W - J|_2 is a dense singular value
TOLERANCE = 1e-9  # of row and column sums


# ---- matrices ----------------------------------------------------------------------------------------------------


def dense(mixing: Mixing) -> np.ndarray:
    """W as an (n, n) array."""
    W = np.zeros((mixing.n, mixing.n))
    W[mixing.row, mixing.col] = mixing.weight
    return W


def lazy(mixing: Mixing) -> Mixing:
    """(I + W)/2."""
    n, row, col, weight = mixing
    own = row == col
    zero = np.setdiff1d(np.arange(n), row[own])  # on the diagonal of W
    at = np.searchsorted(row * n + col, zero * (n + 1))
    half = np.insert((weight + own) / 2, at, 0.5)
    return Mixing(n, np.insert(row, at, zero), np.insert(col, at, zero), half)


def _weigh(n: int, pairs: Pairs, weights: str) -> Mixing:
    """W of an undirected graph by one of WEIGHTS; pairs given twice, either way round, or loops do not matter."""
    i, j = pairs
    code = np.sort(np.concatenate([i * n + j, j * n + i, np.arange(n) * (n + 1)]))
    code = code[np.append(True, code[1:] != code[:-1])]  # many times faster than np.unique
    row, col = code // n, code % n
    own = row == col
    degree = np.bincount(row) - 1
    share = 1 / (1 + degree)
    w = np.full(len(row), share.min()) if weights == "max_degree" else np.minimum(share[row], share[col])
    w[own] = share  # and what the edges leave of it: a sum without cancellation, so that J is exactly J
    w[own] += np.bincount(row, share[row] - w)
    return lazy(Mixing(n, row, col, w)) if weights == "lazy" else Mixing(n, row, col, w)


def _circulant(n: int, shifts: Sequence[int]) -> Mixing:
    """Client i sends to i + s for each of the shifts, all different; uniform weights."""
    col = np.sort((np.arange(n)[:, None] - np.asarray(shifts)) % n, axis=1)
    return Mixing(n, np.repeat(np.arange(n), len(shifts)), col.ravel(), np.full(col.size, 1 / len(shifts)))


def _partition(n: int, groups: np.ndarray) -> Mixing:
    """Every group averages. A row lists one group and is filled up with n, which is nobody."""
    groups = np.sort(groups, axis=1)
    group, place = np.nonzero(groups < n)
    group_of = np.empty(n, np.int64)
    group_of[groups[group, place]] = group
    mates = groups[group_of]
    there = mates < n
    count = there.sum(axis=1)
    return Mixing(n, np.repeat(np.arange(n), count), mates[there], np.repeat(1 / count, count))


# ---- how fast it mixes -------------------------------------------------------------------------------------------


def psi(*rounds: Mixing) -> float:
    """|W_k ... W_1 - J|_2 of the given rounds; of a single one, psi of W.

    A dense singular value up to n = 1500; beyond, Lanczos on the non-zero entries.
    """
    n = rounds[0].n
    if n <= DENSE:
        product = np.eye(n)
        for mixing in rounds:
            product = dense(mixing) @ product
        return float(np.linalg.norm(product - 1 / n, 2))

    def squared(x: np.ndarray) -> np.ndarray:
        """(A'A) x with A = W_k ... W_1 - J, for x that sums to zero."""
        for _, row, col, weight in rounds:
            x = np.bincount(row, weight * x[col], n)
        x = x - x.mean()
        for _, row, col, weight in reversed(rounds):
            x = np.bincount(col, weight * x[row], n)
        return x - x.mean()

    return math.sqrt(max(0.0, _largest_eigenvalue(squared, n)))


def _largest_eigenvalue(apply: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """Of a symmetric positive semi-definite map, by Lanczos without reorthogonalisation (lost orthogonality only
    repeats eigenvalues that are found already). The tridiagonal matrix is looked at each time its size has doubled:
    twice the size squares the error, so a value that stands still has converged."""
    q = generator(0, "lanczos").standard_normal(n)
    q -= q.mean()
    q /= np.linalg.norm(q)
    before = np.zeros(n)
    alpha: list[float] = []  # the diagonal
    beta = [0.0]  # beta[1:]: beside the diagonal
    size, value = 32, -1.0
    while True:
        while len(alpha) < size:
            v = apply(q) - beta[-1] * before
            alpha.append(float(q @ v))
            v -= alpha[-1] * q
            beta.append(float(np.linalg.norm(v)))
            if beta[-1] < 1e-13:
                return _largest_of_tridiagonal(alpha, beta)
            before, q = q, v / beta[-1]
        last, value = value, _largest_of_tridiagonal(alpha, beta)
        if not value - last > 1e-11:  # also when it is not a number
            return value
        size *= 2


def _largest_of_tridiagonal(alpha: Sequence[float], beta: Sequence[float]) -> float:
    """By bisection: x is above all eigenvalues iff all pivots of T - xI are negative."""

    def above(x: float) -> bool:
        pivot = -1.0
        for a, b in zip(alpha, beta, strict=False):
            pivot = a - x - b * b / pivot
            if pivot >= 0:
                return False
        return True

    low, high = max(alpha), max(alpha) + 2 * max(beta)
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if above(middle) else (middle, high)
    return high


def _psi_by_fourier(mixing: Mixing, *shape: int) -> float:
    """psi of a W that looks the same from every client of a ring (n,) or torus (rows, cols): a normal matrix, whose
    eigenvalues are the Fourier transform of any column."""
    first = mixing.col == 0
    column = np.zeros(mixing.n)
    column[mixing.row[first]] = mixing.weight[first]
    eigenvalues = np.fft.fftn(column.reshape(shape)).ravel()
    return float(np.abs(eigenvalues[1:]).max(initial=0.0))


def _gap_of_partition(n: int, groups: int) -> float:
    """1 - sqrt(E|WX - JX|^2 / |X - JX|^2) when W averages over a random partition into this many groups: W is a
    projection with trace `groups`, and in expectation all directions other than 1 are alike."""
    return 1 - math.sqrt((groups - 1) / max(n - 1, 1))


# ---- checks ------------------------------------------------------------------------------------------------------


def check(
    what: Mixing | Topology,
    *,
    columns: bool = True,
    connected: bool = True,
    symmetric: bool = False,
    contracts: bool = False,
) -> None:
    """Raise InputError unless W has no negative entry and its rows sum to one, and

    columns     its columns sum to one (the average of the clients is kept)
    connected   everybody hears from everybody, directly or not, over a period; where rounds are drawn anew, the
                disagreement shrinks in the mean
    symmetric   W = W'
    contracts   psi < 1 over a period: also no eigenvalue -1
    """
    if isinstance(what, Mixing):
        rounds, drawn, gap = [what], False, lambda: 1 - psi(what)
    else:
        rounds, drawn, gap = [what.W(t) for t in range(what.period or 1)], what.period is None, what.spectral_gap
    n = rounds[0].n
    for _, row, col, weight in rounds:
        if len(negative := np.flatnonzero(weight < 0)):
            k = negative[0]
            raise InputError(f"W: the entry ({row[k]}, {col[k]}) is {weight[k]:.6g}, but no entry may be negative")
        for name, index in [("row", row), ("column", col)][: 1 + columns]:
            total = np.bincount(index, weight, n)
            if len(off := np.flatnonzero(~(np.abs(total - 1) <= TOLERANCE))):
                raise InputError(f"W: {name} {off[0]} sums to {total[off[0]]:.12g}, not to 1")
        if symmetric:
            place, where = np.unique(np.append(row * n + col, col * n + row), return_inverse=True)
            difference = np.bincount(where, np.append(weight, -weight))
            if len(off := np.flatnonzero(np.abs(difference) > TOLERANCE)):
                i, j = divmod(place[off[0]], n)
                raise InputError(f"W: the entries ({i}, {j}) and ({j}, {i}) differ, but W must be symmetric")
    if connected and not drawn:
        union = np.concatenate([m.row for m in rounds]), np.concatenate([m.col for m in rounds])
        lost = _unreached(n, *union)
        require(lost is None, f"W: client {lost} cannot be reached from client 0, but the graph must be connected")
    if contracts or (connected and drawn):
        require(
            gap() > 1e-12,
            "W: there is disagreement that rounds do not shrink (psi = 1, for instance an eigenvalue -1); lazy "
            "weights (I + W)/2 mend that on a connected graph",
        )


def _unreached(n: int, i: np.ndarray, j: np.ndarray) -> int | None:
    """The first client without a path to client 0, if there is one.

    Each component is named by its smallest member; while an edge joins two names, the larger takes the smaller one.
    """
    name = np.arange(n)
    while (name[i] != name[j]).any():
        low = np.minimum(name[i], name[j])
        np.minimum.at(name, name[i], low)
        np.minimum.at(name, name[j], low)
        while (name[name] != name).any():
            name = name[name]
    lost = np.flatnonzero(name != name[0])
    return int(lost[0]) if len(lost) else None


# ---- undirected graphs that stay the same ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Undirected(ABC):
    """n clients and a weight rule; a graph adds its edges, and refuses there what makes no such graph."""

    n: int
    weights: str = field(default="metropolis", kw_only=True)

    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")
        one_of(self, "weights", WEIGHTS)
        self.W(0)  # at once: bad fields are refused here, not in the first round

    @abstractmethod
    def pairs(self) -> Pairs:
        """The edges."""

    def W(self, t: int) -> Mixing:
        return self._mixing

    def spectral_gap(self) -> float:
        """1 - |W - J|_2."""
        return 1 - psi(self._mixing)

    @cached_property
    def _mixing(self) -> Mixing:
        return _weigh(self.n, self.pairs(), self.weights)


@dataclass(frozen=True)
class Complete(_Undirected):
    """Everybody talks to everybody: W = J, psi = 0. It has n^2 entries: for a few thousand clients at most."""

    def pairs(self) -> Pairs:
        require(self.n <= 10_000, f"Complete: n = {self.n} would make n^2 entries; at most n = 10000 is allowed")
        return np.triu_indices(self.n, 1)

    def spectral_gap(self) -> float:
        return 1 - _psi_by_fourier(self._mixing, self.n)


@dataclass(frozen=True)
class Ring(_Undirected):
    """Client i and its neighbours i - 1, i + 1: psi = 1/3 + 2/3 cos(2 pi / n) for n >= 4."""

    def pairs(self) -> Pairs:
        i = np.arange(self.n)
        return i, (i + 1) % self.n

    def spectral_gap(self) -> float:
        return 1 - _psi_by_fourier(self._mixing, self.n)


@dataclass(frozen=True)
class Star(_Undirected):
    """Client 0 and everybody else: psi = 1 - 1/n for n >= 3."""

    def pairs(self) -> Pairs:
        leaves = np.arange(1, self.n)
        return np.zeros_like(leaves), leaves


@dataclass(frozen=True)
class Grid(_Undirected):
    """A sheet of rows x cols clients, open at its ends, numbered row by row.

    rows, cols   both, one, or neither: then as near to a square as n allows (2 x 5 for 10, 1 x 11 for 11)
    """

    rows: int | None = None
    cols: int | None = None

    def pairs(self) -> Pairs:
        at = np.arange(self.n).reshape(_sides(self))
        return np.append(at[:, :-1], at[:-1]), np.append(at[:, 1:], at[1:])


@dataclass(frozen=True)
class Torus(_Undirected):
    """A grid whose ends are joined: psi = 1/5 + 2/5 (1 + cos(2 pi / max(rows, cols))) for sides of 3 and more.

    rows, cols   both, one, or neither: then as near to a square as n allows (2 x 5 for 10, 1 x 11 for 11)
    """

    rows: int | None = None
    cols: int | None = None

    def pairs(self) -> Pairs:
        at = np.arange(self.n).reshape(_sides(self))
        return np.append(at, at), np.append(np.roll(at, -1, axis=0), np.roll(at, -1, axis=1))

    def spectral_gap(self) -> float:
        return 1 - _psi_by_fourier(self._mixing, *_sides(self))


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
class SymmetricExponential(_Undirected):
    """Client i and i +- 2^l for all 2^l < n: some 2 log2 n neighbours; psi = .73 at n = 100."""

    def pairs(self) -> Pairs:
        i = np.arange(self.n)[:, None]
        j = (i + _powers(self.n)) % self.n
        return np.broadcast_to(i, j.shape).ravel(), j.ravel()

    def spectral_gap(self) -> float:
        return 1 - _psi_by_fourier(self._mixing, self.n)


def _powers(n: int) -> np.ndarray:
    """The ceil(log2 n) powers of two below n."""
    return 2 ** np.arange((n - 1).bit_length())


@dataclass(frozen=True)
class RandomRegular(_Undirected):
    """A random connected graph in which everybody has the same number of neighbours, drawn once.

    degree   neighbours of a client, less than n; n * degree is even
    seed     of the draw
    """

    degree: int
    seed: int = 0

    def pairs(self) -> Pairs:
        n, degree = self.n, self.degree
        whole = isinstance(degree, int) and not isinstance(degree, bool) and 0 <= degree < n
        require(whole, f"RandomRegular: degree = {degree!r} must be a whole number from 0 to n - 1 = {n - 1}")
        require(n * degree % 2 == 0, f"RandomRegular: n * degree = {n} * {degree} must be even")
        return _first_connected(self, lambda rng: _regular(n, degree, rng))


def _regular(n: int, degree: int, rng: np.random.Generator) -> Pairs:
    """Deal `degree` stubs a client into pairs; what makes loops and repetitions goes back into the hat, with a few
    good edges, and is dealt again until all fit: nearly uniform over all such graphs. A dense graph is what a sparse
    one leaves out."""
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
class ErdosRenyi(_Undirected):
    """A random connected graph in which each edge is there with probability p, drawn once; p must be above ln(n)/n or
    so to get connected.

    p      probability of an edge, in (0, 1]
    seed   of the draw
    """

    p: float
    seed: int = 0

    def pairs(self) -> Pairs:
        positive(self, "p")
        require(self.p <= 1, f"ErdosRenyi: p = {self.p!r} must be <= 1")
        return _first_connected(self, lambda rng: _erdos_renyi(self.n, self.p, rng))


def _erdos_renyi(n: int, p: float, rng: np.random.Generator) -> Pairs:
    """How many edges, then which of the n (n - 1) / 2, numbered (0, 1), (0, 2), ..., (1, 2), ..."""
    possible = n * (n - 1) // 2
    edge = rng.choice(possible, int(rng.binomial(possible, p)), replace=False)
    end = np.cumsum(np.arange(n - 1, 0, -1))  # one past the last edge whose smaller client is 0, 1, ...
    i = np.searchsorted(end, edge, side="right")
    return i, n - (end[i] - edge)


def _first_connected(graph: RandomRegular | ErdosRenyi, draw: Callable[[np.random.Generator], Pairs]) -> Pairs:
    """The first connected graph of a sequence that the seed fixes."""
    _whole_seed(graph)
    for attempt in range(TRIES):
        pairs = draw(generator(graph.seed, type(graph).__name__, attempt))
        if _unreached(graph.n, *pairs) is None:
            return pairs
    raise InputError(f"{graph} was not connected in any of {TRIES} draws; ask for more edges")


def _whole_seed(owner: Any) -> None:
    whole = isinstance(owner.seed, int) and not isinstance(owner.seed, bool)
    require(whole, f"{type(owner).__name__}: seed = {owner.seed!r} must be a whole number")


# ---- your own, and other matrices that stay the same -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FromGraph:
    """An undirected, connected graph.

    edges     a list of pairs of clients 0 .. n-1, or a networkx graph; nodes that are not called 0 .. n-1 are numbered
              in the order in which the graph lists them
    n         0: as many as the edges name
    weights   the rule, see the head of this file
    """

    edges: Any
    n: int = 0
    weights: str = "metropolis"

    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of(self, "weights", WEIGHTS)
        nodes, pairs = self._graph
        object.__setattr__(self, "n", self.n or nodes)
        at_least_one(self, "n")
        require(nodes <= self.n, f"FromGraph: edges has {nodes} clients, which is more than n = {self.n}")
        lost = _unreached(self.n, *pairs)
        require(lost is None, f"FromGraph: client {lost} cannot be reached from client 0 along the edges")

    def W(self, t: int) -> Mixing:
        return self._mixing

    def spectral_gap(self) -> float:
        """1 - |W - J|_2."""
        return 1 - psi(self._mixing)

    @cached_property
    def _graph(self) -> tuple[int, Pairs]:
        return _read_graph(self.edges)

    @cached_property
    def _mixing(self) -> Mixing:
        return _weigh(self.n, self._graph[1], self.weights)


def _read_graph(edges: Any) -> tuple[int, Pairs]:
    """How many clients it names, and the edges."""
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
class FromMatrix:
    """A matrix: not negative, rows and columns with sum 1, connected; it need not be symmetric.

    matrix   an array or nested lists, n x n
    n        0: as many as the matrix has rows
    """

    matrix: Any
    n: int = 0

    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rows = self._mixing.n
        object.__setattr__(self, "n", self.n or rows)
        require(self.n == rows, f"FromMatrix: matrix has {rows} rows, but n = {self.n!r}")
        check(self._mixing)

    def W(self, t: int) -> Mixing:
        return self._mixing

    def spectral_gap(self) -> float:
        """1 - |W - J|_2."""
        return 1 - psi(self._mixing)

    @cached_property
    def _mixing(self) -> Mixing:
        try:
            W = np.array(self.matrix, np.float64)
        except (TypeError, ValueError):
            raise InputError("FromMatrix: matrix must be rows of numbers, all of the same length") from None
        n = len(np.atleast_1d(W))
        require(W.shape == (n, n) != (0, 0), f"FromMatrix: matrix has shape {W.shape}, but it must be square")
        require(bool(np.isfinite(W).all()), "FromMatrix: matrix has an entry that is not a finite number")
        at = np.flatnonzero(W)
        return Mixing(n, at // n, at % n, W.ravel()[at])


@dataclass(frozen=True)
class Exponential:
    """Directed: client i sends to i + 2^l for all 2^l < n, uniform weights; psi = 1 - 2/(1 + ceil(log2 n)) for even
    n."""

    n: int

    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")

    def W(self, t: int) -> Mixing:
        return self._mixing

    def spectral_gap(self) -> float:
        """1 - |W - J|_2."""
        return 1 - _psi_by_fourier(self._mixing, self.n)

    @cached_property
    def _mixing(self) -> Mixing:
        return _circulant(self.n, [0, *_powers(self.n)])


# ---- graphs that change with the round ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OnePeerExponential:
    """Directed, one message a client: in round t, client i sends to i + 2^(t mod ceil(log2 n)), and averages what it
    hears with its own. Everybody agrees exactly after a period if, and only if, n is a power of two."""

    n: int

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")

    @property
    def period(self) -> int:
        return max(1, (self.n - 1).bit_length())

    def W(self, t: int) -> Mixing:
        return _circulant(self.n, sorted({0, 2 ** (t % self.period) % self.n}))

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
    """Each round, random pairs average; if n is odd, one client is left over.

    seed   of the draws
    """

    n: int
    seed: int = 0

    period: ClassVar[None] = None
    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_one(self, "n")
        _whole_seed(self)

    def W(self, t: int) -> Mixing:
        return _partition(self.n, _groups(_shuffled(self, t), 2))

    def spectral_gap(self) -> float:
        """1 - sqrt(E|WX - JX|^2 / |X - JX|^2); the mean square is (n - 2)/(2 (n - 1)) for even n, 1/2 for odd."""
        return _gap_of_partition(self.n, -(-self.n // 2))


@dataclass(frozen=True)
class RandomGroups:
    """Each round, random groups of clients average.

    size      clients in a group; "independent": other clients that each one listens to
    seed      of the draws
    reading   "partition": all clients are split into groups, the last one smaller if need be
              "clique": one group, everybody else is idle
              "independent": each client averages itself and `size` others of its own choice; rows sum to 1 but columns
              do not, so the average over the clients drifts
    """

    n: int
    size: int
    seed: int = 0
    reading: str = "partition"

    period: ClassVar[None] = None

    def __post_init__(self) -> None:
        at_least_one(self, "n", "size")
        one_of(self, "reading", READINGS)
        _whole_seed(self)
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
            return _partition(self.n, _groups(order, size))
        idle = np.full((self.n - size, size), self.n)
        idle[:, 0] = order[size:]
        return _partition(self.n, np.vstack([order[None, :size], idle]))

    def _listen(self, t: int) -> Mixing:
        """Everybody's own sample of the others without replacement, by Floyd's algorithm: each draw comes from one
        more candidate than the last; if it was drawn before, the newest candidate takes its place."""
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
        """1 - sqrt(E|WX - JWX|^2 / |X - JX|^2), the mean over the draws, which is the same for all X.

        With groups of g it is (number of groups - 1)/(n - 1), that is (n - g)/((n - 1) g) when g divides n; with a
        clique, 1 - (g - 1)/(n - 1).
        """
        n, size = self.n, self.size
        if n == 1:
            return 1.0
        if self.reading == "partition":
            return _gap_of_partition(n, -(-n // size))
        if self.reading == "clique":
            return _gap_of_partition(n, n - size + 1)
        mean = (1 - size / (n - 1)) / (size + 1)  # E[WX] = mean * X if JX = 0
        variance = size * (n - 1 - size) / max(n - 2, 1) * (1 - 1 / (n - 1) ** 2) / (size + 1) ** 2
        return 1 - math.sqrt(mean**2 + variance * (1 - 1 / n))  # a part 1/n of the variance moves the average


def _shuffled(topology: RandomMatching | RandomGroups, t: int) -> np.ndarray:
    """The clients in the random order of round t."""
    return np.argsort(keys(topology.seed, type(topology).__name__, np.arange(topology.n), t))


def _groups(order: np.ndarray, size: int) -> np.ndarray:
    """Rows of `size` clients each, the last one filled up with n."""
    n = len(order)
    return np.append(order, np.full(-n % size, n)).reshape(-1, size)


# ---- of another --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lazy:
    """(I + W)/2 of any topology that repeats: symmetric ones have no negative eigenvalue then. Random groups and
    matchings have none as they are.

    of   the topology
    """

    of: Topology

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.of.period is not None, f"Lazy: of = {self.of!r} draws its rounds anew, but they must repeat")

    @property
    def n(self) -> int:
        return self.of.n

    @property
    def period(self) -> int:
        return self.of.period or 1

    def W(self, t: int) -> Mixing:
        return lazy(self.of.W(t))

    def spectral_gap(self) -> float:
        """1 - |product of W over a period - J|_2^(1/period)."""
        return 1 - psi(*map(self.W, range(self.period))) ** (1 / self.period)


TOPOLOGIES: dict[str, type] = {
    "complete": Complete,
    "ring": Ring,
    "star": Star,
    "grid": Grid,
    "torus": Torus,
    "exponential": Exponential,
    "symmetric_exponential": SymmetricExponential,
    "one_peer_exponential": OnePeerExponential,
    "random_regular": RandomRegular,
    "erdos_renyi": ErdosRenyi,
    "random_matching": RandomMatching,
    "random_groups": RandomGroups,
    "graph": FromGraph,
    "matrix": FromMatrix,
}
"""By the names that configuration files use; all take n, which graph and matrix also find out by themselves."""
