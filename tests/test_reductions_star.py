"""The methods with a server: what they become in special cases, to rounding error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proxfed import Linear
from proxfed.algorithms.dfedadmm import DFedADMM
from proxfed.algorithms.error_feedback import EF14, EF21, EF21SGDM
from proxfed.algorithms.fedadmm import FedADMM
from proxfed.algorithms.fedavg import FedAvg
from proxfed.algorithms.fedcanon import FedCanon
from proxfed.algorithms.fedcef import FedCEF
from proxfed.algorithms.fedcomposite import FedComposite
from proxfed.algorithms.feddr import FedDR
from proxfed.algorithms.feddyn import FedDyn
from proxfed.algorithms.fedmid import FedMiD
from proxfed.algorithms.fedmom import FedMom
from proxfed.algorithms.fednag import FedNAG
from proxfed.algorithms.fednova import FedNova
from proxfed.algorithms.fedopt import FedOpt
from proxfed.algorithms.fedpaq import FedPAQ
from proxfed.algorithms.fedpd import FedPD
from proxfed.algorithms.fedprox import FedProx
from proxfed.algorithms.fedsam import FedSAM, MoFedSAM
from proxfed.algorithms.fedspeed import FedSpeed
from proxfed.algorithms.fedsplit import FedSplit
from proxfed.algorithms.mime import Mime, MimeLite
from proxfed.algorithms.proxskip import ProxSkip
from proxfed.algorithms.scafcom import Scafcom, Scallion
from proxfed.algorithms.scaffold import Scaffold
from proxfed.algorithms.slowmo import SlowMo
from proxfed.compressors import NaturalCompressor, TopK
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import L1, Zero
from proxfed.schedules import ExponentialDecay
from proxfed.types import Algorithm, Participation, Problem

from support import numpy_references as ref
from support import toy_problems as toy

SMOOTH = toy.problem(h=Zero(), batch=4)
WEIGHTED = toy.problem(h=Zero(), batch=4, sizes=toy.RAGGED, weighting="size")
COMPOSITE = toy.problem(batch=4)
FULL, SOME = Full(), UniformSampling(2)
FADING = ExponentialDecay(0.5, 0.7)


def same(
    p: Problem[Linear],
    a: Algorithm,
    b: Algorithm,
    participation: Participation = FULL,
    rounds: int = 8,
    within: float = 1e-12,
) -> None:
    for _, x, y in zip(range(rounds), toy.models(p, a, participation), toy.models(p, b, participation), strict=False):
        assert np.isfinite(y).all()
        assert toy.gap(x, y) <= within


# ---- FedAvg and what becomes FedAvg ------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [FULL, SOME], ids=["full", "some"])
@pytest.mark.parametrize("p", [SMOOTH, WEIGHTED], ids=["uniform", "weighted"])
@pytest.mark.parametrize(
    "special",
    [
        FedProx(0.5, 3, mu=0.0),
        FedSAM(0.5, 3, rho=0.0),
        MoFedSAM(0.5, 3, beta=1.0, rho=0.0),
        FedMom(0.5, 3, gamma=0.0),
        SlowMo(0.5, 3, beta=0.0),
        MimeLite(0.5, 3, beta=0.0),
        FedNAG(0.5, 0.0, 3),
        FedNova(0.5, 3, K_min=3),
        FedPAQ(0.5, 3),
        FedMiD(0.5, 3),
        EF14(0.5, K=3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_reduces_to_fedavg(special: Algorithm, p: Problem[Linear], participation: Participation) -> None:
    same(p, special, FedAvg(0.5, 3), participation)


@pytest.mark.parametrize(
    "special",
    [
        FedProx(0.5, 3, mu=0.0, eta_g=1.5),
        FedSAM(0.5, 3, rho=0.0, eta_g=1.5),
        MoFedSAM(0.5, 3, beta=1.0, rho=0.0, eta_g=1.5),
        FedMom(0.5, 3, gamma=0.0, eta_g=1.5),
        SlowMo(0.5, 3, beta=0.0, alpha=1.5),
        MimeLite(0.5, 3, beta=0.0, eta_g=1.5),
        FedPAQ(0.5, 3, eta_g=1.5),
        FedMiD(0.5, 3, eta_g=1.5),
    ],
    ids=lambda a: type(a).__name__,
)
def test_reduces_to_fedavg_with_a_server_step(special: Algorithm) -> None:
    same(SMOOTH, special, FedAvg(0.5, 3, eta_g=1.5), SOME)


@pytest.mark.parametrize(
    "special",
    [FedProx(FADING, 3, mu=0.0), FedSAM(FADING, 3, rho=0.0), FedPAQ(FADING, 3), FedMom(FADING, 3, gamma=0.0)],
    ids=lambda a: type(a).__name__,
)
def test_schedules_are_those_of_fedavg(special: Algorithm) -> None:
    same(SMOOTH, special, FedAvg(FADING, 3), SOME)


def test_reduces_to_fedavg_with_prox_steps() -> None:
    same(COMPOSITE, FedMiD(0.5, 3, server_prox="none"), FedAvg(0.5, 3), SOME)
    same(COMPOSITE, FedPAQ(0.5, 3), FedAvg(0.5, 3), SOME)


@pytest.mark.parametrize("rule", ["adagrad", "yogi"])
def test_an_adaptive_server_with_a_huge_tau_is_fedavg(rule: str) -> None:
    tau = 1e6  # v stays tau^2 but for the squares of the updates, twelve digits below
    same(SMOOTH, FedOpt(0.5, 3, 2 * tau, rule, tau, beta1=0.0), FedAvg(0.5, 3), SOME, within=1e-9)


def test_mofedsam_without_server_direction_is_fedsam() -> None:
    same(SMOOTH, MoFedSAM(0.5, 3, beta=1.0, rho=0.2), FedSAM(0.5, 3, rho=0.2), SOME)


def test_mime_with_one_client_is_mimelite_in_every_second_round() -> None:
    one = toy.problem(h=Zero(), sizes=(toy.M,))
    eta = ExponentialDecay(0.5, 0.9)
    mime, lite = toy.models(one, Mime(eta, 3, beta=0.6)), toy.models(one, MimeLite(eta, 3, beta=0.6))
    for _ in range(6):
        next(mime)
        assert toy.gap(next(mime), next(lite)) < 1e-13


# ---- SCAFFOLD, FedCEF, FedComposite, EF21 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "special",
    [FedComposite(0.5, 3, 1.3), FedCEF(0.5, 3, 1.3), FedCanon(0.5, 3, 1.3)],
    ids=lambda a: type(a).__name__,
)
def test_scaffold_without_regulariser(special: Algorithm) -> None:
    same(SMOOTH, special, Scaffold(0.5, 3, 1.3))


@pytest.mark.parametrize("participation", [FULL, SOME], ids=["full", "some"])
@pytest.mark.parametrize(
    "special",
    [Scallion(0.5, 3, alpha=1.0, eta_g=1.3), Scafcom(0.5, 3, beta=1.0, eta_g=1.3)],
    ids=lambda a: type(a).__name__,
)
def test_scaffold_with_half_the_uplink(special: Algorithm, participation: Participation) -> None:
    same(SMOOTH, special, Scaffold(0.5, 3, 1.3), participation)


def test_fedcef_uncompressed_is_fedcomposite() -> None:
    same(COMPOSITE, FedCEF(0.5, 3, 1.3), FedComposite(0.5, 3, 1.3))


def test_scafcom_is_fedcef_without_regulariser() -> None:
    C = TopK(k=2)
    same(SMOOTH, Scafcom(0.5, 3, C, beta=0.4, eta_g=1.3), FedCEF(0.5, 3, 1.3, eta=0.4, compressor=C))


@pytest.mark.parametrize("h", [Zero(), L1(toy.LAMBDA)], ids=["smooth", "l1"])
def test_fedcef_with_one_local_step_is_ef21_sgdm(h: Any) -> None:
    C, gamma, p = TopK(k=2), 0.7, toy.problem(h=h, batch=4)
    begun = toy.problem(h=h, batch=4, x0=tuple(h.prox(p.start(0), gamma).tolist()))  # FedCEF begins with a prox step
    runs = toy.models(p, FedCEF(gamma, 1, eta=0.4, compressor=C)), toy.models(begun, EF21SGDM(gamma, 0.4, C))
    for _ in range(8):
        assert toy.gap(next(runs[0]), next(runs[1])) < 1e-13


def test_ef21_sgdm_without_momentum_is_ef21() -> None:
    same(COMPOSITE, EF21SGDM(0.7, 1.0, TopK(k=2)), EF21(0.7, TopK(k=2)))


# ---- proximal gradient descent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "special",
    [ProxSkip(2.0, 1.0), EF21(2.0), FedCanon(2.0, 1), EF21SGDM(2.0, 1.0)],
    ids=lambda a: type(a).__name__,
)
def test_reduces_to_proximal_gradient_descent(special: Algorithm) -> None:
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    plain = ref.proximal_gradient(toy.mean_gradient(p), ref.prox_l1(toy.LAMBDA), toy.start(p), step=2.0)
    for _, x, y in zip(range(12), toy.models(p, special), plain, strict=False):
        assert toy.gap(x, y) < 1e-13


# ---- splitting: FedDR, FedADMM, FedPD, FedSplit, FedDyn, FedSpeed, DFedADMM --------------------------------------


@pytest.mark.parametrize("participation", [FULL, SOME], ids=["full", "some"])
def test_fedadmm_is_feddr_with_relaxation_one(participation: Participation) -> None:
    same(COMPOSITE, FedADMM(0.25, 1.0, 4), FedDR(4.0, 1.0, 4, alpha=1.0), participation)


def test_fedpd_is_fedadmm_without_regulariser() -> None:
    same(SMOOTH, FedPD(4.0, 1.0, 4), FedADMM(0.25, 1.0, 4))


@pytest.mark.parametrize("participation", [FULL, SOME], ids=["full", "some"])
def test_fedspeed_without_perturbation_is_feddyn(participation: Participation) -> None:
    same(SMOOTH, FedSpeed(0.5, 4, lam=4.0, rho=0.0), FedDyn(0.5, 4, alpha=0.25), participation)
    same(SMOOTH, FedSpeed(0.5, 4, lam=4.0, alpha=0.0), FedDyn(0.5, 4, alpha=0.25), participation)


@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_fedspeed_is_dfedadmm_with_the_new_dual_on_the_complete_graph(rho: float) -> None:
    same(SMOOTH, FedSpeed(0.5, 4, lam=4.0, rho=rho), DFedADMM(0.5, 4, lam=4.0, rho=rho, dual="new"))


def test_fedpd_is_dfedadmm_when_both_solve_their_local_problems() -> None:
    p = toy.problem(h=Zero())
    same(p, FedPD(4.0, 2.0, 60), DFedADMM(2.0, 60, lam=4.0, dual="new"), within=1e-11)


def test_fedsplit_is_feddr_with_relaxation_two_when_both_solve_their_local_problems() -> None:
    p = toy.problem(h=Zero())
    same(p, FedSplit(4.0, 2.0, 60), FedDR(4.0, 2.0, 60, alpha=2 - 1e-13), within=1e-11)


# ---- what the server knows is the mean over all clients, whoever takes part --------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        (Scaffold(0.5, 3), "c"),
        (Scallion(0.5, 3, TopK(k=2)), "c"),
        (Scafcom(0.5, 3, TopK(k=2)), "c"),
        (EF21(0.5, TopK(k=2)), "c"),
        (FedDR(4.0, 1.0, 4), "v"),
        (FedADMM(0.25, 1.0, 4), "v"),
    ],
    ids=lambda a: type(a).__name__ if not isinstance(a, str) else a,
)
def test_server_keeps_the_mean_of_all(algorithm: Algorithm, field: str) -> None:
    run = toy.started(COMPOSITE, algorithm, SOME)
    for t in range(1, 9):
        run.round(t)
        own, mean = getattr(run.state.clients, field).numpy(), getattr(run.state.server, field).numpy()
        assert len(np.unique(own, axis=0)) > 1
        assert toy.gap(own.mean(0), mean) < 1e-13


def test_feddyn_server_keeps_the_mean_gradient() -> None:
    run = toy.started(SMOOTH, FedDyn(0.5, 3, alpha=0.3), SOME)
    for t in range(1, 9):
        run.round(t)
        assert toy.gap(run.state.clients.g.numpy().mean(0), run.state.server.s.numpy()) < 1e-13


def test_server_keeps_the_weighted_mean_of_all() -> None:
    run = toy.started(WEIGHTED, Scaffold(0.5, 3), SOME)
    for t in range(1, 9):
        run.round(t)
        assert toy.gap(WEIGHTED.f.weights.numpy() @ run.state.clients.c.numpy(), run.state.server.c.numpy()) < 1e-13


@pytest.mark.parametrize(
    "algorithm",
    [
        Scaffold(1.0, 3),
        FedDyn(1.0, 3, alpha=0.1),
        FedDR(5.0, 2.0, 3),
        FedADMM(0.2, 2.0, 3),
        EF21(2.0, TopK(k=4)),
        Scafcom(0.6, 3, TopK(k=4), beta=0.5),
        Scallion(0.6, 3, NaturalCompressor(), alpha=0.5),
    ],
    ids=lambda a: type(a).__name__,
)
def test_exact_also_when_only_some_take_part(algorithm: Algorithm) -> None:
    p = toy.problem(h=toy.SPARSE if algorithm.needs.composite else Zero())
    x = toy.solution(p) if algorithm.needs.composite else toy.solution(p, ref.prox_zero)
    run = toy.models(p, algorithm, UniformSampling(3))
    for _ in range(300):
        model = next(run)
    assert toy.error(model, x) < 1e-8
