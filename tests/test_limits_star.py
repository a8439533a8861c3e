"""The methods with a server: where they are known to fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxfed import Linear
from proxfed.algorithms.error_feedback import EF14, EF21
from proxfed.algorithms.fast_fedda import FastFedDA
from proxfed.algorithms.fedcanon import FedCanon
from proxfed.algorithms.fedcomposite import FedComposite
from proxfed.algorithms.feddualavg import FedDualAvg
from proxfed.algorithms.fedmid import FedMiD
from proxfed.algorithms.fednova import FedNova
from proxfed.algorithms.fedpaq import FedPAQ
from proxfed.algorithms.fedpd import FedPD
from proxfed.algorithms.proxskip import ProxSkip
from proxfed.algorithms.scafcom import Scallion
from proxfed.compressors import NaturalCompressor, TopK
from proxfed.regularisers import L1, Zero
from proxfed.types import Algorithm, Problem

from support import numpy_references as ref
from support import toy_problems as toy

PLAIN = toy.problem()
SOLUTION = toy.solution(PLAIN)
K = 5


def limit(algorithm: Algorithm, rounds: int, p: Problem[Linear] = PLAIN) -> float:
    return toy.error(toy.final(p, algorithm, rounds), SOLUTION)


def assert_proportional_to_the_step(error: Callable[[float], float], least: float) -> None:
    """Up to terms of second order; `least` tells a bias from rounding error."""
    larger, smaller = error(0.4), error(0.2)
    assert smaller > least
    assert larger / smaller == pytest.approx(2, rel=0.15)


def test_fedmid_shrinks_twice() -> None:
    """As eta goes to 0 its limits go to the solutions of f + 2 h and f + (1 + 1/K) h, or f + h without that prox."""
    for server_prox, times in (("K", 2.0), ("1", 1 + 1 / K), ("none", 1.0)):
        x = toy.solution(toy.problem(h=L1(toy.LAMBDA * times)))
        run = lambda eta, s=server_prox: toy.final(PLAIN, FedMiD(eta, K, server_prox=s), round(60 / eta))
        assert 0 < toy.error(run(0.1), x) < 0.35 * toy.error(run(0.4), x)
    one, none = limit(FedMiD(1.0, K, server_prox="1"), 80), limit(FedMiD(1.0, K, server_prox="none"), 80)
    assert limit(FedMiD(1.0, K), 80) > 2 * max(one, none)
    assert min(one, none) > 0.2


@pytest.mark.parametrize("make", [FedDualAvg, FedCanon], ids=["feddualavg", "fedcanon"])
def test_bias_is_proportional_to_the_step(make: Callable[[float, int], Algorithm]) -> None:
    assert_proportional_to_the_step(lambda eta: limit(make(eta, K), round(60 / eta)), least=1e-3)


def test_composite_methods_in_order() -> None:
    """At the same step, local steps and rounds: FedMiD stops first, then FedDualAvg; FedComposite does not."""
    fedmid, dual, exact = (limit(a, 120) for a in (FedMiD(1.0, K), FedDualAvg(1.0, K), FedComposite(1.0, K)))
    assert fedmid > 2 * dual > 1e6 * exact


def test_fast_fedda_official_count_is_biased() -> None:
    official = [limit(FastFedDA(toy.L2, 0.5, K, official_count=True), rounds) for rounds in (100, 400)]
    corrected = [limit(FastFedDA(toy.L2, 0.5, K), rounds) for rounds in (100, 400)]
    assert corrected[1] < 0.35 * corrected[0]  # 1/t: a quarter
    assert official[1] > 0.8 * official[0]
    assert official[1] > 5 * corrected[1]


def test_compression_without_feedback_stalls() -> None:
    C = TopK(k=2)
    gamma = EF21.theory(toy.constants(PLAIN, 0), TopK(k=2)).gamma
    stalled = [limit(FedPAQ(2.0, 1, C), rounds) for rounds in (200, 400)]
    assert min(stalled) > 0.2
    assert stalled[1] > 0.8 * stalled[0]
    assert limit(EF21(8 * gamma, C), 400) < 1e-6


def test_ef14_stops_at_a_distance_that_falls_with_the_step() -> None:
    p = toy.problem(h=Zero())
    x = toy.solution(p, ref.prox_zero)
    errors = [toy.error(toy.final(p, EF14(eta, TopK(k=2)), round(250 / eta)), x) for eta in (1.0, 0.25)]
    assert 1e-4 < errors[1] < 0.5 * errors[0]
    assert toy.error(toy.final(p, EF21(1.0, TopK(k=2)), 400), x) < 0.01 * errors[1]


def test_fednova_forgets_how_many_steps_a_client_takes() -> None:
    """Its bias is that of drift alone, and so proportional to eta, though clients take between 1 and 9 steps."""
    p = toy.problem(h=Zero())
    x = toy.solution(p, ref.prox_zero)
    assert_proportional_to_the_step(
        lambda eta: toy.error(toy.final(p, FedNova(eta, 9), round(60 / eta)), x), least=1e-6
    )


def test_fedpd_that_skips_drifts() -> None:
    p = toy.problem(h=Zero())
    x = toy.solution(p, ref.prox_zero)
    assert toy.error(toy.final(p, FedPD(4.0, 2.0, K), 120), x) < 1e-8
    assert toy.error(toy.final(p, FedPD(4.0, 2.0, K, p=0.5), 120), x) > 1e-2


def test_proxskip_needs_fewer_rounds_than_proximal_gradient_descent() -> None:
    c = toy.constants(PLAIN, 0)
    skip = ProxSkip.theory(c)
    assert skip.p < 0.5
    assert limit(skip, 60) < 1e-3 * limit(ProxSkip(skip.gamma, 1.0), 60)


def test_scallion_with_an_unbiased_compressor_is_exact() -> None:
    p = toy.problem(h=Zero())
    assert (
        toy.error(toy.final(p, Scallion(0.4, K, NaturalCompressor(), alpha=0.5), 250), toy.solution(p, ref.prox_zero))
        < 1e-8
    )
