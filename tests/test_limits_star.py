"""The methods with a server: where they are known to fail, and which settings they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxfed import Linear
from proxfed.algorithms import ALGORITHMS
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
from proxfed.compressors import Natural, TopK
from proxfed.errors import InputError
from proxfed.regularisers import L1, Zero
from proxfed.types import Algorithm

import references as ref
import toy

PLAIN = toy.problem()
SOLUTION = toy.solution(PLAIN)
K = 5


def limit(algorithm: Algorithm, rounds: int, p: Linear = PLAIN) -> float:
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
    assert toy.error(toy.final(p, Scallion(0.4, K, Natural(), alpha=0.5), 250), toy.solution(p, ref.prox_zero)) < 1e-8


# ---- bad settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("fedprox", {"eta": 0.0, "K": 1, "mu": 0.1}, "eta"),
        ("fedprox", {"eta": 1.0, "K": 1, "mu": -0.1}, "mu"),
        ("scaffold", {"eta": 1.0, "K": 0}, "K"),
        ("feddyn", {"eta": 1.0, "K": 1, "alpha": 0.0}, "alpha"),
        ("fedspeed", {"eta": 2.0, "K": 1, "lam": 1.0}, "eta"),
        ("fedspeed", {"eta": 1.0, "K": 1, "lam": 1.0, "alpha": 1.5}, "alpha"),
        ("fedsam", {"eta": 1.0, "K": 1, "rho": -1.0}, "rho"),
        ("mofedsam", {"eta": 1.0, "K": 1, "beta": 0.0}, "beta"),
        ("fedmom", {"eta": 1.0, "K": 1, "gamma": 1.0}, "gamma"),
        ("slowmo", {"eta": 1.0, "K": 1, "beta": 1.0}, "beta"),
        ("fedopt", {"eta": 1.0, "K": 1, "eta_g": 1.0, "rule": "sgd"}, "rule"),
        ("fedopt", {"eta": 1.0, "K": 1, "eta_g": 1.0, "beta2": 1.0}, "beta2"),
        ("mime", {"eta": 1.0, "K": 1, "beta": 1.0}, "beta"),
        ("mimelite", {"eta": 1.0, "K": 1, "eta_g": 0.0}, "eta_g"),
        ("fednova", {"eta": 1.0, "K": 2, "K_min": 3}, "K_min"),
        ("fedsplit", {"s": 0.0, "eta": 1.0, "K": 1}, "s"),
        ("fedpd", {"eta": 1.0, "eta_l": 1.0, "K": 1, "p": 1.0}, "p"),
        ("fedmid", {"eta": 1.0, "K": 1, "server_prox": "2"}, "server_prox"),
        ("feddualavg", {"eta": -1.0, "K": 1}, "eta"),
        ("fast_fedda", {"mu": 0.0, "gamma": 1.0, "K": 1}, "mu"),
        ("feddr", {"eta": 1.0, "eta_l": 1.0, "K": 1, "alpha": 2.0}, "alpha"),
        ("fedadmm", {"eta": 0.0, "eta_l": 1.0, "K": 1}, "eta"),
        ("fedcanon", {"alpha": 0.0, "K": 1}, "alpha"),
        ("proxskip", {"gamma": 1.0, "p": 1.5}, "p"),
        ("fedpaq", {"eta": 1.0, "K": 0}, "K"),
        ("ef14", {"eta": 0.0}, "eta"),
        ("ef21", {"gamma": 0.0}, "gamma"),
        ("ef21_sgdm", {"gamma": 1.0, "eta": 1.5}, "eta"),
        ("scallion", {"eta": 1.0, "K": 1, "alpha": 1.5}, "alpha"),
        ("scafcom", {"eta": 1.0, "K": 1, "beta": 1.5}, "beta"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=rf"\b{key} = "):
        ALGORITHMS[name](**settings)


def test_proxskip_theory_needs_strong_convexity() -> None:
    c = toy.constants(toy.problem(l2=0.0), 0)
    with pytest.raises(InputError, match="strongly convex"):
        ProxSkip.theory(c)
