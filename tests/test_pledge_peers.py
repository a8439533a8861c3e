"""PLEDGE between peers: the recursion, what it keeps, what it reduces to, where it stays, where it ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from proxfed.algorithms import ExactDiffusion, Pledge, PledgePeers
from proxfed.algorithms.pledge import LARGEST_Q2
from proxfed.algorithms.pledge_peers import State, modal_radius
from proxfed.compressors import ErrorBoundedQuantiser, Identity, TopK
from proxfed.engine.compatibility import check_combination
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.participation import Full
from proxfed.regularisers import MCP, Zero
from proxfed.topologies import (
    Complete,
    ExponentialGraph,
    Grid,
    OnePeerExponentialGraph,
    Ring,
    SpanningTree,
    StarGraph,
    SymmetricExponentialGraph,
    dense,
)

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D
DENSE, QUANTISER = Identity(), ErrorBoundedQuantiser(0.1)
GRAPHS = [Ring(N), StarGraph(N), Grid(N, rows=1), Complete(N), SymmetricExponentialGraph(N), SpanningTree(Ring(N))]
every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: type(g).__name__)


def states(p, algorithm, rounds, graph):
    return (s for t, s in toy.trajectory(p, algorithm, rounds, graph) if t > 0)


def in_numpy(p, W, eta, tau, gamma, theta, a, guard, compress, rounds):
    """The recursion as the head of the file has it, all peers as rows of matrices."""
    grads, prox, S = toy.gradients(p), ref.prox_l1(toy.LAMBDA), eta * tau
    x = v = zh = s = np.tile(toy.start(p), (N, 1))
    d, m, y_prox = 0 * x, 0 * x, x
    for t in range(1, rounds + 1):
        way, y = 0 * x, x
        for j in range(tau):
            way = way + eta * grads(y, t, j)
            y = prox(x - way - (j + 1) * eta * d, (j + 1) * eta)
        walks = zip(way / S, grads(x, t, 0), d, x, y_prox, strict=True)
        G = [ref.guarded(*rows, S, 1 / tau, prox) if guard else rows[0] for rows in walks]
        m = (1 - a) * m + a * np.stack(G)
        z = x - S * (m + d)
        q = np.stack([compress(r) for r in z - zh])
        zh, s = zh + q, s + W @ q
        e = gamma * (zh - s)
        d, new = d + e / S, z - e
        y_prox, v = new + theta * (new - v), new
        x = prox(y_prox, S)
        yield x, d, zh, v


@every_graph
@pytest.mark.parametrize(("tau", "theta", "a", "batch"), [(1, 0.0, 1.0, None), (3, 0.4, 0.6, None), (3, 0.2, 1.0, 5)])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("guard", [False, True])
def test_is_its_recursion(guard, compressed, tau, theta, a, batch, graph):
    p = toy.problem(batch=batch)
    C, compress = (TopK(k=8), ref.top_k(8)) if compressed else (DENSE, ref.identity)
    ours = states(p, PledgePeers(1.0, tau, 0.5, theta, a=a, guard=guard, compressor=C), 20, graph)
    theirs = in_numpy(p, dense(graph.W(0)), 1.0, tau, 0.5, theta, a, guard, compress, 20)
    for state, expected in zip(ours, theirs, strict=True):
        for mine, other in zip((state.x, state.d, state.zh, state.v), expected, strict=True):
            assert toy.gap(mine, other) < 1e-12


# ---- what it keeps ---------------------------------------------------------------------------------------------------


@every_graph
@pytest.mark.parametrize("C", [DENSE, QUANTISER, TopK(k=8)], ids=repr)
@pytest.mark.parametrize("batch", [None, 3])
def test_T05h_corrections_add_up_to_zero_and_neighbours_know_what_is_public(C, batch, graph):
    p, W = toy.problem(batch=batch, sizes=toy.RAGGED, weighting="size"), dense(graph.W(0))
    for s in states(p, PledgePeers(0.8, 3, 0.5, compressor=C), 40, graph):
        assert np.abs(s.d.sum(0)).max() < 1e-13
        assert toy.gap(s.s, W @ s.zh) < 1e-13
    assert np.abs(s.d).max() > 1e-2


# ---- what it reduces to ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(("tau", "theta", "a", "beta"), [(1, 0.0, 1.0, 0.0), (4, 0.5, 1.0, 0.0), (3, 0.3, 0.4, 0.6)])
def test_T05i_on_the_complete_graph_it_is_the_server_form(tau, theta, a, beta, batch):
    """gamma = 1, no compressors; from x0 = 0, where both corrections begin at 0 whatever a is."""
    p = toy.problem(batch=batch, x0=(0.0,) * D)
    with_server = Pledge(0.8, tau, theta, False, beta, a, compressor_up=DENSE, compressor_down=DENSE)
    run = toy.begin(p, with_server)
    for t, s in enumerate(states(p, PledgePeers(0.8, tau, 1.0, theta, beta, a, compressor=DENSE), 30, Complete(N)), 1):
        run.round(t)
        assert toy.gap(s.v, np.tile(run.state.server.zt.numpy(), (N, 1))) < 1e-13
        assert toy.gap(s.m, run.state.clients.v.numpy()) < 1e-13
        mean = s.m.mean(0)
        assert toy.gap(s.d, mean - s.m) < 1e-13


@pytest.mark.parametrize("graph", [Ring(N), StarGraph(N), Complete(N)], ids=lambda g: type(g).__name__)
def test_T05j_smooth_dense_with_one_local_step_it_is_exact_diffusion(graph):
    p = toy.problem(h=Zero())
    ours = (s.x for s in states(p, PledgePeers(2.0, 1, 0.5, 0.0, compressor=DENSE), 40, graph))
    toy.assert_same(ours, toy.rows_of(p, ExactDiffusion(2.0), 40, graph))


@pytest.mark.parametrize("graph", [Ring(N), StarGraph(N), Complete(N)], ids=lambda g: type(g).__name__)
def test_T05j_and_nids(graph):
    """x'' = (I + W)/2 (2 x' - x - S (grad f(x') - grad f(x))), with its own gossip step 1/2."""
    p, S = toy.problem(h=Zero()), 2.0
    A, grads = (np.eye(N) + dense(graph.W(0))) / 2, toy.gradients(p)
    x = [s.x for s in states(p, PledgePeers(S, 1, 0.5, 0.0, compressor=DENSE), 40, graph)]
    for one, two, three in zip(x, x[1:], x[2:], strict=False):
        assert toy.gap(three, A @ (2 * two - one - S * (grads(two, 1) - grads(one, 1)))) < 1e-12


@pytest.mark.parametrize("gamma", [0.5, 0.3])
def test_T05k_dense_with_one_local_step_it_is_prox_ed(gamma):
    """v' = A (v + psi' - psi), x' = prox(v'), psi = x - S grad f(x), A = I - gamma (I - W): its two-step form."""
    p, graph, S = toy.problem(x0=(0.0,) * D), Ring(N), 2.0
    A = np.eye(N) - gamma * (np.eye(N) - dense(graph.W(0)))
    grads, prox = toy.gradients(p), ref.prox_l1(toy.LAMBDA)
    x = v = np.zeros((N, D))
    psi = None
    for t, s in enumerate(states(p, PledgePeers(S, 1, gamma, 0.0, compressor=DENSE), 40, graph), 1):
        now = x - S * grads(x, t)
        v, psi = A @ (now if psi is None else v + now - psi), now
        x = prox(v, S)
        assert toy.gap(s.x, x) < 1e-12


@pytest.mark.parametrize("tau", [2, 5])
def test_T05l_smooth_dense_it_is_led(tau):
    """Local exact diffusion: tau steps y <- y - eta grad f_i(y) - eta d, then x = A y and d grows by (y - x)/S."""
    p, graph, eta, gamma = toy.problem(h=Zero()), Ring(N), 0.8, 0.5
    A = np.eye(N) - gamma * (np.eye(N) - dense(graph.W(0)))
    grads = toy.gradients(p)
    x, d = np.tile(toy.start(p), (N, 1)), np.zeros((N, D))
    for t, s in enumerate(states(p, PledgePeers(eta, tau, gamma, 0.0, compressor=DENSE), 30, graph), 1):
        y = x
        for j in range(tau):
            y = y - eta * (grads(y, t, j) + d)
        x = A @ y
        d = d + (y - x) / (eta * tau)
        assert toy.gap(s.x, x) < 1e-12


# ---- where it stays and ends -----------------------------------------------------------------------------------------


@every_graph
@pytest.mark.parametrize("C", [DENSE, QUANTISER], ids=repr)
def test_T05m_solutions_are_fixed_points(C, graph):
    p, algorithm = toy.problem(), PledgePeers(0.7, 4, 0.5, 0.4, 0.5, 0.6, compressor=C)
    x, grad = toy.solution(p), toy.gradient(p)
    own = toy.rows(*[grad(i, x) for i in range(N)])
    rows, mean = toy.rows(*[x] * N), own.mean(0)
    z = rows - algorithm.S * mean
    state = start = State(rows, mean - own, own, z, z, z, (z - rows) / algorithm.S)
    W = torch.tensor(dense(graph.W(0)))
    for t in range(1, 9):
        f = Oracle(p.f.local(t, range(N)), Work())
        mix = lambda message: W @ (message.dense if hasattr(message, "dense") else message)
        state = algorithm.step(algorithm.before_mix(state, f, p.h), f, p.h, mix)
        for now, then in zip(state, start, strict=True):
            assert toy.gap(now, then) < 2e-14


@every_graph
@pytest.mark.parametrize("q2", [0.1, LARGEST_Q2])
def test_reaches_the_solution_with_one_setting(q2, graph):
    p = toy.problem()
    algorithm = PledgePeers(1 / p.f.smoothness().L, compressor=ErrorBoundedQuantiser(q2))
    assert toy.reaches(p, algorithm, 1e-10, 600, graph)


@pytest.mark.parametrize(("tau", "q2"), [(1, LARGEST_Q2), (3, LARGEST_Q2), (3, 0.2), (3, 0.02)])
def test_reaches_the_solution_with_finer_and_coarser_messages(tau, q2):
    p, C = toy.problem(), ErrorBoundedQuantiser(q2)
    assert toy.reaches(p, PledgePeers(1 / p.f.smoothness().L, tau, compressor=C), 1e-10, 600, Ring(N))


@every_graph
def test_its_rule_reaches_the_solution(graph):
    p = toy.problem()
    algorithm = PledgePeers.theory(toy.constants(p, 100, graph))
    check_combination(p, algorithm, graph, Full())
    assert toy.reaches(p, algorithm, 1e-10, 600, graph)


def test_the_modal_radius_is_the_rate_of_a_quadratic():
    """All clients with one Hessian, but minima of their own: the error falls by the radius a round, no faster."""
    from proxfed import Federated, Linear, Squared

    rng = np.random.default_rng(0)
    A = rng.normal(size=(12, 4)) * [0.3, 0.6, 1.0, 1.5]
    p = Linear(Federated.from_clients([(A, rng.normal(size=12)) for _ in range(6)]), Squared(), l2=0.05) + Zero()
    curvatures = np.linalg.eigvalsh(A.T @ A / 12) + 0.05
    graph = Ring(6)
    algorithm = PledgePeers(0.8 / curvatures.max(), 2, 0.6, 0.3, compressor=DENSE)
    radius = modal_radius(algorithm.S, 2, 0.3, 0.6, curvatures, 1 - np.linalg.eigvalsh(dense(graph.W(0)))[:-1])
    x = p.solve(1e-14).numpy()
    errors = [np.linalg.norm(s.x - x) for s in states(p, algorithm, 160, graph)]
    measured = (errors[149] / errors[69]) ** (1 / 80)
    assert measured == pytest.approx(radius, abs=0.004)


def test_finds_a_stationary_point_of_a_weakly_convex_problem():
    p = toy.problem(h=MCP(0.02, 20.0))
    x = toy.final(p, PledgePeers(1.5, 3), 600, Ring(N))
    residual = x - ref.prox_mcp(0.02, 20.0)(x - toy.mean_gradient(p)(x), 1.0)
    assert np.linalg.norm(residual) < 1e-10


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [("eta", 0.0), ("tau", 0), ("gamma", 0.0), ("gamma", 1.2), ("theta", 1.0), ("a", 0.0)]
)
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        PledgePeers(**({"eta": 1.0} | {field: value}))


def test_a_gossip_step_that_is_too_long_is_refused_and_that_is_why():
    p, graph = toy.problem(), Grid(N, rows=1)
    assert np.linalg.eigvalsh(dense(graph.W(0)))[0] < -0.2
    too_long = PledgePeers(1 / p.f.smoothness().L, 3, gamma=1.0, theta=0.5, compressor=DENSE)
    with pytest.raises(InputError, match="PledgePeers with these settings needs eigenvalues of W above -1e-09, but"):
        check_combination(p, too_long, graph, Full())
    check_combination(p, replace(too_long, gamma=0.7), graph, Full())
    check_combination(p, too_long, Complete(N), Full())
    curvatures, others = np.geomspace(0.01, 1, 20), np.array([0.1, 1.5])  # a W with the eigenvalue -1/2
    for tau, theta in ((1, 0.0), (3, 0.5)):
        long, fits = (modal_radius(tau, tau, theta, gamma, curvatures, others) for gamma in (1.0, 1 / 1.5))
        assert fits < 1 < long


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (OnePeerExponentialGraph(N), "needs the same graph in every round"),
        (ExponentialGraph(N), "W must be symmetric"),
    ],
)
def test_graphs_that_lose_what_it_keeps_are_refused(graph, says):
    with pytest.raises(InputError, match=says):
        check_combination(toy.problem(), PledgePeers(1.0), graph, Full())


def test_coarse_messages_with_extrapolation_are_refused():
    p, C = toy.problem(), ErrorBoundedQuantiser(0.4)
    with pytest.raises(InputError, match=r"PledgePeers with these settings needs a compressor with q\^2 <= 0.25"):
        check_combination(p, PledgePeers(1.0, compressor=C), Ring(N), Full())
    check_combination(p, PledgePeers(1.0, theta=0.0, compressor=C), Ring(N), Full())
