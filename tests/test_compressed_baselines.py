"""BEER, CDProxSGT, Prox-LEAD, EF21-BC, DIANA, EControl and LoCoDL: their recursions, what they keep and reduce to."""

from __future__ import annotations

import numpy as np
import pytest

from proxfed.algorithms import (
    BEER,
    DSGT,
    EF21,
    EF21BC,
    CDProxSGT,
    CompressedDownlink,
    Diana,
    EControl,
    ExactDiffusion,
    LoCoDL,
    PledgePeers,
    ProxGT,
    ProxLEAD,
)
from proxfed.algorithms.local_steps import trials
from proxfed.compressors import ErrorBoundedQuantiser, Identity, NaturalCompressor, TopK
from proxfed.regularisers import Zero
from proxfed.topologies import Ring, StarGraph, dense

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D
TOP = ref.top_k(6)


def each(compress, X):
    return np.stack([compress(x) for x in X])


def states(p, algorithm, rounds, graph):
    return (s for t, s in toy.trajectory(p, algorithm, rounds, graph) if t > 0)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("graph", [Ring(N), StarGraph(N)], ids=lambda g: type(g).__name__)
def test_beer_is_its_recursion(graph, batch):
    """In matrices, with the public copies H and G mixed anew in every round."""
    p, L = toy.problem(h=Zero(), batch=batch), dense(graph.W(0)) - np.eye(N)
    grads, X = toy.gradients(p), np.tile(toy.start(p), (N, 1))
    H, g = X, grads(X, 0)
    V, G = g, 0 * X
    for t, s in enumerate(states(p, BEER(0.8, 0.4, TopK(k=6)), 25, graph), 1):
        X = X + 0.4 * L @ H - 0.8 * V
        H = H + each(TOP, X - H)
        new = grads(X, t)
        V, g = V + 0.4 * L @ G + new - g, new
        G = G + each(TOP, V - G)
        assert toy.gap(s.x, X) < 1e-12
        assert toy.gap(s.v.mean(0), g.mean(0)) < 1e-13


def test_beer_dense_is_gradient_tracking_that_mixes_first():
    """gamma = 1: DSGT's 'cta', if neighbours know the first tracker."""
    p, graph = toy.problem(h=Zero()), Ring(N)

    def known(run):
        v = run.state.v
        return run.state._replace(vh=v, r=v.new_tensor(dense(graph.W(0))) @ v)

    ours = toy.rows_of(p, BEER(0.5, 1.0), 40, graph, known)
    toy.assert_same(ours, toy.rows_of(p, DSGT(0.5, "cta"), 40, graph))


@pytest.mark.parametrize("batch", [None, 4])
def test_cdproxsgt_dense_is_proxgt(batch):
    p, graph = toy.problem(batch=batch), Ring(N)
    toy.assert_same(
        toy.rows_of(p, CDProxSGT(1.5, 1.0, 1.0), 30, graph), toy.rows_of(p, ProxGT(1.5), 30, graph), least_move=1e-6
    )


def test_cdproxsgt_is_its_recursion():
    p, graph = toy.problem(), Ring(N)
    grads, prox, W = toy.gradients(p), ref.prox_l1(toy.LAMBDA), dense(graph.W(0))
    X = Xh = np.tile(toy.start(p), (N, 1))
    Y = Yh = g = 0 * X
    for t, s in enumerate(states(p, CDProxSGT(1.5, 0.4, 0.6, TopK(k=6)), 25, graph), 1):
        new = grads(X, t)
        Y, g = Y + new - g, new
        Yh = Yh + each(TOP, Y - Yh)
        Y = Y + 0.6 * (W @ Yh - Yh)
        X = prox(X - 1.5 * Y, 1.5)
        Xh = Xh + each(TOP, X - Xh)
        X = X + 0.4 * (W @ Xh - Xh)
        assert toy.gap(s.x, X) < 1e-12
        assert toy.gap(s.y.mean(0), g.mean(0)) < 1e-13


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("h", [toy.SPARSE, Zero()], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("graph", [Ring(N), StarGraph(N)], ids=lambda g: type(g).__name__)
def test_prox_lead_is_leads_recursion_with_a_prox(graph, h, batch):
    """As LEAD ends a round, with the new d in the step; d from the sum of all that was received, nothing kept mixed."""
    p, apart = toy.problem(h=h, batch=batch), np.eye(N) - dense(graph.W(0))
    prox = ref.prox_l1(toy.LAMBDA) if h == toy.SPARSE else lambda x, step: x
    eta, gamma, alpha = 1.5, 0.5, 0.7
    grads, X = toy.gradients(p), np.tile(toy.start(p), (N, 1))
    H, received = X, 0 * X
    for t, s in enumerate(states(p, ProxLEAD(eta, gamma, alpha, TopK(k=6)), 25, graph), 1):
        g = grads(X, t)
        Z = X - eta * g - gamma / 2 * apart @ received
        Zh = H + each(TOP, Z - H)
        H = (1 - alpha) * H + alpha * Zh
        received = received + Zh
        X = prox(X - eta * g - gamma / 2 * apart @ received, eta)
        assert toy.gap(s.x, X) < 1e-12
        assert toy.gap(eta * s.d, gamma / 2 * apart @ received) < 1e-11


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("C", [Identity(), ErrorBoundedQuantiser(0.1), TopK(k=8)], ids=repr)
def test_prox_lead_is_pledge_between_peers_with_one_local_step(C, batch):
    p, graph = toy.problem(batch=batch), Ring(N)
    ours = toy.rows_of(p, PledgePeers(2.0, 1, 0.4, 0.0, compressor=C), 30, graph)
    toy.assert_same(toy.rows_of(p, ProxLEAD(2.0, 0.8, compressor=C), 30, graph), ours, least_move=1e-6)


def test_prox_lead_smooth_and_dense_is_exact_diffusion():
    p, graph = toy.problem(h=Zero()), Ring(N)
    toy.assert_same(toy.rows_of(p, ProxLEAD(2.0), 40, graph), toy.rows_of(p, ExactDiffusion(2.0), 40, graph))


def test_prox_lead_keeps_its_sums_with_random_messages():
    p, graph = toy.problem(), Ring(N)
    for s in states(p, ProxLEAD(2.0, 0.7, 0.6, NaturalCompressor()), 40, graph):
        assert np.abs(s.d.sum(0)).max() < 1e-13
        assert toy.gap(s.Hw, dense(graph.W(0)) @ s.H) < 1e-13


@pytest.mark.parametrize("batch", [None, 4])
def test_ef21_bc_with_a_dense_downlink_is_ef21(batch):
    """One round later: its first round only sees the gradients at x0."""
    p = toy.problem(h=Zero(), batch=batch)
    ours, theirs = toy.begin(p, EF21BC(2.0, TopK(k=3))), toy.begin(p, EF21(2.0, TopK(k=3)))
    for t in range(1, 31):
        ours.round(t)
        assert toy.gap(ours.state.server.x, theirs.model()) < 1e-13
        theirs.round(t)
        assert toy.gap(ours.state.clients.u, theirs.state.clients.c) < 1e-13


def test_ef21_bc_keeps_what_is_public_and_the_mean():
    p = toy.problem(h=Zero(), batch=4)
    run = toy.begin(p, EF21BC(1.0, TopK(k=3), ErrorBoundedQuantiser(0.3)))
    for t in range(1, 31):
        run.round(t)
        clients, server = toy.numpy(run.state)
        assert np.array_equal(clients.x, np.tile(server.x, (N, 1)))
        assert np.array_equal(clients.b, np.tile(server.b, (N, 1)))
        assert toy.gap(clients.u.mean(0), server.c) < 1e-14


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("downlink", [False, True])
def test_diana_is_its_recursion_and_with_a_compressed_downlink_EF21_P_with_DIANA(downlink, batch):
    """One compressed difference of gradients up; down that of the model from w, at which gradients are taken."""
    p, prox, gamma, alpha = toy.problem(batch=batch), ref.prox_l1(toy.LAMBDA), 2.0, 0.6
    grads, x = toy.gradients(p), toy.start(p)
    w, c = x, np.zeros((N, D))
    algorithm = Diana(gamma, TopK(k=6), alpha)
    run = toy.begin(p, CompressedDownlink(algorithm, TopK(k=6)) if downlink else algorithm)
    for t in range(1, 26):
        w = w + TOP(x - w) if downlink else x
        m = each(TOP, grads(np.tile(w, (N, 1)), t) - c)
        x = prox(x - gamma * (c + m).mean(0), gamma)
        c = c + alpha * m
        run.round(t)
        assert toy.gap(run.model().numpy(), x) < 1e-12


def test_diana_that_learns_at_once_is_ef21():
    p = toy.problem(batch=4)
    ours, theirs = toy.begin(p, Diana(2.0, NaturalCompressor(), 1.0)), toy.begin(p, EF21(2.0, NaturalCompressor()))
    for t in range(1, 26):
        ours.round(t)
        theirs.round(t)
        assert toy.gap(ours.model(), theirs.model()) < 1e-13


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("eta", [0.0, 0.2])
def test_econtrol_is_its_recursion_and_without_control_ef21(eta, batch):
    p, gamma = toy.problem(h=Zero(), batch=batch), 2.0
    grads, x, known, missed = toy.gradients(p), toy.start(p), np.zeros((N, D)), np.zeros((N, D))
    run, plain = toy.begin(p, EControl(gamma, TopK(k=6), eta)), toy.begin(p, EF21(gamma, TopK(k=6)))
    for t in range(1, 26):
        g = grads(np.tile(x, (N, 1)), t)
        new = known + each(TOP, eta * missed + g - known)
        missed, known = missed + g - new, new
        x = x - gamma * known.mean(0)
        run.round(t)
        plain.round(t)
        assert toy.gap(run.model().numpy(), x) < 1e-12
        assert toy.gap(run.state.clients.e.numpy(), missed) < 1e-12
        if eta == 0:
            assert toy.gap(run.model(), plain.model()) < 1e-13


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(("prob", "rho", "chi"), [(1.0, 1.0, 1.0), (0.4, 0.7, 0.8)])
def test_locodl_is_its_recursion(prob, rho, chi, batch):
    """A step at a time, as the paper has it: the coin decides after each whether all communicate."""
    p, gamma, mu, omega = toy.problem(h=Zero(), batch=batch), 1.5, 0.01, 1 - 6 / D
    grads, y = toy.gradients(p), toy.start(p)
    x, u, v = np.tile(y, (N, 1)), np.zeros((N, D)), np.zeros(D)
    dual = prob * chi / (gamma * (1 + 2 * omega))
    run = toy.begin(p, LoCoDL(gamma, prob, TopK(k=6), mu, rho, chi, seed=3))
    for t in range(1, 26):
        for k in range(trials(prob, 3, t)):
            x = x - gamma * (grads(x, t, k) - mu * x) + gamma * u
            y = y - gamma * mu * y + gamma * v
        d = each(TOP, x - y)
        db = d.sum(0) / (2 * N)
        x, y = (1 - rho) * x + rho * (y + db), y + rho * db
        u, v = u + dual * (db - d), v + dual * db
        run.round(t)
        assert toy.gap(run.model().numpy(), y) < 1e-12
        assert np.abs(u.mean(0) + v).max() < 1e-12
        clients, server = toy.numpy(run.state)
        assert np.array_equal(clients.yh, np.tile(server.yh, (N, 1)))
        assert toy.gap(clients.u + dual * server.db, u) < 1e-11
