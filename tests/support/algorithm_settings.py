"""Settings of every registered algorithm with which it converges on the toy problem."""

from __future__ import annotations

import pytest

from proxfed import algorithms as alg
from proxfed.compressors import NaturalCompressor, TopK
from proxfed.types import Algorithm

C = TopK(k=3)
NATURAL = NaturalCompressor(contractive=True)
SETTINGS: dict[str, Algorithm] = {
    "beer": alg.BEER(1.0, 0.5, TopK(k=5)),
    "cdproxsgt": alg.CDProxSGT(2.0, compressor=TopK(k=8)),
    "choco_sgd": alg.ChocoSGD(0.5, 0.3, C),
    "depositum": alg.Depositum(2.0, gamma=0.3, T0=2),
    "dfedadmm": alg.DFedADMM(0.5, 3, lam=2.0),
    "dfedavg": alg.DFedAvg(0.5, 3),
    "dfedavgm": alg.DFedAvgM(0.2, 3, 0.5),
    "dfedsam": alg.DFedSAM(0.5, 3, 0.1, Q=2),
    "diana": alg.Diana(3.0, NaturalCompressor()),
    "dpsgd": alg.DPSGD(0.5),
    "dsgt": alg.DSGT(1.0),
    "dsmt": alg.DSMT(1.0, 0.5),
    "econtrol": alg.EControl(2.0, TopK(k=5), 0.1),
    "ef14": alg.EF14(0.5, C),
    "ef21": alg.EF21(2.0, C),
    "ef21_bc": alg.EF21BC(2.0, C, TopK(k=5)),
    "ef21_sgdm": alg.EF21SGDM(2.0, 0.5, C),
    "exact_diffusion": alg.ExactDiffusion(2.0),
    "extra": alg.Extra(2.0),
    "fast_fedda": alg.FastFedDA(0.05, 0.5, 3),
    "fedadmm": alg.FedADMM(0.2, 2.0, 3),
    "fedavg": alg.FedAvg(0.5, 3),
    "fedcanon": alg.FedCanon(0.5, 3),
    "fedcef": alg.FedCEF(0.6, 3, compressor=C),
    "fedcomposite": alg.FedComposite(1.5, 3),
    "feddr": alg.FedDR(5.0, 2.0, 3),
    "feddualavg": alg.FedDualAvg(0.5, 3),
    "feddyn": alg.FedDyn(1.0, 3, 0.1),
    "fedmid": alg.FedMiD(0.5, 3),
    "fedmom": alg.FedMom(0.3, 3, 0.5),
    "fednag": alg.FedNAG(0.3, 0.5, 3),
    "fednag_peers": alg.FedNAGPeers(0.3, 0.5),
    "fednova": alg.FedNova(0.5, 4),
    "fedopt": alg.FedOpt(0.5, 3, 0.1, tau=0.1),
    "fedpaq": alg.FedPAQ(0.5, 3, NaturalCompressor()),
    "fedpd": alg.FedPD(8.0, 2.0, 3),
    "fedprox": alg.FedProx(0.5, 3, 0.1),
    "fedsam": alg.FedSAM(0.5, 3),
    "fedspeed": alg.FedSpeed(1.0, 3, 8.0),
    "fedsplit": alg.FedSplit(8.0, 2.0, 3),
    "fista": alg.FISTA(5.0),
    "gradient_descent": alg.GradientDescent(8.0),
    "heavy_ball": alg.HeavyBall(4.0, 0.4),
    "local_adam": alg.LocalAdam(0.05, 3, epsilon=0.1),
    "locodl": alg.LoCoDL(2.0, 0.4, NaturalCompressor(), 0.01),
    "mime": alg.Mime(1.5, 3, 0.4),
    "mimelite": alg.MimeLite(0.5, 3, 0.4),
    "mofedsam": alg.MoFedSAM(0.5, 3, 0.5),
    "fednl": alg.FedNL(),
    "mosaic": alg.Mosaic(),
    "naive_composite": alg.NaiveComposite(1.5, 3, local_prox="constant"),
    "nesterov": alg.Nesterov(3.0, 0.5),
    "pg_extra": alg.PGExtra(3.0),
    "pledge": alg.Pledge(2.5, 3, compressor_up=NATURAL, compressor_down=NATURAL),
    "pledge_peers": alg.PledgePeers(2.5, 2, compressor=NATURAL),
    "prox_lead": alg.ProxLEAD(3.0, 0.8, 0.8, NaturalCompressor()),
    "prox_newton": alg.ProxNewton(0.2),
    "proxgt": alg.ProxGT(1.5, Q=2),
    "proximal_gradient": alg.ProximalGradient(8.0),
    "proxskip": alg.ProxSkip(4.0, 0.4),
    "scafcom": alg.Scafcom(0.6, 3, C, beta=0.5),
    "scaffold": alg.Scaffold(1.5, 3),
    "scallion": alg.Scallion(0.6, 3, NaturalCompressor(), alpha=0.5),
    "slowmo": alg.SlowMo(0.3, 3, 0.5),
}
PARTIAL: dict[str, Algorithm] = {
    "fedcef": alg.FedCEF(0.6, 3, compressor=C, partial=True),
    "fedcomposite": alg.FedComposite(1.5, 3, partial=True),
    "fedpd": alg.FedPD(8.0, 2.0, 3, partial=True),
    "fedsplit": alg.FedSplit(8.0, 2.0, 3, partial=True),
    "pledge": alg.Pledge(2.5, 3, 0.0, False, compressor_up=NATURAL, compressor_down=NATURAL, partial=True),
    "proxskip": alg.ProxSkip(4.0, 0.4, partial=True),
}
"""Those that need everybody unless they are told otherwise."""
SLOW = {"fast_fedda"}
"""Exact, but with an error that falls like 1/t."""


def algorithm(name: str) -> Algorithm:
    if name not in SETTINGS:
        pytest.fail(f"{name!r} is registered but has no settings for the toy problem: add it to SETTINGS in {__file__}")
    return SETTINGS[name]


OTHERWISE: dict[str, list[Algorithm]] = {
    "depositum": [
        alg.Depositum(2.0, 0.5, 0.3, T0=2, prox_step="alpha"),
        alg.Depositum(2.0, gamma=0.3, T0=2, tracking=False),
        alg.Depositum(1.0, gamma=0.3, prox_step="alpha", tracking=False),
    ],
    "ef14": [alg.EF14(0.5)],
    "fast_fedda": [alg.FastFedDA(0.05, 0.5, 3, official_count=True)],
    "fedcanon": [alg.FedCanon(0.5, 1)],
    "feddualavg": [alg.FedDualAvg(0.5, 1)],
    "fedmom": [alg.FedMom(0.3, 1, 0.5)],
    "fednag": [alg.FedNAG(0.3, 0.5, 1), alg.FedNAG(0.3, 0.5, 1, output="best")],
    "fednova": [alg.FedNova(0.5, 1)],
    "fedopt": [alg.FedOpt(0.5, 1, 0.1, tau=0.1)],
    "fedpd": [alg.FedPD(8.0, 2.0, 3, p=0.3), alg.FedPD(8.0, 2.0, 3, p=0.3, partial=True)],
    "fedprox": [alg.FedProx(0.5, 1, 0.1)],
    "fedsam": [alg.FedSAM(0.5, 1, rho=0.0)],
    "fedspeed": [alg.FedSpeed(1.0, 3, 8.0, rho=0.0), alg.FedSpeed(1.0, 3, 8.0, alpha=0.0)],
    "mimelite": [alg.MimeLite(0.5, 1, 0.4)],
    "mofedsam": [alg.MoFedSAM(0.5, 1, 0.5, rho=0.0)],
    "naive_composite": [alg.NaiveComposite(1.5, 1, local_prox="constant")],
    "pledge": [
        alg.Pledge(2.5, 3, rho=0.1, compressor_up=NATURAL, compressor_down=NATURAL),
        alg.Pledge(2.5, 3, 0.0, False, rho=0.1, compressor_up=NATURAL, compressor_down=NATURAL, partial=True),
    ],
    "pledge_peers": [alg.PledgePeers(2.5, 2, rho=0.1, compressor=NATURAL)],
    "slowmo": [alg.SlowMo(0.3, 1, 0.5)],
}
"""Settings with which those above that are exact are not, and the other way round."""
