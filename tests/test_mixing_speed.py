"""How fast topologies mix, by the formulas, and what their weights are."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.topologies import (
    Complete,
    ErdosRenyi,
    ExponentialGraph,
    FromGraph,
    FromMatrix,
    Grid,
    Lazy,
    OnePeerExponentialGraph,
    RandomGroups,
    RandomMatching,
    RandomRegular,
    Ring,
    StarGraph,
    SymmetricExponentialGraph,
    Torus,
    check,
    dense,
    lazy,
    psi,
    spectrum,
)

from support.mixing_matrices import J, norm, same

# ---- how fast they mix -------------------------------------------------------------------------------------------


def rate(topology):
    return 1 - topology.spectral_gap()


@pytest.mark.parametrize("n", [4, 5, 10, 16, 33, 100, 100_000])
def test_psi_of_the_ring(n):
    assert rate(Ring(n)) == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / n), abs=1e-10)


@pytest.mark.parametrize("n", [3, 5, 10, 100, 3000])
def test_psi_of_the_star(n):
    assert rate(StarGraph(n)) == pytest.approx(1 - 1 / n, abs=1e-10)


@pytest.mark.parametrize(("rows", "cols"), [(3, 3), (3, 8), (8, 3), (10, 10), (100, 200)])
def test_psi_of_the_torus(rows, cols):
    expected = 1 / 5 + 2 / 5 * (1 + math.cos(2 * math.pi / max(rows, cols)))
    assert rate(Torus(rows * cols, rows, cols)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("n", [2, 6, 10, 16, 100, 1024, 5000])
def test_psi_of_the_static_exponential_graph(n):
    assert rate(ExponentialGraph(n)) == pytest.approx(1 - 2 / (1 + math.ceil(math.log2(n))), abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_the_complete_graph_averages_exactly(n):
    np.testing.assert_array_equal(dense(Complete(n).W(0)), J(n))


def test_psi_of_the_complete_graph_is_exactly_zero():
    """Not merely small: DEPOSITUM's theory has other step sizes for W = J, and tiny ones for a tiny psi."""
    assert {1 - Complete(n).spectral_gap() for n in range(1, 131)} == {0.0}
    assert {psi(Complete(n).W(0)) for n in range(1, 131)} == {0.0}
    assert {round(1 - Complete(n, weights="lazy").spectral_gap(), 12) for n in range(2, 131)} == {0.5}


@pytest.mark.parametrize(
    ("n", "ring", "star", "torus", "grid"),
    [
        (10, 0.8727, 0.9000, 0.6545, 0.9045),
        (16, 0.9493, 0.9375, 0.6000, 0.8686),
        (100, 0.9987, 0.9900, 0.9236, 0.9795),
    ],
)
def test_psi_to_the_printed_digits(n, ring, star, torus, grid):
    rates = [round(rate(T(n)), 4) for T in (Ring, StarGraph, Torus, Grid)]
    assert rates == [ring, star, torus, grid]


@pytest.mark.parametrize(("n", "printed"), [(10, 0.43), (16, 0.50), (100, 0.73)])
def test_psi_of_the_symmetric_exponential_graph_to_the_printed_digits(n, printed):
    assert round(rate(SymmetricExponentialGraph(n)), 2) == printed


@pytest.mark.parametrize("n", range(2, 34))
def test_one_peer_agrees_after_a_period_iff_n_is_a_power_of_two(n):
    topology = OnePeerExponentialGraph(n)
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
        StarGraph(200),
        RandomRegular(300, 3),
        ErdosRenyi(200, 0.05),
        ExponentialGraph(301),
        OnePeerExponentialGraph(300),
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
    rounds = [StarGraph(60).W(0), Grid(60).W(0), ExponentialGraph(60).W(0)]
    star, grid, exponential = map(dense, rounds)
    monkeypatch.setattr(spectrum, "DENSE", 0)
    assert psi(*rounds) == pytest.approx(norm(exponential @ grid @ star - J(60)), abs=1e-9)


# ---- weights -----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("graph", [Ring, Complete, StarGraph, Grid, Torus, SymmetricExponentialGraph])
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
    one_peer = Lazy(OnePeerExponentialGraph(10))
    assert (one_peer.n, one_peer.period) == (10, 4)
    product = np.eye(10)
    for t in range(4):
        product = (np.eye(10) + dense(OnePeerExponentialGraph(10).W(t))) / 2 @ product
    assert rate(one_peer) ** 4 == pytest.approx(norm(product - J(10)), abs=1e-12)
    with pytest.raises(InputError, match=r"Lazy: of = RandomMatching.* must repeat"):
        Lazy(RandomMatching(6))
