"""Every topology: what a mixing matrix must be, and what is refused."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.topologies import (
    TOPOLOGIES,
    Complete,
    ErdosRenyi,
    Every,
    ExponentialGraph,
    FromGraph,
    FromMatrices,
    FromMatrix,
    Grid,
    LinkFailures,
    OnePeerExponentialGraph,
    RandomGroups,
    RandomMatching,
    RandomRegular,
    Ring,
    SpanningTree,
    StarGraph,
    SymmetricExponentialGraph,
    Torus,
    check,
    dense,
    psi,
)
from proxfed.types import Mixing

from support.mixing_matrices import J, edges, norm, same

# One entry at least for every name of the registry, "name" or "name/variant": (n, seed) -> topology.
MAKE = {
    "complete": lambda n, seed: Complete(n),
    "ring": lambda n, seed: Ring(n),
    "ring/lazy": lambda n, seed: Ring(n, weights="lazy"),
    "star": lambda n, seed: StarGraph(n),
    "star/max_degree": lambda n, seed: StarGraph(n, weights="max_degree"),
    "grid": lambda n, seed: Grid(n),
    "grid/path": lambda n, seed: Grid(n, rows=1),
    "torus": lambda n, seed: Torus(n),
    "torus/lazy": lambda n, seed: Torus(n, weights="lazy"),
    "exponential": lambda n, seed: ExponentialGraph(n),
    "symmetric_exponential": lambda n, seed: SymmetricExponentialGraph(n),
    "one_peer_exponential": lambda n, seed: OnePeerExponentialGraph(n),
    "random_regular": lambda n, seed: RandomRegular(n, min(n - 1, 4), seed),
    "random_regular/dense": lambda n, seed: RandomRegular(n, (n - 1) // 2 * 2, seed) if n != 2 else Ring(2),
    "erdos_renyi": lambda n, seed: ErdosRenyi(n, 0.6, seed),
    "erdos_renyi/max_degree": lambda n, seed: ErdosRenyi(n, 0.6, seed, weights="max_degree"),
    "random_matching": lambda n, seed: RandomMatching(n, seed),
    "random_groups": lambda n, seed: RandomGroups(n, min(n, 3), seed),
    "random_groups/clique": lambda n, seed: RandomGroups(n, min(n, 3), seed, "clique"),
    "random_groups/independent": lambda n, seed: RandomGroups(n, max(1, min(n - 1, 3)), seed, "independent"),
    "graph": lambda n, seed: FromGraph(nx.star_graph(n - 1)),
    "graph/edges": lambda n, seed: FromGraph([[k, k + 1] for k in range(n - 1)], n),
    "matrix": lambda n, seed: FromMatrix(dense(Ring(n).W(0)).tolist()),
    "matrices": lambda n, seed: FromMatrices([dense(g.W(0)) for g in (Ring(n), Complete(n), StarGraph(n))]),
    "matrices/alone": lambda n, seed: FromMatrices([dense(OnePeerExponentialGraph(n).W(t)) for t in range(6)]),
    "link_failures": lambda n, seed: LinkFailures(Ring(n), 0.3 if n > 2 else 0.0, seed=seed),
    "link_failures/grid": lambda n, seed: LinkFailures(Grid(n), 0.8 if n > 2 else 0.0, n, seed),
    "every": lambda n, seed: Every(Ring(n), 3),
    "every/exponential": lambda n, seed: Every(ExponentialGraph(n), 2, n),
    "spanning_tree": lambda n, seed: SpanningTree(Ring(n)),
    "spanning_tree/grid": lambda n, seed: SpanningTree(Grid(n), root=n - 1, weights="max_degree"),
}
DIRECTED = {"exponential", "every/exponential", "one_peer_exponential", "random_groups/independent", "matrices/alone"}
DRAWN = [name for name in MAKE if MAKE[name](8, 0).period is None]
REPEATING = [name for name in MAKE if name not in DRAWN]
KEYED_ONCE = ["random_regular", "erdos_renyi"]

every = pytest.mark.parametrize("name", MAKE)


# ---- every topology ----------------------------------------------------------------------------------------------


def test_every_topology_is_in_the_table():
    assert {name.split("/")[0] for name in MAKE} == set(TOPOLOGIES)
    for name, make in MAKE.items():
        assert type(make(8, 0)) is TOPOLOGIES[name.split("/")[0]]


@every
@given(n=st.integers(1, 40), t=st.integers(0, 10**6), seed=st.integers(0, 10**9))
def test_rows_and_columns_sum_to_one(name, n, t, seed):
    topology = MAKE[name](n, seed)
    assert topology.n == n
    mixing = topology.W(t)
    W = dense(mixing)
    assert (mixing.weight > 0).all()
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=0, atol=1e-12)
    if topology.doubly_stochastic:
        np.testing.assert_allclose(W.sum(axis=0), 1, rtol=0, atol=1e-12)
    if name not in DIRECTED:
        np.testing.assert_array_equal(W, W.T)
    check(mixing, columns=topology.doubly_stochastic, connected=False, symmetric=name not in DIRECTED)
    check(topology, columns=topology.doubly_stochastic)


@every
@given(n=st.integers(1, 40), t=st.integers(0, 100))
def test_entries_are_sorted_typed_and_each_there_once(name, n, t):
    mixing = MAKE[name](n, 1).W(t)
    assert mixing.n == n
    assert (mixing.row.dtype, mixing.col.dtype, mixing.weight.dtype) == (np.int64, np.int64, np.float64)
    assert (np.diff(mixing.row * n + mixing.col) > 0).all()
    assert (mixing.row == mixing.col).sum() == n


@every
def test_one_client_talks_to_itself(name):
    topology = MAKE[name](1, 0)
    np.testing.assert_array_equal(dense(topology.W(0)), [[1.0]])
    assert topology.spectral_gap() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("name", [name for name in MAKE if "lazy" not in name])
def test_two_clients_average(name):
    np.testing.assert_allclose(dense(MAKE[name](2, 0).W(0)), J(2), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", REPEATING)
@pytest.mark.parametrize("n", [2, 3, 7, 12, 16, 30])
def test_rounds_repeat_and_the_gap_is_that_of_a_period(name, n):
    topology = MAKE[name](n, 5)
    product = np.eye(n)
    for t in range(topology.period):
        assert same(topology.W(t), topology.W(t + topology.period))
        product = dense(topology.W(t)) @ product
    contraction = norm(product - J(n))
    assert (1 - topology.spectral_gap()) ** topology.period == pytest.approx(contraction, abs=1e-10)
    assert psi(*map(topology.W, range(topology.period))) == pytest.approx(contraction, abs=1e-10)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_rounds_are_a_function_of_the_seed_and_t(name):
    first, again, other = MAKE[name](20, 3), MAKE[name](20, 3), MAKE[name](20, 4)
    late = first.W(9)
    for t in range(9):
        assert same(first.W(t), again.W(t))
        assert not same(first.W(t), first.W(t + 1))
        assert not same(first.W(t), other.W(t))
    assert same(late, again.W(9))


@pytest.mark.parametrize("name", KEYED_ONCE)
def test_graphs_drawn_once_are_a_function_of_the_seed(name):
    assert same(MAKE[name](20, 3).W(0), MAKE[name](20, 3).W(7))
    assert not same(MAKE[name](20, 3).W(0), MAKE[name](20, 4).W(0))


@pytest.mark.parametrize("name", [name for name in DRAWN if not name.startswith("link_failures")])
@pytest.mark.parametrize("n", [3, 9, 20])
def test_mean_square_contraction_of_drawn_rounds(name, n):
    """The average of |WX - JWX|^2 over many rounds is psi^2 |X - JX|^2, whatever X is."""
    topology, rounds = MAKE[name](n, 0), 600
    Ws = np.array([dense(topology.W(t)) for t in range(rounds)])
    for X in (np.eye(n)[0], np.arange(n) % 2.0, np.arange(n) ** 2.0):
        X = X - X.mean()
        after = Ws @ X
        ratio = ((after - after.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) / (X @ X)
        margin = 5 * ratio.std() / math.sqrt(rounds) + 1e-12
        assert abs(ratio.mean() - (1 - topology.spectral_gap()) ** 2) < margin


@pytest.mark.parametrize("p", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("of", [Ring(9), Grid(12), StarGraph(5, weights="lazy"), Complete(6)])
def test_links_fail_as_often_as_they_should_and_the_gap_is_that_of_the_worst_direction(of, p):
    n, rounds, topology = of.n, 4000, LinkFailures(of, p, seed=2)
    Ws = np.array([dense(topology.W(t)) for t in range(rounds)])
    W = dense(of.W(0))
    edge = (W > 0) & ~np.eye(n, dtype=bool)
    works = (Ws > 0)[:, edge].mean(axis=0)
    np.testing.assert_allclose(works, 1 - p, atol=5 * math.sqrt(p * (1 - p) / rounds))
    np.testing.assert_allclose(Ws[(Ws > 0) & edge], np.broadcast_to(W, Ws.shape)[(Ws > 0) & edge])
    values, vectors = np.linalg.eigh((Ws @ Ws).mean(axis=0) - J(n))
    after = Ws @ vectors[:, -1]
    margin = 6 * (after**2).sum(axis=1).std() / math.sqrt(rounds) + 1e-9
    assert (1 - topology.spectral_gap()) ** 2 == pytest.approx(values[-1], abs=margin)


@pytest.mark.parametrize(
    "big",
    [
        lambda n: Ring(n),
        lambda n: Grid(n),
        lambda n: Torus(n),
        lambda n: StarGraph(n),
        lambda n: ExponentialGraph(n),
        lambda n: SymmetricExponentialGraph(n),
        lambda n: OnePeerExponentialGraph(n),
        lambda n: RandomRegular(n, 4),
        lambda n: RandomMatching(n),
        lambda n: RandomGroups(n, 10),
        lambda n: RandomGroups(n, 10, reading="clique"),
        lambda n: RandomGroups(n, 10, reading="independent"),
        lambda n: LinkFailures(RandomRegular(n, 4), 0.1),
    ],
)
def test_a_hundred_thousand_clients(big):
    topology = big(100_000)
    check(topology, columns=topology.doubly_stochastic)
    assert len(topology.W(1).row) < 4_000_000


# ---- refusals ----------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 20), p=st.floats(0, 0.4), seed=st.integers(0, 1000))
def test_graphs_that_are_not_connected_are_refused_with_a_client_that_is_cut_off(n, p, seed):
    graph = nx.gnp_random_graph(n, p, seed=seed)
    cut_off = sorted(set(range(n)) - nx.node_connected_component(graph, 0))
    if cut_off:
        with pytest.raises(InputError, match=f"client {cut_off[0]} cannot be reached from client 0"):
            FromGraph(list(graph.edges), n)
    else:
        assert edges(FromGraph(list(graph.edges), n)) == {(a, b) for e in graph.edges for a, b in (e, e[::-1])}


class Alternating:
    """Two halves of a path in turn: neither round is connected, their union may be."""

    n, doubly_stochastic = 4, True

    def __init__(self, *rounds):
        self.rounds, self.period = rounds, len(rounds)

    def W(self, t):
        W = np.eye(4)
        for a, b in self.rounds[t % self.period]:
            W[[a, a, b, b], [a, b, a, b]] = 0.5
        at = np.flatnonzero(W)
        return Mixing(4, at // 4, at % 4, W.ravel()[at])

    def spectral_gap(self):
        return 1 - psi(*map(self.W, range(self.period))) ** (1 / self.period)


def test_connected_means_over_a_period():
    check(Alternating([(0, 1), (2, 3)], [(1, 2)]), contracts=True, symmetric=True)
    with pytest.raises(InputError, match="W: client 2 cannot be reached from client 0"):
        check(Alternating([(0, 1)], [(2, 3)]))
    check(Alternating([(0, 1)], [(2, 3)]), connected=False)


def test_check_names_what_is_wrong():
    def mixing(W):
        W = np.array(W, float)
        at = np.flatnonzero(W)
        return Mixing(len(W), at // len(W), at % len(W), W.ravel()[at])

    with pytest.raises(InputError, match=r"W: the entry \(0, 1\) is -0.5, but no entry may be negative"):
        check(mixing([[1.5, -0.5], [-0.5, 1.5]]))
    with pytest.raises(InputError, match=r"W: row 1 sums to 0.9, not to 1"):
        check(mixing([[0.5, 0.5], [0.5, 0.4]]))
    with pytest.raises(InputError, match=r"W: column 0 sums to 1.2, not to 1"):
        check(mixing([[0.6, 0.4], [0.6, 0.4]]))
    check(mixing([[0.6, 0.4], [0.6, 0.4]]), columns=False)
    check(mixing([[0.5 + 1e-11, 0.5], [0.5, 0.5 - 1e-11]]))
    with pytest.raises(InputError, match=r"W: row 0 sums to nan"):
        check(mixing([[np.nan, 0.5], [0.5, 0.5]]))
    with pytest.raises(InputError, match=r"W: the entries \(0, 1\) and \(1, 0\) differ, but W must be symmetric"):
        check(OnePeerExponentialGraph(4), symmetric=True)
    with pytest.raises(InputError, match=r"psi = 1"):
        check(mixing([[0, 1], [1, 0]]), contracts=True)
    check(mixing([[0, 1], [1, 0]]))


class Silent(RandomMatching):
    """Drawn anew each round, and never anything."""

    def W(self, t):
        return Mixing(self.n, np.arange(self.n), np.arange(self.n), np.ones(self.n))

    def spectral_gap(self):
        return 0.0


def test_drawn_rounds_must_contract_in_the_mean():
    with pytest.raises(InputError, match="some disagreement does not shrink"):
        check(Silent(4))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: Ring(0), r"Ring: n = 0 must be a whole number >= 1"),
        (lambda: ExponentialGraph(2.5), r"ExponentialGraph: n = 2.5 must be a whole number"),
        (lambda: OnePeerExponentialGraph(-1), r"OnePeerExponentialGraph: n = -1"),
        (lambda: RandomMatching(0), r"RandomMatching: n = 0"),
        (lambda: Ring(5, weights="uniform"), r"Ring: weights = 'uniform' is not one of 'metropolis', 'lazy'"),
        (lambda: Complete(100_000), r"Complete: n = 100000 .* at most n = 10000"),
        (lambda: Grid(10, 3, 3), r"Grid: 3 rows of 3 cols do not make n = 10"),
        (lambda: Torus(10, rows=4), r"Torus: 4 rows of 2 cols do not make n = 10"),
        (lambda: Grid(10, cols=20), r"Grid: 0 rows of 20 cols do not make n = 10"),
        (lambda: Grid(10, rows=0), r"Grid: rows = 0 must be a whole number >= 1"),
        (lambda: RandomRegular(5, 3), r"RandomRegular: n \* degree = 5 \* 3 must be even"),
        (lambda: RandomRegular(5, 5), r"RandomRegular: degree = 5 must be a whole number from 0 to n - 1 = 4"),
        (lambda: RandomRegular(5, 2.0), r"RandomRegular: degree = 2.0"),
        (lambda: RandomRegular(6, 1), r"RandomRegular\(n=6, .*degree=1.* was not connected in any of 100 draws"),
        (lambda: RandomRegular(6, 2, seed="a"), r"RandomRegular: seed = 'a' must be a whole number"),
        (lambda: ErdosRenyi(50, 0.001), r"ErdosRenyi\(n=50, .*p=0.001.* was not connected in any of 100 draws"),
        (lambda: ErdosRenyi(5, 0.0), r"ErdosRenyi: p = 0.0 must be > 0"),
        (lambda: ErdosRenyi(5, 1.5), r"ErdosRenyi: p = 1.5 must be <= 1"),
        (lambda: RandomGroups(10, 11), r"RandomGroups: size = 11 must be from 2 to 10 for n = 10"),
        (lambda: RandomGroups(10, 1), r"RandomGroups: size = 1 must be from 2 to 10"),
        (lambda: RandomGroups(10, 10, reading="independent"), r"RandomGroups: size = 10 must be from 1 to 9"),
        (lambda: RandomGroups(10, 2, reading="R2"), r"RandomGroups: reading = 'R2' is not one of"),
        (lambda: RandomGroups(10, 2, seed=0.5), r"RandomGroups: seed = 0.5 must be a whole number"),
        (lambda: FromMatrix([[0.5, 0.5]]), r"FromMatrix: matrix has shape \(1, 2\), but it must be square"),
        (lambda: FromMatrix([]), r"FromMatrix: matrix has shape \(0,\)"),
        (lambda: FromMatrix(1.0), r"FromMatrix: matrix has shape \(\)"),
        (lambda: FromMatrix([[1], [0, 1]]), r"FromMatrix: matrix must be rows of numbers"),
        (lambda: FromMatrix([["a"]]), r"FromMatrix: matrix must be rows of numbers"),
        (lambda: FromMatrix([[math.inf]]), r"FromMatrix: matrix has an entry that is not a finite number"),
        (lambda: FromMatrix([[0.9]]), r"W: row 0 sums to 0.9, not to 1"),
        (lambda: FromMatrix(np.eye(2)), r"W: client 1 cannot be reached from client 0"),
        (lambda: FromMatrices([]), r"FromMatrices: matrices is empty, but there must be at least one"),
        (lambda: FromMatrices([[[1.0]], J(2)]), r"FromMatrices: matrices\[1\] has 2 rows, but n = 1"),
        (lambda: FromMatrices([J(2), [[1, 2]]]), r"FromMatrices: matrices\[1\] has shape \(1, 2\)"),
        (lambda: FromMatrices([np.eye(2), np.eye(2)]), r"W: client 1 cannot be reached from client 0"),
        (lambda: Every(Ring(4), 0), r"Every: k = 0"),
        (lambda: Every(Ring(4), 2, n=5), r"Every: of has 4 clients, but n = 5"),
        (lambda: Every(RandomMatching(4), 2), r"Every: of = .* is not the same graph in every round"),
        (lambda: LinkFailures(Ring(4), 1.0), r"LinkFailures: p = 1.0 must be at least 0 and below 1"),
        (lambda: LinkFailures(Ring(4), 0.1, n=5), r"LinkFailures: of has 4 clients, but n = 5"),
        (lambda: LinkFailures(RandomMatching(4), 0.1), r"LinkFailures: of = .* is not the same graph in every round"),
        (lambda: LinkFailures(ExponentialGraph(8), 0.1), r"W must be symmetric"),
        (lambda: FromMatrix([[1.0]], n=2), r"FromMatrix: matrix has 1 rows, but n = 2"),
        (lambda: FromGraph(nx.path_graph(2, create_using=nx.DiGraph)), r"FromGraph: edges is a directed graph"),
        (lambda: FromGraph([[0, 1], [1, 2]], n=2), r"FromGraph: edges has 3 clients, which is more than n = 2"),
        (lambda: FromGraph([[0, 1, 2]]), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph([[0, 1], [2]]), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph([["a", "b"]]), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph([[0, 1.5]]), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph([[0, -1]]), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph(7), r"FromGraph: edges must be a list of pairs"),
        (lambda: FromGraph([]), r"FromGraph: n = 0 must be a whole number >= 1"),
        (lambda: FromGraph([[0, 1]], weights="best"), r"FromGraph: weights = 'best' is not one of"),
    ],
)
def test_bad_settings_are_refused(bad, sentence):
    with pytest.raises(InputError, match=sentence):
        bad()
