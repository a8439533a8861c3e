"""Methods with a server along a spanning tree: the tree, sums, bytes, PLEDGE's relays, and the time it takes."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed import run
from proxfed.algorithms import FedAvg, FedCEF, FedComposite, FedNAG, Pledge, Scaffold
from proxfed.compressors import ErrorBoundedQuantiser, Identity, TopK
from proxfed.engine.compatibility import check_combination
from proxfed.engine.halves import Oracle, Work
from proxfed.engine.messages import received
from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.participation import Full, UniformSampling
from proxfed.testing.runs import small_blocks
from proxfed.topologies import (
    Complete,
    ErdosRenyi,
    ExponentialGraph,
    FromGraph,
    Grid,
    Ring,
    SpanningTree,
    StarGraph,
    SymmetricExponentialGraph,
    Torus,
)

from support import toy_problems as toy
from support.clock_rows import FEDAVG, clock, row, timing

N, D = toy.N, toy.D
FINE = ErrorBoundedQuantiser(0.05)
PATH = SpanningTree(Grid(N, rows=1))
TREES = {
    "path": PATH,
    "star": SpanningTree(StarGraph(N)),
    "ring": SpanningTree(Ring(N), root=3),
    "grid": SpanningTree(FromGraph([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)])),
    "exponential": SpanningTree(SymmetricExponentialGraph(N)),
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


# ---- the tree --------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 30), p=st.floats(0.1, 1), seed=st.integers(0, 99), root=st.integers(0, 29))
def test_shortest_ways_are_those_of_networkx(n, p, seed, root):
    try:
        graph = ErdosRenyi(n, p, seed)
    except InputError:  # not connected
        return
    G = nx.Graph([(int(i), int(j)) for i, j in zip(*graph.pairs(), strict=True)])
    G.add_nodes_from(range(n))
    parent, levels = SpanningTree(graph, root=root % n).rooted
    far = nx.single_source_shortest_path_length(G, root % n)
    for depth, nodes in enumerate(levels):
        assert [far[i] for i in nodes] == [depth] * len(nodes)
        assert all(G.has_edge(i, parent[i]) and far[parent[i]] == depth - 1 for i in nodes if depth)
    assert sum(map(len, levels)) == n
    assert np.count_nonzero(parent < 0) == 1


@pytest.mark.parametrize(
    ("graph", "depth"), [(Ring(30), 15), (Grid(21, rows=1), 10), (StarGraph(9), 1), (Complete(6), 1), (Torus(25), 4)]
)
def test_the_root_is_in_the_middle(graph, depth):
    assert len(SpanningTree(graph).rooted.levels) - 1 == depth


def test_what_has_no_such_tree_is_refused():
    with pytest.raises(InputError, match=r"SpanningTree: client \d+ cannot be reached along the edges of Exponential"):
        SpanningTree(ExponentialGraph(8))
    with pytest.raises(InputError, match=r"SpanningTree: root = 8 must be one of the clients 0\.\.7"):
        SpanningTree(Ring(8), root=8)
    with pytest.raises(InputError, match="SpanningTree: of has 8 clients, but n = 7"):
        SpanningTree(Ring(8), 7)


# ---- any method with a server ----------------------------------------------------------------------------------------


@every_tree
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(0.5, 3),
        FedNAG(0.3, 0.5, 3, output="best"),
        Scaffold(1.0, 3),
        FedComposite(1.0, 3),
        FedCEF(0.6, 3, compressor=TopK(k=3)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_sums_along_a_tree_are_those_of_a_server(algorithm, tree):
    """With weights and minibatches, whether computed at once or in blocks on two threads."""
    p = toy.problem(
        batch=4, sizes=toy.RAGGED, weighting="size", h=toy.SPARSE if algorithm.needs.composite else toy.toy.RIDGE
    )
    star, along, split = toy.begin(p, algorithm), toy.begin(p, algorithm, tree), toy.begin(p, algorithm, tree)
    for t in range(1, 6):
        star.round(t)
        along.round(t)
        with small_blocks(2, threads=2):
            split.round(t)
    for key, x in star.dump().items():
        assert toy.gap(along.dump()[key], x) < 1e-12
        assert toy.gap(split.dump()[key], x) < 1e-12
    assert along.counters() == split.counters()


@every_tree
def test_bytes_are_those_of_n_minus_1_edges_each_way(tree):
    """Dense sums: also of messages that were compressed."""
    p = toy.problem()
    for algorithm, up, down in (
        (FedComposite(1.0, 3), 1, 1),
        (FedCEF(0.6, 3, compressor=TopK(k=3)), 1, 1),
        (Scaffold(1.0, 3), *Scaffold.facts.sends[:2]),
    ):
        run = toy.begin(p, algorithm, tree)
        for t in range(1, 4):
            run.round(t)
        traffic = run.network.traffic
        assert (traffic.up, traffic.down, traffic.edge) == tuple(3 * (N - 1) * D * 8 * v for v in (up, down, 0))


# ---- PLEDGE's relays -------------------------------------------------------------------------------------------------


def acc_form(p, algorithm, tree, rounds):
    """The same by another bookkeeping: every node sends C(v + the children's public sums - its own public sum)."""
    parent, levels = tree.rooted
    dense, C = toy.begin(p, algorithm), algorithm.compressor_up
    clients, server = dense.state
    U = clients.u.clone() * 0  # public sums of whole subtrees; all begin with the same u
    for nodes in reversed(levels):
        for i in nodes:
            U[i] += clients.u[i]
            if parent[i] >= 0:
                U[parent[i]] += U[i]
    for t in range(1, rounds + 1):
        server, message = algorithm.down(server, keys(0, "server message", [0], t))
        clients, v = algorithm.client(clients, received(message), Oracle(p.f.local(t, range(N)), Work()), p.h)
        known = torch.zeros_like(U)  # the children's public sums
        for nodes in reversed(levels[1:]):
            for i in nodes:
                D_i = C((v[i] + known[i] - U[i])[None], keys(0, "message", [i], t)).dense[0]
                U[i] = U[i] + D_i
                known[parent[i]] += U[i]
        root = int(levels[0][0])
        c = (v[root] + known[root]) / N
        server = algorithm.server(server, c - server.c, p.h, 1.0)
        yield c, algorithm.model(server, p.h)


@every_tree
@pytest.mark.parametrize("C", [Identity(), FINE, TopK(k=8)], ids=repr)
def test_T05n_relays_are_compressed_sums_of_subtrees(C, tree):
    p, algorithm = toy.problem(batch=5), Pledge(0.8, 3, compressor_up=C, compressor_down=FINE)
    run = toy.begin(p, algorithm, tree)
    for t, (c, model) in enumerate(acc_form(p, algorithm, tree, 25), 1):
        run.round(t)
        assert toy.gap(run.state.server.c, c) < 1e-12
        assert toy.gap(run.model(), model) < 1e-12


@every_tree
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_T05o_c_is_the_mean_of_u_and_public_is_public(tree, weighting):
    p = toy.problem(batch=4, sizes=toy.RAGGED, weighting=weighting)
    run = toy.begin(p, Pledge(0.8, 3), tree)
    for t in range(1, 41):
        run.round(t)
        clients, server = run.state
        assert toy.gap(clients.u.mean(0), server.c) < 1e-13
        assert torch.equal(clients.z, server.z.expand(N, -1))
        assert torch.equal(clients.y, server.y.expand(N, -1))


@pytest.mark.parametrize("batch", [None, 4])
def test_dense_relays_are_the_server_form(batch):
    p = toy.problem(batch=batch, sizes=toy.RAGGED, weighting="size")
    algorithm = Pledge(0.8, 3, compressor_up=Identity(), compressor_down=FINE)
    star, along = toy.begin(p, algorithm), toy.begin(p, algorithm, PATH)
    for t in range(1, 21):
        star.round(t)
        along.round(t)
        assert toy.gap(along.model(), star.model()) < 1e-12


@every_tree
@pytest.mark.parametrize("tau", [1, 4])
def test_pledge_reaches_the_solution_along_a_tree(tau, tree):
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    algorithm = Pledge(1 / (p.f.smoothness().L * N * float(p.f.weights.max())), tau, compressor_up=FINE)
    assert toy.reaches(p, algorithm, 1e-10, 500, tree)


def test_a_deep_tree_asks_for_finer_messages():
    """What is lost on one edge waits for the next round, and a long way has many edges."""
    n, rounds = 16, 45
    p = toy.problem(sizes=(20,) * n)
    tree, L, x = SpanningTree(Ring(n)), p.f.smoothness().L, p.solve().numpy()
    coarse, fine = (Pledge(1 / L, compressor_up=ErrorBoundedQuantiser(q2)) for q2 in (0.2, 0.02))
    errors = {q2: toy.error(toy.final(p, a, rounds, tree), x) for q2, a in ((0.2, coarse), (0.02, fine))}
    with_server = toy.error(toy.final(p, coarse, rounds), x)
    assert errors[0.02] < 0.01 * errors[0.2]
    assert with_server < 0.1 * errors[0.2]


def test_goes_on_bit_for_bit_after_a_dump():
    p, algorithm = toy.problem(batch=4), Pledge(0.8, 3)
    whole, resumed = toy.begin(p, algorithm, PATH), toy.begin(p, algorithm, PATH)
    for t in range(1, 4):
        whole.round(t)
    resumed.load({k: x.clone() for k, x in whole.dump().items()}, whole.counters() | {"wall_seconds": 0.0})
    for t in range(4, 8):
        whole.round(t)
        resumed.round(t)
    assert all(torch.equal(x, resumed.dump()[k]) for k, x in whole.dump().items())
    assert whole.counters() == resumed.counters()


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    p = toy.problem()
    with pytest.raises(InputError, match="leave the topology out, or give a SpanningTree of it"):
        run(p, Pledge(1.0), rounds=1, topology=Ring(N))
    with pytest.raises(InputError, match="FedAvg needs every client in every round along a tree, not UniformSampling"):
        check_combination(replace(p, h=toy.toy.RIDGE), FedAvg(1.0, 2), PATH, UniformSampling(2))
    with pytest.raises(InputError, match="the topology has 6 nodes, but the problem 5 clients"):
        check_combination(p, Pledge(1.0), SpanningTree(Ring(6)), Full())


# ---- the time it takes -----------------------------------------------------------------------------------------------


def test_a_round_along_a_path_takes_its_depth_twice():
    """Five in a row, the server in the middle: 0.5 s and 1 MB over 8 Mbit/s for each of two edges down and two up."""
    run = clock(timing(1.0, server_seconds=0.25), FEDAVG, Full(), PATH, N, 0)
    hop = 0.5 + 1.0
    one_round = 2 * hop + 3 * 1.0 + 2 * hop + 0.25
    assert run(row(0)) == 0
    assert run(row(1, 3 * N, up=4e6, down=4e6)) == pytest.approx(one_round)
    assert run(row(3, 9 * N, up=12e6, down=12e6)) == pytest.approx(3 * one_round)


def test_a_slow_leaf_is_waited_for_and_a_slow_edge_counts():
    t = timing(0.1, 0.1, 0.1, 0.1, 9.0, edges=[{"between": [3, 2], "latency": 5.0, "bandwidth": 8.0}])
    run = clock(t, FEDAVG, Full(), PATH, N, 0)
    way_down = 5.0 + 0.5  # over the slow edge, then to client 4
    assert run(row(1, N, down=4.0, up=4.0)) == pytest.approx(way_down + 9.0 + way_down, abs=1e-4)


@given(seed=st.integers(0, 50), n=st.integers(2, 20))
def test_the_clock_is_that_of_a_plain_recursion(seed, n):
    rng = np.random.default_rng(seed)
    steps = rng.uniform(0.1, 3, n)
    tree = SpanningTree(Ring(n), root=seed % n)
    parent, levels = tree.rooted
    children = {i: [j for j in range(n) if parent[j] == i] for i in range(n)}
    hop_down, hop_up = 0.5 + 2.0, 0.5 + 3.0

    def done(i, begins):
        return max([begins + steps[i], *(done(j, begins + hop_down) + hop_up for j in children[i])])

    run = clock(timing(*map(float, steps)), FEDAVG, Full(), tree, n, 0)
    took = run(row(1, n, up=3e6 * (n - 1), down=2e6 * (n - 1)))
    assert took == pytest.approx(done(int(levels[0][0]), 0.0))
