"""The graphs behind the topologies: who talks to whom, and how often."""

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
)

from support.mixing_matrices import edges, same


@given(n=st.integers(1, 40))
def test_graphs_have_their_edges(n):
    both = lambda graph: {(a, b) for a, b in graph.edges if a != b} | {(b, a) for a, b in graph.edges if a != b}
    assert edges(Ring(n)) == both(nx.cycle_graph(n))
    assert edges(Complete(n)) == both(nx.complete_graph(n))
    assert edges(StarGraph(n)) == both(nx.star_graph(n - 1))
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    for ours, periodic in ((Grid, False), (Torus, True)):
        graph = nx.grid_2d_graph(rows, n // rows, periodic=periodic)
        number = {(r, c): r * (n // rows) + c for r, c in graph}
        assert edges(ours(n)) == both(nx.relabel_nodes(graph, number)) == edges(ours(n, cols=n // rows))
    powers = [2**l for l in range(10) if 2**l < n]
    sent = {(i, (i + p) % n) for i in range(n) for p in powers}
    assert edges(ExponentialGraph(n)) == sent
    assert edges(SymmetricExponentialGraph(n)) == sent | {(b, a) for a, b in sent}
    for t, p in enumerate(powers):
        assert edges(OnePeerExponentialGraph(n), t) == {(i, (i + p) % n) for i in range(n)}


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


def test_all_pairs_are_matched_equally_often():
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
