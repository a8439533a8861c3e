"""The decentralised methods: what they become in special cases, and what they keep, to rounding error."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from proxfed import Depositum, DFedADMM
from proxfed.algorithms import (
    DPSGD,
    DSGT,
    DSMT,
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
from proxfed.compressors import QSGD, TopK
from proxfed.regularisers import L1, Zero
from proxfed.schedules import InverseRoot
from proxfed.topologies import Complete, FromMatrix, Lazy, Ring, StarGraph, dense

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D
FIXED = ("ring", "star", "complete")


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
    toy.assert_same(toy.rows_of(p, special, 20, topology), toy.rows_of(p, simpler, 20, topology))


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_proxgt_without_h_is_dsgt_from_a_mixed_first_tracker(graph):
    """They differ in the start alone: DSGT begins with y = grad f(x0), ProxGT mixes that before it is used."""
    p, topology = toy.problem(h=Zero()), toy.GRAPHS[graph](N)

    def mixed(run):
        return run.state._replace(y=run.network.mix(run.state.y, 0))

    toy.assert_same(toy.rows_of(p, ProxGT(0.7), 20, topology), toy.rows_of(p, DSGT(0.7), 20, topology, mixed))


def test_mixing_more_often_is_a_better_graph():
    """Q gossip steps over W are one over W^Q."""
    p, ring = toy.problem(), Ring(N)
    better = FromMatrix(np.linalg.matrix_power(dense(ring.W(0)), 3).tolist())
    toy.assert_same(toy.rows_of(p, ProxGT(0.7, 3), 15, ring), toy.rows_of(p, ProxGT(0.7), 15, better))
    p = toy.problem(h=Zero())
    toy.assert_same(toy.rows_of(p, DFedSAM(0.3, 2, 0.1, 3), 15, ring), toy.rows_of(p, DFedSAM(0.3, 2, 0.1), 15, better))


def test_d2_on_lazy_weights_is_exact_diffusion():
    p, ring = toy.problem(h=Zero()), Ring(N)
    toy.assert_same(
        toy.rows_of(p, ExactDiffusion(0.7), 20, ring), toy.rows_of(p, ExactDiffusion(0.7, lazy=False), 20, Lazy(ring))
    )


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
    central = toy.begin(p, twin)
    for t, X in enumerate(toy.rows_of(p, algorithm, 30, Complete(N)), 1):
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
    G = toy.gradients(p)
    states = [np.tile(toy.start(p), (N, 1)), *toy.rows_of(p, algorithm, 20, toy.GRAPHS[graph](N))]
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
    G, X = toy.gradients(p), np.tile(toy.start(p), (N, 1))
    for algorithm in (PGExtra(2.0), ProxGT(2.0)):
        run, before = toy.begin(p, algorithm, Ring(N)), X
        for t in range(1, 21):
            run.round(t)
            expected = prox(before.mean(0) - 2.0 * G(before, t).mean(0), 2.0)
            assert toy.gap(run.model().numpy(), expected) <= 1e-12
            before = run.state.x.numpy()


@pytest.mark.parametrize("variant", ["atc", "cta"])
def test_choco_knows_the_mixed_public_copies(variant):
    p, star = toy.problem(h=Zero()), StarGraph(N)
    W = dense(star.W(0))
    for _, s in toy.trajectory(p, ChocoSGD(0.7, 0.3, TopK(k=2), variant=variant), 30, star):
        assert toy.gap(s.s, W @ s.xh) <= 1e-14
