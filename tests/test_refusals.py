"""Settings that an algorithm refuses, and problems that it cannot solve: one sentence that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proxfed.algorithms import (
    ALGORITHMS,
    DPSGD,
    DSGT,
    DSMT,
    FISTA,
    ChocoSGD,
    Depositum,
    DFedAvg,
    DFedAvgM,
    DFedSAM,
    ExactDiffusion,
    Extra,
    FedAvg,
    FedMiD,
    FedNAG,
    FedPAQ,
    GradientDescent,
    HeavyBall,
    Nesterov,
    PGExtra,
    ProxGT,
    ProxSkip,
)
from proxfed.compressors import RandK, TopK
from proxfed.engine.compatibility import check_combination
from proxfed.errors import InputError
from proxfed.participation import Full, UniformSampling
from proxfed.problems.linear.linear import Linear
from proxfed.regularisers import MCP, Box, Nuclear, Zero
from proxfed.topologies import FromMatrix, OnePeerExponentialGraph, RandomGroups, Ring
from proxfed.types import Algorithm, Participation, Regulariser, Topology

from support import toy_problems as toy

N = toy.N
LISTENING = RandomGroups(N, 2, reading="independent")
SWAPS = np.eye(N)[[1, 0, 3, 2, 4]], np.eye(N)[[0, 2, 1, 4, 3]]
MIRROR = FromMatrix(0.1 * np.eye(N) + 0.6 * SWAPS[0] + 0.3 * SWAPS[1])
"""Symmetric and connected, with eigenvalues near -0.7."""

# ---- settings --------------------------------------------------------------------------------------------------------


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
def test_bad_settings_are_named_with_their_value(make: Callable[[], Algorithm], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_proxskip_theory_needs_strong_convexity() -> None:
    c = toy.constants(toy.problem(l2=0.0), 0)
    with pytest.raises(InputError, match="strongly convex"):
        ProxSkip.theory(c)


# ---- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "h", "topology", "participation", "sentence"),
    [
        (DSGT(0.1), Box(-1, 1), Ring(N), Full(), "takes no prox step"),
        (PGExtra(0.1), MCP(0.1, 2.0), Ring(N), Full(), "needs a convex regulariser"),
        (ProxGT(2.5), MCP(0.1, 2.0), Ring(N), Full(), "prox steps up to 2.5"),
        (ChocoSGD(0.1, 0.5, RandK(k=1, unbiased=True)), Zero(), Ring(N), Full(), "needs a contractive compressor"),
        (Extra(0.1), Zero(), None, Full(), "works on a graph"),
        (GradientDescent(0.1), Box(-1, 1), None, Full(), "takes no prox step"),
        (FISTA(0.1), MCP(0.1, 2.0), None, Full(), "needs a convex regulariser"),
        (Nesterov(0.1, 0.5), Zero(), None, UniformSampling(2), "needs every client"),
        (FedNAG(0.1, 0.5, 2, "best"), Zero(), None, UniformSampling(2), "needs every client"),
        (FedAvg(0.1, 2), Zero(), None, UniformSampling(N + 1), f"m = {N + 1} is more than the n = {N} clients"),
        (FedPAQ(0.1, 2, TopK(k=toy.D + 1)), Zero(), None, Full(), f"k = {toy.D + 1} must be at most"),
        (FedMiD(0.1, 2), Nuclear(0.1, (3, 3)), None, Full(), "shape"),
        (Depositum(0.1), Zero(), LISTENING, Full(), "columns sum to one"),
        (ProxGT(0.1), Zero(), LISTENING, Full(), "columns sum to one"),
        (DSGT(0.1), Zero(), LISTENING, Full(), "columns sum to one"),
        (DSMT(0.1, 0.5), Zero(), LISTENING, Full(), "columns sum to one"),
        (DSMT(0.1, 0.5, 0.2), Zero(), OnePeerExponentialGraph(N), Full(), "the same graph in every round"),
        (DSMT(0.1, 0.5, 0.2), Zero(), Ring(N), Full(), "eigenvalues of W above -1e-09, but one is -0.206"),
        (ExactDiffusion(0.1, lazy=False), Zero(), MIRROR, Full(), "eigenvalues of W above -0.333, but one is -0.6"),
        (FedAvg(0.1, 2), Zero(), Ring(N), Full(), "FedAvg has a server and takes no graph: leave the topology out"),
        (
            FedAvg(0.1, 2),
            Zero(),
            "ring",
            Full(),
            r"topology must be an object such as Ring\(10\)",
        ),
        (DSGT(0.1), Zero(), "ring", Full(), r"topology must be an object such as Ring\(10\)"),
        (DSGT(0.1), Zero(), Ring, Full(), "topology must be an object"),
        ("fedavg", Zero(), None, Full(), r"algorithm must be an object such as FedAvg\("),
        (FedAvg, Zero(), None, Full(), "algorithm must be an object"),
        (FedAvg(0.1, 2), Zero(), None, "full", r"participation must be an object such as Full\(\)"),
        (FedAvg(0.1, 2), Zero(), None, Full, "participation must be an object"),
        (FedAvg(0.1, 2), Zero(), None, None, "participation must be an object"),
    ],
)
def test_refuses_what_it_cannot_solve(
    algorithm: Algorithm, h: Regulariser, topology: Topology | None, participation: Participation, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        check_combination(toy.problem(h=h), algorithm, topology, participation)


@pytest.mark.parametrize("bad", ["demo", None, toy.problem().f.data, Linear], ids=["name", "nothing", "data", "class"])
def test_refuses_what_is_no_problem(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^problem must be an object such as Linear\("):
        check_combination(bad, FedAvg(0.1, 2), None, Full())


def test_asks_of_the_graph_no_more_than_it_needs() -> None:
    """What a setting asks for is not asked of the others."""
    p = toy.problem(h=Zero())
    for algorithm, topology in [
        (DSMT(0.1, 0.5), OnePeerExponentialGraph(N)),
        (DSMT(0.1, 0.5, 0.2), Ring(N, weights="lazy")),
        (ExactDiffusion(0.1), MIRROR),
        (DFedAvg(0.1, 2), LISTENING),
    ]:
        check_combination(p, algorithm, topology, Full())
    check_combination(p, FedNAG(0.1, 0.5, 2), None, UniformSampling(2))
