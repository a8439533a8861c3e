"""The decentralised methods: where they end, and what they send."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed.algorithms import (
    DPSGD,
    DSGT,
    DSMT,
    ChocoSGD,
    DFedAvgM,
    DFedSAM,
    ExactDiffusion,
    Extra,
    PGExtra,
    ProxGT,
)
from proxfed.compressors import QSGD, RandK, ScaledSign, TopK
from proxfed.engine.messages import Traffic
from proxfed.regularisers import L1, Zero
from proxfed.topologies import ErdosRenyi, Ring, StarGraph, dense

from support import toy_problems as toy

N, D = toy.N, toy.D
L = toy.problem().f.smoothness().L


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
    run = toy.begin(p, algorithm, Ring(N))
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
    clients = [p.f.data.client(i) for i in range(p.f.n)]
    H = np.stack([A.T @ A / len(A) + p.f.l2 * np.eye(p.f.d) for A, _ in clients])
    return H, np.stack([A.T @ b / len(A) for A, b in clients])


def gradient_descent_over(p, W, eta, variant):
    """The fixed point of D-PSGD on quadratics: (I - W) X + eta M grad f(X) = 0 with M = I (cta) or W (atc)."""
    H, b = quadratics(p)
    M = np.eye(p.f.n) if variant == "cta" else W
    blocks = np.zeros((p.f.n * p.f.d, p.f.n * p.f.d))
    for i in range(p.f.n):
        blocks[i * p.f.d : (i + 1) * p.f.d, i * p.f.d : (i + 1) * p.f.d] = H[i]
    whole = np.kron(np.eye(p.f.n) - W, np.eye(p.f.d)) + eta * np.kron(M, np.eye(p.f.d)) @ blocks
    return np.linalg.solve(whole, eta * (M @ b).ravel()).reshape(p.f.n, p.f.d)


@pytest.mark.parametrize("variant", ["cta", "atc"])
def test_the_bias_of_dpsgd_is_proportional_to_the_step(variant):
    """It ends where (I - W) X + eta M grad f(X) = 0, which is x* + eta z + O(eta^2) with a z known in advance."""
    p, ring = toy.problem("least_squares", h=Zero()), Ring(N)
    L, W = p.f.smoothness().L, dense(ring.W(0))
    H, b = quadratics(p)
    solution = np.linalg.solve(H.mean(0), b.mean(0))
    apart = -np.linalg.pinv(np.eye(N) - W) @ (np.eye(N) if variant == "cta" else W) @ (H @ solution - b)
    z = -np.linalg.solve(H.mean(0), np.einsum("nij,nj->i", H, apart) / N)
    off = []
    for eta in (0.4 / L, 0.2 / L, 0.1 / L):
        X = gradient_descent_over(p, W, eta, variant)
        stays = toy.rows_of(p, DPSGD(eta, variant), 1, ring, lambda run, X=X: run.state._replace(x=torch.tensor(X)))
        assert toy.gap(next(stays), X) <= 1e-13
        off.append(np.linalg.norm((X.mean(0) - solution) / eta - z) / np.linalg.norm(z))
    assert off[0] > 1.7 * off[1] > 1.7**2 * off[2]
    assert off[2] < 0.15
    assert np.linalg.norm(z) * 0.4 / L > 0.02 * np.linalg.norm(solution)
    last = list(toy.rows_of(p, DPSGD(0.4 / L, variant), 1200, ring))[-1]
    assert toy.gap(last, gradient_descent_over(p, W, 0.4 / L, variant)) <= 1e-10


@pytest.mark.parametrize(("variant", "compressor"), [("atc", TopK(k=3)), ("cta", TopK(k=3)), ("atc", ScaledSign())])
def test_choco_ends_where_dpsgd_with_its_gossip_step_does(variant, compressor):
    """The public copies catch up with the models, whatever the compressor: what is left is I - gamma (I - W)."""
    p = toy.problem("least_squares", h=Zero())
    eta, gamma = 0.5 / p.f.smoothness().L, 0.4
    W = (1 - gamma) * np.eye(N) + gamma * dense(Ring(N).W(0))
    run = toy.begin(p, ChocoSGD(eta, gamma, compressor, variant=variant), Ring(N))
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
    run = toy.begin(toy.problem(h=Zero()), algorithm, StarGraph(N))
    assert run.network.traffic == Traffic()
    for t in (1, 2, 3):
        run.round(t)
    edge = 3 * vectors * 8 * (8 * D)
    assert run.network.traffic == Traffic(edge=edge, best=edge)


@pytest.mark.parametrize("compressor", [TopK(k=3), RandK(k=3), ScaledSign(), QSGD(4, contractive=True)])
def test_compressed_gossip_costs_what_is_sent(compressor):
    """Over every directed edge goes the sender's own message: on any graph as the papers count, on a ring encoded."""
    messages = []

    def spy(v, key):
        messages.append(compressor(v, key))
        return messages[-1]

    for topology, per_client in ((Ring(N), 2), (StarGraph(N), 8 / N), (ErdosRenyi(N, p=0.6, seed=1), None)):
        messages.clear()
        algorithm = ChocoSGD(0.5, 0.3, compressor)
        object.__setattr__(algorithm, "compressor", spy)
        run = toy.begin(toy.problem(h=Zero()), algorithm, topology)
        for t in (1, 2, 3):
            run.round(t)
        W = topology.W(0)
        edges = np.count_nonzero(W.row != W.col)
        assert per_client in (None, edges / N)
        assert run.network.traffic.edge == edges * sum(m.nbytes // N for m in messages)
        if isinstance(topology, Ring):
            encoded = [len(row) for m in messages for row in compressor.encode(m)]
            assert run.network.traffic.best == 2 * sum(encoded)
