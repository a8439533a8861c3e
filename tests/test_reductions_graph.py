"""Decentralised and centralised baselines: the papers' recursions, what they reduce to, and where they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, pairwise

import numpy as np
import pytest
import torch

from proxfed import Depositum, DFedADMM, FedAvg, FedComposite, FedNAG
from proxfed.algorithms import (
    DPSGD,
    DSGT,
    DSMT,
    FISTA,
    ChocoSGD,
    DFedAvg,
    DFedAvgM,
    DFedSAM,
    ExactDiffusion,
    Extra,
    GradientDescent,
    HeavyBall,
    Nesterov,
    PGExtra,
    ProxGT,
    ProximalGradient,
)
from proxfed.checks import check_combination
from proxfed.compressors import QSGD, RandK, ScaledSign, TopK
from proxfed.errors import InputError
from proxfed.participation import Full, Uniform
from proxfed.regularisers import L1, MCP, Box, Zero
from proxfed.schedules import InverseRoot
from proxfed.solve import fista
from proxfed.topologies import Complete, ErdosRenyi, FromMatrix, Lazy, Ring, Star, dense

import references as ref
import toy

N, D = toy.N, toy.D
FIXED = ("ring", "star", "complete")
L = toy.problem().smoothness().L


def rows_of(p, algorithm, rounds: int, topology, begin=None) -> Iterator[np.ndarray]:
    """The clients' iterates after rounds 1, 2, ...; `begin` changes the state before the first of them."""
    run = toy.going(p, algorithm, topology)
    if begin is not None:
        run.state = begin(run)
    for t in range(1, rounds + 1):
        run.round(t)
        yield run.state.x.numpy()


def assert_same(one: Iterator[np.ndarray], other: Iterator[np.ndarray], least_move: float = 1e-3) -> None:
    """Equal to rounding error in every round, and not because nothing moves."""
    one, other = list(one), list(other)
    for a, b in zip(one, other, strict=True):
        assert toy.gap(a, b) <= 1e-12
    assert np.abs(one[-1] - one[0]).max() >= least_move


def gradients(p) -> Callable[..., np.ndarray]:
    """G(X, t, k): row i is client i's gradient at row i of X."""
    grad = toy.gradient(p)
    return lambda X, t, k=0: np.stack([grad(i, X[i], t, k) for i in range(p.n)])


# ---- the recursions, as their papers have them -----------------------------------------------------------------------


def paper_dpsgd(G, W, X, eta, variant):
    for t in count(1):
        X = W(t) @ (X - eta * G(X, t)) if variant == "atc" else W(t) @ X - eta * G(X, t)
        yield X


def paper_dfedavgm(G, W, X, eta, K, theta):
    """y_{k+1} = y_k - eta g + theta (y_k - y_{k-1}) with y_{-1} = y_0 = x."""
    for t in count(1):
        before = y = X
        for k in range(K):
            before, y = y, y - eta * G(y, t, k) + theta * (y - before)
        X = W(t) @ y
        yield X


def paper_dfedsam(G, W, X, eta, K, rho, Q):
    for t in count(1):
        y = X
        for k in range(K):
            g = G(y, t, k)
            y = y - eta * G(y + rho * g / np.linalg.norm(g, axis=1, keepdims=True), t, k)
        X = np.linalg.matrix_power(W(t), Q) @ y
        yield X


def paper_dsgt(G, W, X, alpha, variant):
    g = G(X, 0)
    y = g
    for t in count(1):
        X = W(t) @ X - alpha * y if variant == "cta" else W(t) @ (X - alpha * y)
        new = G(X, t)
        y = W(t) @ (y + new - g) if variant == "atc" else W(t) @ y + new - g
        g = new
        yield X


def paper_proxgt(G, W, prox, X, alpha, Q):
    g, y = np.zeros_like(X), np.zeros_like(X)
    for t in count(1):
        WQ = np.linalg.matrix_power(W(t), Q)
        new = G(X, t)
        y = WQ @ (y + new - g)
        X = WQ @ prox(X - alpha * y, alpha)
        g = new
        yield X


def paper_dsmt(G, W, X, alpha, beta, eta_w):
    """Momentum tracking with the stacked vectors (x, x') and (y, y') under one augmented matrix."""
    n = len(X)
    z = (1 - beta) * G(X, 0)
    xx, yy = np.vstack([X, X]), np.vstack([z, z])
    for t in count(1):
        A = np.block([[(1 + eta_w) * W(t), -eta_w * np.eye(n)], [np.eye(n), np.zeros((n, n))]])
        xx = A @ (xx - alpha * np.vstack([yy[:n], yy[:n]]))
        new = beta * z + (1 - beta) * G(xx[:n], t)
        yy = A @ (yy + np.vstack([new - z, new - z]))
        z = new
        yield xx[:n]


def paper_exact_diffusion(G, W, X, eta, lazy):
    """x'' = W'(2 x' - x - eta (grad f(x') - grad f(x)))."""
    n = len(X)
    A = lambda t: (np.eye(n) + W(t)) / 2 if lazy else W(t)
    before, X = X, A(1) @ (X - eta * G(X, 1))
    yield X
    for t in count(2):
        before, X = X, A(t) @ (2 * X - before - eta * (G(X, t) - G(before, t - 1)))
        yield X


def paper_pg_extra(G, W, prox, X, alpha):
    """z'' = W x' + z' - (I + W)/2 x - alpha (grad f(x') - grad f(x)),  x'' = prox(z''); EXTRA with no prox."""
    W, n = W(1), len(X)
    before, z = X, W @ X - alpha * G(X, 1)
    X = prox(z, alpha)
    yield X
    for t in count(2):
        z = W @ X + z - (np.eye(n) + W) / 2 @ before - alpha * (G(X, t) - G(before, t - 1))
        before, X = X, prox(z, alpha)
        yield X


def paper_choco(G, W, X, eta, gamma, compress, variant):
    """Every client holds a copy of each neighbour's public model, and updates it by what that neighbour sends."""
    W, n = W(1), len(X)
    neighbours = [np.flatnonzero(W[i]) for i in range(n)]
    copies = [{j: X[j].copy() for j in (*neighbours[i], i)} for i in range(n)]
    gossip = lambda i: gamma * sum(W[i, j] * (copies[i][j] - copies[i][i]) for j in neighbours[i])
    for t in count(1):
        X = X - eta * G(X, t)
        if variant == "cta":
            X = np.stack([X[i] + gossip(i) for i in range(n)])
        sent = [compress(X[i] - copies[i][i]) for i in range(n)]
        for i in range(n):
            for j in copies[i]:
                copies[i][j] = copies[i][j] + sent[j]
        if variant == "atc":
            X = np.stack([X[i] + gossip(i) for i in range(n)])
        yield X


RECURSIONS = {
    "dpsgd cta": (DPSGD(0.5), lambda G, W, h, X: paper_dpsgd(G, W, X, 0.5, "cta")),
    "dpsgd atc": (DPSGD(0.5, "atc"), lambda G, W, h, X: paper_dpsgd(G, W, X, 0.5, "atc")),
    "dfedavg": (DFedAvg(0.3, 3), lambda G, W, h, X: paper_dfedavgm(G, W, X, 0.3, 3, 0)),
    "dfedavgm": (DFedAvgM(0.3, 4, 0.7), lambda G, W, h, X: paper_dfedavgm(G, W, X, 0.3, 4, 0.7)),
    "dfedsam": (DFedSAM(0.3, 3, 0.2), lambda G, W, h, X: paper_dfedsam(G, W, X, 0.3, 3, 0.2, 1)),
    "dfedsam-mgs": (DFedSAM(0.3, 2, 0.2, 4), lambda G, W, h, X: paper_dfedsam(G, W, X, 0.3, 2, 0.2, 4)),
    "dsgt atc": (DSGT(0.8), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "atc")),
    "dsgt semi": (DSGT(0.8, "semi"), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "semi")),
    "dsgt cta": (DSGT(0.8, "cta"), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "cta")),
    "proxgt": (ProxGT(0.8), lambda G, W, h, X: paper_proxgt(G, W, h, X, 0.8, 1)),
    "proxgt Q=3": (ProxGT(0.8, 3), lambda G, W, h, X: paper_proxgt(G, W, h, X, 0.8, 3)),
    "dsmt": (DSMT(0.8, 0.6), lambda G, W, h, X: paper_dsmt(G, W, X, 0.8, 0.6, 0)),
    "dsmt lca": (DSMT(0.8, 0.6, 0.3), lambda G, W, h, X: paper_dsmt(G, W, X, 0.8, 0.6, 0.3)),
    "exact diffusion": (ExactDiffusion(0.8), lambda G, W, h, X: paper_exact_diffusion(G, W, X, 0.8, True)),
    "d2": (ExactDiffusion(0.8, lazy=False), lambda G, W, h, X: paper_exact_diffusion(G, W, X, 0.8, False)),
    "extra": (Extra(0.8), lambda G, W, h, X: paper_pg_extra(G, W, ref.prox_zero, X, 0.8)),
    "pg-extra": (PGExtra(0.8), lambda G, W, h, X: paper_pg_extra(G, W, h, X, 0.8)),
    "choco atc": (
        ChocoSGD(0.5, 0.4, TopK(k=3)),
        lambda G, W, h, X: paper_choco(G, W, X, 0.5, 0.4, ref.top_k(3), "atc"),
    ),
    "choco cta": (
        ChocoSGD(0.5, 0.4, ScaledSign(), variant="cta"),
        lambda G, W, h, X: paper_choco(G, W, X, 0.5, 0.4, ref.scaled_sign, "cta"),
    ),
}


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize("name", RECURSIONS)
def test_is_the_recursion_of_the_paper(name, graph):
    algorithm, paper = RECURSIONS[name]
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero(), batch=6)
    X = np.tile(toy.start(p), (N, 1))
    expected = paper(gradients(p), ref.mixing(graph, N), ref.prox_l1(toy.LAMBDA), X)
    found = rows_of(p, algorithm, 15, toy.GRAPHS[graph](N))
    for t, (a, b) in enumerate(zip(found, expected, strict=False), 1):
        assert toy.gap(a, b) <= 1e-12, t


CHANGING = ("dpsgd cta", "dpsgd atc", "dfedavgm", "dfedsam-mgs", "dsgt atc", "dsgt semi", "dsgt cta", "proxgt", "dsmt")


@pytest.mark.parametrize("name", CHANGING)
def test_is_the_recursion_of_the_paper_on_a_changing_graph(name):
    algorithm, paper = RECURSIONS[name]
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero())
    X = np.tile(toy.start(p), (N, 1))
    expected = paper(gradients(p), ref.mixing("one_peer", N), ref.prox_l1(toy.LAMBDA), X)
    for a, b in zip(rows_of(p, algorithm, 10, toy.GRAPHS["one_peer"](N)), expected, strict=False):
        assert toy.gap(a, b) <= 1e-12


# ---- reductions ------------------------------------------------------------------------------------------------------

ETA = InverseRoot(0.7)
REDUCTIONS = {
    "DFedADMM(K=1, eta_l=lam) = D-PSGD atc": (DFedADMM(0.5, 1, lam=0.5), DPSGD(0.5, "atc")),
    "DFedSAM(rho=0) = DFedAvg": (DFedSAM(ETA, 3, 0.0), DFedAvg(ETA, 3)),
    "DFedAvg(K=1) = D-PSGD atc": (DFedAvg(ETA, 1), DPSGD(ETA, "atc")),
    "DFedAvgM(theta=0) = DFedAvg": (DFedAvgM(ETA, 3, 0.0), DFedAvg(ETA, 3)),
    "DFedAvgM(K=1) forgets its momentum: D-PSGD atc": (DFedAvgM(ETA, 1, 0.9), DPSGD(ETA, "atc")),
    "DEPOSITUM(gamma=0, beta=1, T0=1, h=0) = DSGT atc": (Depositum(0.7, 1.0, 0.0, 1), DSGT(0.7)),
    "DSMT(beta=0) = DSGT atc": (DSMT(ETA, 0.0), DSGT(ETA)),
    "PG-EXTRA(h=0) = EXTRA": (PGExtra(0.7), Extra(0.7)),
    "CHOCO(identity, gamma=1) = D-PSGD atc": (ChocoSGD(ETA, 1.0), DPSGD(ETA, "atc")),
    "CHOCO(identity, gamma=1, cta) = D-PSGD cta": (ChocoSGD(ETA, 1.0, variant="cta"), DPSGD(ETA)),
    "CHOCO(identity, gamma=1, K) = DFedAvg": (ChocoSGD(ETA, 1.0, K=4), DFedAvg(ETA, 4)),
}


@pytest.mark.parametrize("graph", FIXED)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduces_to(name, graph):
    special, simpler = REDUCTIONS[name]
    p = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size", batch=5)
    topology = toy.GRAPHS[graph](N)
    assert_same(rows_of(p, special, 20, topology), rows_of(p, simpler, 20, topology))


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_proxgt_without_h_is_dsgt_from_a_mixed_first_tracker(graph):
    """They differ in the start alone: DSGT begins with y = grad f(x0), ProxGT mixes that before it is used."""
    p, topology = toy.problem(h=Zero()), toy.GRAPHS[graph](N)

    def mixed(run):
        return run.state._replace(y=run.network.mix(run.state.y, 0))

    assert_same(rows_of(p, ProxGT(0.7), 20, topology), rows_of(p, DSGT(0.7), 20, topology, mixed))


def test_mixing_more_often_is_a_better_graph():
    """Q gossip steps over W are one over W^Q."""
    p, ring = toy.problem(), Ring(N)
    better = FromMatrix(np.linalg.matrix_power(dense(ring.W(0)), 3).tolist())
    assert_same(rows_of(p, ProxGT(0.7, 3), 15, ring), rows_of(p, ProxGT(0.7), 15, better))
    p = toy.problem(h=Zero())
    assert_same(rows_of(p, DFedSAM(0.3, 2, 0.1, 3), 15, ring), rows_of(p, DFedSAM(0.3, 2, 0.1), 15, better))


def test_d2_on_lazy_weights_is_exact_diffusion():
    p, ring = toy.problem(h=Zero()), Ring(N)
    assert_same(rows_of(p, ExactDiffusion(0.7), 20, ring), rows_of(p, ExactDiffusion(0.7, lazy=False), 20, Lazy(ring)))


# ---- on the complete graph: the centralised twin ---------------------------------------------------------------------

TWINS = {
    "D-PSGD atc": (DPSGD(0.7, "atc"), GradientDescent(0.7)),
    "DFedAvg": (DFedAvg(0.7, 1), GradientDescent(0.7)),
    "DFedSAM": (DFedSAM(0.7, 1, 0.0, 2), GradientDescent(0.7)),
    "DFedADMM": (DFedADMM(0.7, 1, lam=0.7), GradientDescent(0.7)),
    "DSGT atc": (DSGT(0.7), GradientDescent(0.7)),
    "D2": (ExactDiffusion(0.7, lazy=False), GradientDescent(0.7)),
    "CHOCO": (ChocoSGD(0.7, 1.0), GradientDescent(0.7)),
    "DSMT": (DSMT(0.7, 0.6), HeavyBall(0.7 * (1 - 0.6), 0.6)),
    "DEPOSITUM polyak": (Depositum(0.7, 1.0, 0.6), HeavyBall(0.7 * (1 - 0.6), 0.6)),
    "DEPOSITUM nesterov": (Depositum(0.7, 1.0, 0.6, option="nesterov"), Nesterov(0.7 * (1 - 0.6), 0.6)),
    "ProxGT": (ProxGT(0.7, 2), ProximalGradient(0.7)),
}


@pytest.mark.parametrize("name", TWINS)
def test_centralised_twin(name):
    """Clients of different sizes: on the graph their weights scale the losses, at the server they weigh the mean."""
    algorithm, twin = TWINS[name]
    p = toy.problem(h=L1(toy.LAMBDA) if twin.needs.composite else Zero(), sizes=toy.RAGGED, weighting="size")
    central = toy.going(p, twin)
    for t, X in enumerate(rows_of(p, algorithm, 30, Complete(N)), 1):
        central.round(t)
        assert toy.gap(X, np.tile(central.state.server.x.numpy(), (N, 1))) <= 1e-12, t


# ---- what is kept ----------------------------------------------------------------------------------------------------

MEANS = [
    DPSGD(0.7),
    DPSGD(0.7, "atc"),
    Extra(0.7),
    ExactDiffusion(0.7),
    ExactDiffusion(0.7, lazy=False),
    ChocoSGD(0.7, 0.3, TopK(k=2)),
    ChocoSGD(0.7, 0.3, QSGD(4, contractive=True), variant="cta"),
]


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize("algorithm", MEANS, ids=lambda a: f"{type(a).__name__}-{getattr(a, 'variant', '')}")
def test_the_mean_moves_by_the_mean_gradient(algorithm, graph):
    """mean(x) <- mean(x) - 0.7 mean(grad f_i(x_i)), whatever the graph, the correction or the compressor does."""
    p = toy.problem(h=Zero(), batch=6)
    G = gradients(p)
    states = [np.tile(toy.start(p), (N, 1)), *rows_of(p, algorithm, 20, toy.GRAPHS[graph](N))]
    for t, (X, new) in enumerate(pairwise(states), 1):
        assert toy.gap(new.mean(0), X.mean(0) - 0.7 * G(X, t).mean(0)) <= 1e-13


@pytest.mark.parametrize("graph", ["ring", "star", "one_peer"])
@pytest.mark.parametrize(
    "algorithm",
    [DSGT(0.7), DSGT(0.7, "semi"), DSGT(0.4, "cta"), ProxGT(0.7, 2), DSMT(0.7, 0.6), DSMT(0.3, 0.6, 0.2)],
    ids=lambda a: f"{type(a).__name__}-{getattr(a, 'variant', '')}",
)
def test_tracks_the_mean(algorithm, graph):
    """mean(y) is the mean gradient, or the mean momentum, in every round."""
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero(), batch=6)
    for _, s in toy.trajectory(p, algorithm, 15, toy.GRAPHS[graph](N)):
        tracked = s.z if isinstance(algorithm, DSMT) else s.g
        assert toy.gap(s.y.mean(0), tracked.mean(0)) <= 1e-14


def test_the_model_of_a_proximal_method_is_a_prox_step_of_averages():
    """So it has the zeros of h in every round, whether or not the clients agree on them yet."""
    p, prox = toy.problem(), ref.prox_l1(toy.LAMBDA)
    G, X = gradients(p), np.tile(toy.start(p), (N, 1))
    for algorithm in (PGExtra(2.0), ProxGT(2.0)):
        run, before = toy.going(p, algorithm, Ring(N)), X
        for t in range(1, 21):
            run.round(t)
            after = run.state.x.numpy()
            at = before if isinstance(algorithm, PGExtra) else after
            expected = prox(at.mean(0) - 2.0 * G(before, t).mean(0), 2.0)
            assert toy.gap(run.model().numpy(), expected) <= 1e-12
            before = after


@pytest.mark.parametrize("variant", ["atc", "cta"])
def test_choco_knows_the_mixed_public_copies(variant):
    p, star = toy.problem(h=Zero()), Star(N)
    W = dense(star.W(0))
    for _, s in toy.trajectory(p, ChocoSGD(0.7, 0.3, TopK(k=2), variant=variant), 30, star):
        assert toy.gap(s.s, W @ s.xh) <= 1e-14


# ---- where they end --------------------------------------------------------------------------------------------------

EXACT = {
    "dsgt atc": (DSGT(1 / L), 400),
    "dsgt semi": (DSGT(0.5 / L, "semi"), 600),
    "dsgt cta": (DSGT(0.3 / L, "cta"), 800),
    "dsmt": (DSMT(1 / L, 0.5), 400),
    "exact diffusion": (ExactDiffusion(1 / L), 400),
    "d2": (ExactDiffusion(0.8 / L, lazy=False), 500),
    "extra": (Extra(0.7 / L), 700),
    "pg-extra": (PGExtra(0.7 / L), 700),
    "proxgt": (ProxGT(0.7 / L), 700),
    "proxgt Q=2": (ProxGT(1 / L, 2), 400),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_client_reaches_the_solution_on_a_ring(name):
    algorithm, rounds = EXACT[name]
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero())
    run = toy.going(p, algorithm, Ring(N))
    for t in range(1, rounds + 1):
        run.round(t)
    solution = p.solve(1e-14).numpy()
    assert max(toy.error(x, solution) for x in run.state.x.numpy()) <= 1e-9
    model = run.model().numpy()
    assert toy.error(model, solution) <= 1e-9
    assert ((model == 0) == (solution == 0)).all()


def test_dsmt_of_the_theory_is_exact_and_its_gossip_accelerated():
    """With lazy weights the augmented matrix contracts disagreement by beta = sqrt(eta_w), faster than W does."""
    p, lazy = toy.problem(h=Zero()), Ring(N, weights="lazy")
    algorithm = DSMT.theory(toy.constants(p, 1, lazy), 1 / L)
    assert toy.error(toy.final(p, algorithm, 600, lazy), p.solve(1e-14).numpy()) <= 1e-9
    slow = Ring(30, weights="lazy")
    psi = 1 - slow.spectral_gap()
    constants = toy.constants(p, 1, slow)
    a = DSMT.theory(constants, 0.1)
    augmented = np.block([[(1 + a.eta_w) * dense(slow.W(0)), -a.eta_w * np.eye(30)], [np.eye(30), np.zeros((30, 30))]])
    size = np.sort(np.abs(np.linalg.eigvals(augmented)))
    assert size[-1] == pytest.approx(1, abs=1e-9)
    assert size[-2] == pytest.approx(a.beta, abs=1e-9)
    assert np.log(a.beta) < 3 * np.log(psi)


def quadratics(p):
    """(H, b) with grad f_i(x) = H_i x - b_i."""
    clients = [p.data.client(i) for i in range(p.n)]
    H = np.stack([A.T @ A / len(A) + p.l2 * np.eye(p.d) for A, _ in clients])
    return H, np.stack([A.T @ b / len(A) for A, b in clients])


def gradient_descent_over(p, W, eta, variant):
    """The fixed point of D-PSGD on quadratics: (I - W) X + eta M grad f(X) = 0 with M = I (cta) or W (atc)."""
    H, b = quadratics(p)
    M = np.eye(p.n) if variant == "cta" else W
    blocks = np.zeros((p.n * p.d, p.n * p.d))
    for i in range(p.n):
        blocks[i * p.d : (i + 1) * p.d, i * p.d : (i + 1) * p.d] = H[i]
    whole = np.kron(np.eye(p.n) - W, np.eye(p.d)) + eta * np.kron(M, np.eye(p.d)) @ blocks
    return np.linalg.solve(whole, eta * (M @ b).ravel()).reshape(p.n, p.d)


@pytest.mark.parametrize("variant", ["cta", "atc"])
def test_the_bias_of_dpsgd_is_proportional_to_the_step(variant):
    """It ends where (I - W) X + eta M grad f(X) = 0, which is x* + eta z + O(eta^2) with a z known in advance."""
    p, ring = toy.problem("least_squares", h=Zero()), Ring(N)
    L, W = p.smoothness().L, dense(ring.W(0))
    H, b = quadratics(p)
    solution = np.linalg.solve(H.mean(0), b.mean(0))
    apart = -np.linalg.pinv(np.eye(N) - W) @ (np.eye(N) if variant == "cta" else W) @ (H @ solution - b)
    z = -np.linalg.solve(H.mean(0), np.einsum("nij,nj->i", H, apart) / N)
    off = []
    for eta in (0.4 / L, 0.2 / L, 0.1 / L):
        X = gradient_descent_over(p, W, eta, variant)
        stays = rows_of(p, DPSGD(eta, variant), 1, ring, lambda run, X=X: run.state._replace(x=torch.tensor(X)))
        assert toy.gap(next(stays), X) <= 1e-13
        off.append(np.linalg.norm((X.mean(0) - solution) / eta - z) / np.linalg.norm(z))
    assert off[0] > 1.7 * off[1] > 1.7**2 * off[2]
    assert off[2] < 0.15
    assert np.linalg.norm(z) * 0.4 / L > 0.02 * np.linalg.norm(solution)
    last = list(rows_of(p, DPSGD(0.4 / L, variant), 1200, ring))[-1]
    assert toy.gap(last, gradient_descent_over(p, W, 0.4 / L, variant)) <= 1e-10


@pytest.mark.parametrize(("variant", "compressor"), [("atc", TopK(k=3)), ("cta", TopK(k=3)), ("atc", ScaledSign())])
def test_choco_ends_where_dpsgd_with_its_gossip_step_does(variant, compressor):
    """The public copies catch up with the models, whatever the compressor: what is left is I - gamma (I - W)."""
    p = toy.problem("least_squares", h=Zero())
    eta, gamma = 0.5 / p.smoothness().L, 0.4
    W = (1 - gamma) * np.eye(N) + gamma * dense(Ring(N).W(0))
    run = toy.going(p, ChocoSGD(eta, gamma, compressor, variant=variant), Ring(N))
    for t in range(1, 901):
        run.round(t)
    assert toy.gap(run.state.x.numpy(), gradient_descent_over(p, W, eta, variant)) <= 1e-9


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "vectors"),
    [
        (DPSGD(0.1), 1),
        (DFedAvgM(0.1, 3), 1),
        (DFedSAM(0.1, 2, 0.1, 4), 4),
        (DSGT(0.1), 2),
        (ProxGT(0.1, 3), 6),
        (DSMT(0.1, 0.5, 0.2), 2),
        (ExactDiffusion(0.1), 1),
        (PGExtra(0.1), 1),
        (ChocoSGD(0.1, 0.5), 1),
    ],
    ids=lambda a: type(a).__name__,
)
def test_what_travels(algorithm, vectors):
    """On a star of 5 there are 8 directed edges; nothing travels before the first round."""
    run = toy.going(toy.problem(h=Zero()), algorithm, Star(N))
    assert run.network.traffic.numbers() == [0, 0, 0, 0]
    for t in (1, 2, 3):
        run.round(t)
    edge = 3 * vectors * 8 * (8 * D)
    assert run.network.traffic.numbers() == [0, 0, edge, edge]


@pytest.mark.parametrize("compressor", [TopK(k=3), RandK(k=3), ScaledSign(), QSGD(4, contractive=True)])
def test_compressed_gossip_costs_what_is_sent(compressor):
    """Over every directed edge goes the sender's own message: on any graph as the papers count, on a ring encoded."""
    messages = []

    def spy(v, key):
        messages.append(compressor(v, key))
        return messages[-1]

    for topology, per_client in ((Ring(N), 2), (Star(N), 8 / N), (ErdosRenyi(N, p=0.6, seed=1), None)):
        messages.clear()
        algorithm = ChocoSGD(0.5, 0.3, compressor)
        object.__setattr__(algorithm, "compressor", spy)
        run = toy.going(toy.problem(h=Zero()), algorithm, topology)
        for t in (1, 2, 3):
            run.round(t)
        W = topology.W(0)
        edges = np.count_nonzero(W.row != W.col)
        assert per_client in (None, edges / N)
        assert run.network.traffic.edge == edges * sum(m.nbytes // N for m in messages)
        if isinstance(topology, Ring):
            encoded = [len(row) for m in messages for row in compressor.encode(m)]
            assert run.network.traffic.best == 2 * sum(encoded)


# ---- centralised references ------------------------------------------------------------------------------------------


def central_points(p, algorithm, rounds: int) -> Iterator[np.ndarray]:
    run = toy.going(p, algorithm)
    for t in range(1, rounds + 1):
        run.round(t)
        yield run.model().numpy()


CENTRAL = {
    "Nesterov = FedNAG(tau=1)": (Nesterov(0.7, 0.8), FedNAG(0.7, 0.8, 1), Zero()),
    "heavy ball without momentum = gradient descent": (HeavyBall(0.7, 0.0), GradientDescent(0.7), Zero()),
    "Nesterov without momentum = gradient descent": (Nesterov(0.7, 0.0), GradientDescent(0.7), Zero()),
    "gradient descent = FedAvg(K=1)": (GradientDescent(0.7), FedAvg(0.7, 1), Zero()),
    "proximal gradient without h = gradient descent": (ProximalGradient(0.7), GradientDescent(0.7), Zero()),
    "proximal gradient = FedComposite(tau=1)": (ProximalGradient(0.7), FedComposite(0.7, 1), L1(toy.LAMBDA)),
}


@pytest.mark.parametrize("name", CENTRAL)
def test_centralised_reductions(name):
    one, other, h = CENTRAL[name]
    # FedComposite begins with a prox step of its start, which at 0 is 0
    p = toy.problem(h=h, x0=(0.0,) * D, sizes=toy.RAGGED, weighting="size", batch=5)
    assert_same(central_points(p, one, 25), central_points(p, other, 25))


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (GradientDescent(0.7), {}),
        (HeavyBall(0.7, 0.8), {"momentum": 0.8}),
        (Nesterov(0.7, 0.8), {"momentum": 0.8, "nesterov": True}),
    ],
)
def test_is_the_optimiser_of_torch_on_the_pooled_data(algorithm, settings):
    p = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size")
    gradient = toy.mean_gradient(p)
    x = torch.nn.Parameter(p.start(0))
    optimiser = torch.optim.SGD([x], lr=0.7, **settings)
    for found in central_points(p, algorithm, 30):
        x.grad = torch.tensor(gradient(x.detach().numpy()))
        optimiser.step()
        assert toy.gap(found, x.detach().numpy()) <= 1e-13


@pytest.mark.parametrize("restart", [True, False])
def test_fista_is_the_recursion_of_the_paper(restart):
    p = toy.problem()
    gradient, prox, eta = toy.mean_gradient(p), ref.prox_l1(toy.LAMBDA), 1 / p.smoothness().L_f
    x = y = toy.start(p)
    t, restarts = 1.0, 0
    for found in central_points(p, FISTA(eta, restart), 60):
        new = prox(y - eta * gradient(y), eta)
        if restart and (y - new) @ (new - x) > 0:
            t, restarts = 1.0, restarts + 1
        following = (1 + np.sqrt(1 + 4 * t**2)) / 2
        y = new + (t - 1) / following * (new - x)
        x, t = new, following
        assert toy.gap(found, x) <= 1e-12
    assert (restarts > 0) == restart


@pytest.mark.parametrize("loss", ["logistic", "least_squares", "softmax"])
def test_fista_reaches_the_solution(loss):
    p = toy.problem(loss, sizes=toy.RAGGED, weighting="size")
    assert toy.error(toy.final(p, FISTA.theory(toy.constants(p, 1)), 300), p.solve(1e-13).numpy()) <= 1e-10


def test_fista_takes_the_steps_of_the_solver():
    """The reference minimiser and the algorithm are written apart."""
    p = toy.problem()
    f, eta = p.local(0, range(p.n)), 1 / p.smoothness().L_f
    solver = fista(lambda x: p.weights @ f.full_grad(x), p.h, 1 / eta, p.start(0), 1e-12)
    last = list(central_points(p, FISTA(eta), 300))[-1]
    assert toy.error(last, solver.numpy()) <= 1e-10


@pytest.mark.parametrize("make", [GradientDescent, HeavyBall, Nesterov, ProximalGradient])
def test_steps_of_the_theory_converge(make):
    p = toy.problem(h=L1(toy.LAMBDA) if make.needs.composite else Zero())
    assert toy.error(toy.final(p, make.theory(toy.constants(p, 1)), 150), p.solve(1e-13).numpy()) <= 1e-9


def test_acceleration_accelerates():
    """On an ill-conditioned quadratic: rates 1 - O(sqrt(mu/L)) against 1 - O(mu/L)."""
    p = toy.problem("least_squares", h=Zero(), l2=1e-3)
    constants, solution = toy.constants(p, 1), p.solve(1e-14).numpy()
    methods = (make.theory(constants) for make in (GradientDescent, Nesterov, HeavyBall))
    plain, nesterov, heavy_ball = (toy.error(toy.final(p, method, 150), solution) for method in methods)
    assert nesterov < 1e-3 * plain
    assert heavy_ball < nesterov


def test_proximal_gradient_of_the_theory_respects_a_weakly_convex_h():
    p = toy.problem(h=MCP(0.02, 2.0))
    assert ProximalGradient.theory(toy.constants(p, 1)).eta == pytest.approx(1.0)


# ---- refusals --------------------------------------------------------------------------------------------------------

BAD = [
    (lambda: DPSGD(0.0), "DPSGD: eta = 0.0"),
    (lambda: DPSGD(0.1, "both"), "variant = 'both'"),
    (lambda: DFedAvg(0.1, 0), "K = 0"),
    (lambda: DFedAvgM(0.1, 1, 1.0), "theta = 1.0"),
    (lambda: DFedSAM(0.1, 1, -0.1), "rho = -0.1"),
    (lambda: DFedSAM(0.1, 1, 0.1, 0), "Q = 0"),
    (lambda: DSGT(-1.0), "alpha = -1.0"),
    (lambda: DSGT(0.1, "x"), "variant = 'x'"),
    (lambda: ProxGT(0.0), "alpha = 0.0"),
    (lambda: ProxGT(0.1, 1.5), "Q = 1.5"),
    (lambda: DSMT(0.1, 1.0), "beta = 1.0"),
    (lambda: DSMT(0.1, 0.5, 1.0), "eta_w = 1.0"),
    (lambda: ExactDiffusion(0.0), "eta = 0.0"),
    (lambda: Extra(float("nan")), "alpha = nan"),
    (lambda: PGExtra(0.0), "alpha = 0.0"),
    (lambda: ChocoSGD(0.1, 1.1), "gamma = 1.1"),
    (lambda: ChocoSGD(0.1, 0.5, variant="x"), "variant = 'x'"),
    (lambda: GradientDescent(0.0), "eta = 0.0"),
    (lambda: HeavyBall(0.1, 1.0), "HeavyBall: gamma = 1.0"),
    (lambda: Nesterov(0.1, -0.1), "Nesterov: gamma = -0.1"),
    (lambda: FISTA(-0.1), "eta = -0.1"),
]


@pytest.mark.parametrize(("make", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_refuses_bad_settings(make, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        make()


@pytest.mark.parametrize(
    ("algorithm", "h", "topology", "participation", "sentence"),
    [
        (DSGT(0.1), Box(-1, 1), Ring(N), Full(), "takes no prox step"),
        (GradientDescent(0.1), Box(-1, 1), None, Full(), "takes no prox step"),
        (PGExtra(0.1), MCP(0.1, 2.0), Ring(N), Full(), "needs a convex regulariser"),
        (FISTA(0.1), MCP(0.1, 2.0), None, Full(), "needs a convex regulariser"),
        (ProxGT(2.5), MCP(0.1, 2.0), Ring(N), Full(), "prox steps up to 2.5"),
        (ChocoSGD(0.1, 0.5, RandK(k=1, unbiased=True)), Zero(), Ring(N), Full(), "needs a contractive compressor"),
        (Nesterov(0.1, 0.5), Zero(), None, Uniform(2), "needs every client"),
        (Extra(0.1), Zero(), None, Full(), "works on a graph"),
    ],
)
def test_refuses_what_it_cannot_solve(algorithm, h, topology, participation, sentence):
    with pytest.raises(InputError, match=sentence):
        check_combination(toy.problem(h=h), algorithm, topology, participation)
