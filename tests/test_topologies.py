"""Topologies: what a mixing matrix must be, how fast it mixes by the formulas, and what is refused."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.topologies import (
    TOPOLOGIES,
    Complete,
    ErdosRenyi,
    Exponential,
    FromGraph,
    FromMatrix,
    Grid,
    Lazy,
    OnePeerExponential,
    RandomGroups,
    RandomMatching,
    RandomRegular,
    Ring,
    Star,
    SymmetricExponential,
    Torus,
    check,
    dense,
    lazy,
    psi,
    spectrum,
)
from proxfed.types import Mixing

# One entry at least for every name of the registry, "name" or "name/variant": (n, seed) -> topology.
MAKE = {
    "complete": lambda n, seed: Complete(n),
    "ring": lambda n, seed: Ring(n),
    "ring/lazy": lambda n, seed: Ring(n, weights="lazy"),
    "star": lambda n, seed: Star(n),
    "star/max_degree": lambda n, seed: Star(n, weights="max_degree"),
    "grid": lambda n, seed: Grid(n),
    "grid/path": lambda n, seed: Grid(n, rows=1),
    "torus": lambda n, seed: Torus(n),
    "torus/lazy": lambda n, seed: Torus(n, weights="lazy"),
    "exponential": lambda n, seed: Exponential(n),
    "symmetric_exponential": lambda n, seed: SymmetricExponential(n),
    "one_peer_exponential": lambda n, seed: OnePeerExponential(n),
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
}
DIRECTED = {"exponential", "one_peer_exponential", "random_groups/independent"}
DRAWN = [name for name in MAKE if MAKE[name](8, 0).period is None]
REPEATING = [name for name in MAKE if name not in DRAWN]
KEYED_ONCE = ["random_regular", "erdos_renyi"]

every = pytest.mark.parametrize("name", MAKE)
few = settings(deadline=None, max_examples=15)


def norm(A):
    return np.linalg.norm(A, 2)


def J(n):
    return np.full((n, n), 1 / n)


def same(a, b):
    return a.n == b.n and all(np.array_equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


# ---- every topology ----------------------------------------------------------------------------------------------


def test_every_topology_is_in_the_table():
    assert {name.split("/")[0] for name in MAKE} == set(TOPOLOGIES)
    for name, make in MAKE.items():
        assert type(make(8, 0)) is TOPOLOGIES[name.split("/")[0]]


@every
@few
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
@few
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


@pytest.mark.parametrize("name", DRAWN)
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


@pytest.mark.parametrize(
    "big",
    [
        lambda n: Ring(n),
        lambda n: Grid(n),
        lambda n: Torus(n),
        lambda n: Star(n),
        lambda n: Exponential(n),
        lambda n: SymmetricExponential(n),
        lambda n: OnePeerExponential(n),
        lambda n: RandomRegular(n, 4),
        lambda n: RandomMatching(n),
        lambda n: RandomGroups(n, 10),
        lambda n: RandomGroups(n, 10, reading="clique"),
        lambda n: RandomGroups(n, 10, reading="independent"),
    ],
)
def test_a_hundred_thousand_clients(big):
    topology = big(100_000)
    check(topology, columns=topology.doubly_stochastic)
    assert len(topology.W(1).row) < 4_000_000


# ---- how fast they mix -------------------------------------------------------------------------------------------


def rate(topology):
    return 1 - topology.spectral_gap()


@pytest.mark.parametrize("n", [4, 5, 10, 16, 33, 100, 100_000])
def test_psi_of_the_ring(n):
    assert rate(Ring(n)) == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / n), abs=1e-10)


@pytest.mark.parametrize("n", [3, 5, 10, 100, 3000])
def test_psi_of_the_star(n):
    assert rate(Star(n)) == pytest.approx(1 - 1 / n, abs=1e-10)


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (3, 8), (8, 3), (10, 10), (100, 200)])
def test_psi_of_the_torus(rows, cols):
    expected = 1 / 5 + 2 / 5 * (1 + math.cos(2 * math.pi / max(rows, cols)))
    assert rate(Torus(rows * cols, rows, cols)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("n", [2, 6, 10, 16, 100, 1024, 5000])
def test_psi_of_the_static_exponential_graph(n):
    assert rate(Exponential(n)) == pytest.approx(1 - 2 / (1 + math.ceil(math.log2(n))), abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_the_complete_graph_averages_exactly(n):
    np.testing.assert_array_equal(dense(Complete(n).W(0)), J(n))
    assert rate(Complete(n)) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize(
    ("n", "ring", "star", "torus", "grid"),
    [
        (10, 0.8727, 0.9000, 0.6545, 0.9045),
        (16, 0.9493, 0.9375, 0.6000, 0.8686),
        (100, 0.9987, 0.9900, 0.9236, 0.9795),
    ],
)
def test_psi_to_the_printed_digits(n, ring, star, torus, grid):
    rates = [round(rate(T(n)), 4) for T in (Ring, Star, Torus, Grid)]
    assert rates == [ring, star, torus, grid]


@pytest.mark.parametrize(("n", "printed"), [(10, 0.43), (16, 0.50), (100, 0.73)])
def test_psi_of_the_symmetric_exponential_graph_to_the_printed_digits(n, printed):
    assert round(rate(SymmetricExponential(n)), 2) == printed


@pytest.mark.parametrize("n", range(2, 34))
def test_one_peer_agrees_after_a_period_iff_n_is_a_power_of_two(n):
    topology = OnePeerExponential(n)
    assert topology.period == math.ceil(math.log2(n))
    contraction = psi(*map(topology.W, range(topology.period)))
    if n & (n - 1) == 0:
        assert contraction == 0
        assert topology.spectral_gap() == 1
    else:
        assert contraction > 0.01
    if n == 10:
        assert round(contraction, 2) == 0.19


def test_mean_square_contractions_as_printed():
    def square(topology):
        return rate(topology) ** 2

    n, g = 100, 10
    assert square(RandomGroups(n, g)) == pytest.approx((n - g) / ((n - 1) * g), abs=1e-12)
    assert square(RandomGroups(n, g, reading="clique")) == pytest.approx(1 - (g - 1) / (n - 1), abs=1e-12)
    assert square(RandomMatching(n)) == pytest.approx((n - 2) / (2 * (n - 1)), abs=1e-12)
    assert square(RandomGroups(n, g)) == pytest.approx(0.0909, abs=5e-5)
    assert square(RandomGroups(n, g, reading="clique")) == pytest.approx(0.909, abs=5e-4)


def test_lanczos_on_the_ring_whose_eigenvalues_crowd_at_one():
    assert psi(Ring(5000).W(0)) == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 5000), abs=1e-10)


@pytest.mark.parametrize(
    "topology",
    [
        Grid(300),
        Star(200),
        RandomRegular(300, 3),
        ErdosRenyi(200, 0.05),
        Exponential(301),
        OnePeerExponential(300),
        Torus(300),
        FromGraph(nx.barbell_graph(40, 5)),
    ],
    ids=lambda topology: type(topology).__name__,
)
def test_lanczos_is_the_singular_value(topology, monkeypatch):
    rounds = [topology.W(t) for t in range(topology.period)]
    exact = psi(*rounds)
    monkeypatch.setattr(spectrum, "DENSE", 0)
    assert psi(*rounds) == pytest.approx(exact, abs=1e-9)


def test_lanczos_multiplies_rounds_in_their_order(monkeypatch):
    rounds = [Star(60).W(0), Grid(60).W(0), Exponential(60).W(0)]
    star, grid, exponential = map(dense, rounds)
    monkeypatch.setattr(spectrum, "DENSE", 0)
    assert psi(*rounds) == pytest.approx(norm(exponential @ grid @ star - J(60)), abs=1e-9)


# ---- weights -----------------------------------------------------------------------------------------------------


@few
@given(n=st.integers(2, 15), seed=st.integers(0, 1000))
def test_weight_rules_are_their_definitions(n, seed):
    graph = nx.gnp_random_graph(n, 0.3, seed=seed)
    graph.add_edges_from(nx.path_graph(n).edges)
    metropolis, uniform = np.zeros((n, n)), np.zeros((n, n))
    for i, j in graph.edges:
        metropolis[i, j] = metropolis[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
        uniform[i, j] = uniform[j, i] = 1 / (1 + max(dict(graph.degree).values()))
    for W in (metropolis, uniform):
        W += np.diag(1 - W.sum(axis=1))
    np.testing.assert_allclose(dense(FromGraph(graph).W(0)), metropolis, atol=1e-14)
    np.testing.assert_allclose(dense(FromGraph(graph, weights="max_degree").W(0)), uniform, atol=1e-14)
    halfway = dense(FromGraph(graph, weights="lazy").W(0))
    np.testing.assert_allclose(halfway, (np.eye(n) + metropolis) / 2, atol=1e-14)
    assert np.linalg.eigvalsh(halfway).min() > -1e-12


@pytest.mark.parametrize("graph", [Ring, Complete, Star, Grid, Torus, SymmetricExponential])
def test_lazy_weights_have_no_negative_eigenvalue(graph):
    assert np.linalg.eigvalsh(dense(graph(12, weights="lazy").W(0))).min() > -1e-12


def test_lazy_fills_an_empty_diagonal():
    cycle = np.roll(np.eye(5), 1, axis=0)
    mixing = Lazy(FromMatrix(cycle)).W(0)
    np.testing.assert_array_equal(dense(mixing), (np.eye(5) + cycle) / 2)
    assert (np.diff(mixing.row * 5 + mixing.col) > 0).all()
    assert same(lazy(FromMatrix(cycle).W(0)), mixing)


def test_lazy_of_another_topology():
    swap = FromMatrix([[0, 1], [1, 0]])
    assert swap.spectral_gap() == pytest.approx(0, abs=1e-12)
    assert Lazy(swap).spectral_gap() == pytest.approx(1, abs=1e-12)
    check(Lazy(swap), contracts=True)
    one_peer = Lazy(OnePeerExponential(10))
    assert (one_peer.n, one_peer.period) == (10, 4)
    product = np.eye(10)
    for t in range(4):
        product = (np.eye(10) + dense(OnePeerExponential(10).W(t))) / 2 @ product
    assert rate(one_peer) ** 4 == pytest.approx(norm(product - J(10)), abs=1e-12)
    with pytest.raises(InputError, match=r"Lazy: of = RandomMatching.* must repeat"):
        Lazy(RandomMatching(6))


# ---- the graphs themselves ---------------------------------------------------------------------------------------


def edges(topology, t=0):
    _, row, col, _ = topology.W(t)
    return {(int(i), int(j)) for i, j in zip(col, row, strict=True) if i != j}  # (sender, receiver)


@few
@given(n=st.integers(1, 40))
def test_graphs_have_their_edges(n):
    both = lambda graph: {(a, b) for a, b in graph.edges if a != b} | {(b, a) for a, b in graph.edges if a != b}
    assert edges(Ring(n)) == both(nx.cycle_graph(n))
    assert edges(Complete(n)) == both(nx.complete_graph(n))
    assert edges(Star(n)) == both(nx.star_graph(n - 1))
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    for ours, periodic in ((Grid, False), (Torus, True)):
        graph = nx.grid_2d_graph(rows, n // rows, periodic=periodic)
        number = {(r, c): r * (n // rows) + c for r, c in graph}
        assert edges(ours(n)) == both(nx.relabel_nodes(graph, number)) == edges(ours(n, cols=n // rows))
    powers = [2**l for l in range(10) if 2**l < n]
    sent = {(i, (i + p) % n) for i in range(n) for p in powers}
    assert edges(Exponential(n)) == sent
    assert edges(SymmetricExponential(n)) == sent | {(b, a) for a, b in sent}
    for t, p in enumerate(powers):
        assert edges(OnePeerExponential(n), t) == {(i, (i + p) % n) for i in range(n)}


@pytest.mark.parametrize(("n", "degree"), [(4, 3), (5, 2), (5, 4), (9, 4), (10, 3), (10, 7), (41, 20), (60, 31)])
def test_random_regular_graphs_are_regular_and_connected(n, degree):
    for seed in range(10):
        graph = nx.Graph(edges(RandomRegular(n, degree, seed)))
        assert [graph.degree[i] for i in range(n)] == [degree] * n
        assert nx.is_connected(graph)


def test_all_edges_of_a_random_regular_graph_are_equally_likely():
    n, degree, draws = 9, 4, 600
    counts = sum((dense(RandomRegular(n, degree, seed).W(0)) > 0).astype(int) for seed in range(draws))
    p = degree / (n - 1)
    off = counts[~np.eye(n, dtype=bool)]
    assert (np.abs(off / draws - p) < 5 * math.sqrt(p * (1 - p) / draws)).all()


def test_all_edges_of_an_erdos_renyi_graph_have_probability_p():
    n, p, draws = 12, 0.7, 600  # connected nearly always, so that drawing again does not show
    counts = sum((dense(ErdosRenyi(n, p, seed).W(0)) > 0).astype(int) for seed in range(draws))
    off = counts[~np.eye(n, dtype=bool)]
    assert (np.abs(off / draws - p) < 5 * math.sqrt(p * (1 - p) / draws)).all()
    assert edges(ErdosRenyi(n, 1.0)) == edges(Complete(n))


@few
@given(n=st.integers(2, 25), t=st.integers(0, 1000), data=st.data())
def test_groups_partition_the_clients(n, t, data):
    size = data.draw(st.integers(2, n))
    found = sorted(len(c) for c in nx.connected_components(components(RandomGroups(n, size), n, t)))
    assert found == sorted([size] * (n // size) + [n % size] * (n % size > 0))
    clique = sorted(len(c) for c in nx.connected_components(components(RandomGroups(n, size, 0, "clique"), n, t)))
    assert clique == sorted([1] * (n - size) + [size])
    pairs = sorted(len(c) for c in nx.connected_components(components(RandomMatching(n), n, t)))
    assert pairs == [1] * (n % 2) + [2] * (n // 2)


def components(topology, n, t):
    graph = nx.empty_graph(n)
    graph.add_edges_from(edges(topology, t))
    W = dense(topology.W(t))
    np.testing.assert_allclose(W @ W, W, atol=1e-15)  # everybody in a group gets its mean
    return graph


def test_everybody_is_paired_with_everybody_equally_often():
    n, rounds = 8, 1500
    for topology, p in [
        (RandomMatching(n), 1 / 7),
        (RandomGroups(n, 4), 3 / 7),
        (RandomGroups(n, 3, 0, "clique"), 6 / 56),
    ]:
        counts = sum((dense(topology.W(t)) > 0).astype(int) for t in range(rounds))
        off = counts[~np.eye(n, dtype=bool)]
        assert (np.abs(off / rounds - p) < 5 * math.sqrt(p * (1 - p) / rounds)).all()


def test_independent_listeners_choose_others_evenly_and_columns_do_not_sum_to_one():
    n, size, rounds = 9, 4, 1500
    topology = RandomGroups(n, size, reading="independent")
    assert not topology.doubly_stochastic
    counts = np.zeros((n, n))
    uneven = 0
    for t in range(rounds):
        W = dense(topology.W(t))
        assert ((W > 0).sum(axis=1) == size + 1).all()
        assert (np.diag(W) > 0).all()
        counts += W > 0
        uneven += np.abs(W.sum(axis=0) - 1).max() > 0.1
    assert uneven > 0.9 * rounds
    p = size / (n - 1)
    off = counts[~np.eye(n, dtype=bool)]
    assert (np.abs(off / rounds - p) < 5 * math.sqrt(p * (1 - p) / rounds)).all()
    with pytest.raises(InputError, match=r"W: column \d+ sums to .*, not to 1"):
        check(topology)


def test_a_graph_is_a_list_of_edges_or_a_networkx_graph():
    listed = FromGraph([[0, 1], [1, 2], (2, 1), [2, 2], [2, 0]])
    assert listed.n == 3
    assert same(listed.W(0), Complete(3).W(0))
    assert edges(FromGraph(np.array([[2, 0], [0, 1]]))) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    backwards = nx.Graph([(2, 1), (1, 0)])
    assert edges(FromGraph(backwards)) == edges(Grid(3, rows=1))
    named = nx.Graph([("hospital", "bank"), ("bank", "school")])
    assert edges(FromGraph(named)) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert same(FromGraph(nx.grid_2d_graph(3, 4)).W(0), Grid(12).W(0))
    assert FromGraph([], n=1).n == FromGraph(nx.empty_graph(1)).n == 1


def test_a_matrix_stays_what_it_is():
    W = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]
    for given_as in (W, np.array(W), tuple(map(tuple, W))):
        topology = FromMatrix(given_as, n=3)
        np.testing.assert_array_equal(dense(topology.W(4)), W)
        assert len(topology.W(0).row) == 6
    assert FromMatrix([[1]]).n == 1


# ---- refusals ----------------------------------------------------------------------------------------------------


@few
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
        check(OnePeerExponential(4), symmetric=True)
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
    with pytest.raises(InputError, match="disagreement that rounds do not shrink"):
        check(Silent(4))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: Ring(0), r"Ring: n = 0 must be a whole number >= 1"),
        (lambda: Exponential(2.0), r"Exponential: n = 2.0 must be a whole number"),
        (lambda: OnePeerExponential(-1), r"OnePeerExponential: n = -1"),
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
        (lambda: FromMatrix([[1.0]], n=2), r"FromMatrix: matrix has 1 rows, but n = 2"),
        (lambda: FromGraph(nx.DiGraph([(0, 1)])), r"FromGraph: edges is a directed graph"),
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
def test_refusals(bad, sentence):
    with pytest.raises(InputError, match=sentence):
        bad()
