"""One paper, one file."""

from proxfed.algorithms.beer import BEER
from proxfed.algorithms.cdproxsgt import CDProxSGT
from proxfed.algorithms.centralised import FISTA, GradientDescent, HeavyBall, Nesterov, ProximalGradient
from proxfed.algorithms.choco import ChocoSGD
from proxfed.algorithms.compressed_downlink import CompressedDownlink
from proxfed.algorithms.depositum import Depositum
from proxfed.algorithms.dfedadmm import DFedADMM
from proxfed.algorithms.dfedavg import DFedAvg, DFedAvgM
from proxfed.algorithms.dfedsam import DFedSAM
from proxfed.algorithms.diana import Diana
from proxfed.algorithms.dpsgd import DPSGD
from proxfed.algorithms.dsgt import DSGT
from proxfed.algorithms.dsmt import DSMT
from proxfed.algorithms.econtrol import EControl
from proxfed.algorithms.ef21_bc import EF21BC
from proxfed.algorithms.error_feedback import EF14, EF21, EF21SGDM
from proxfed.algorithms.exact_diffusion import ExactDiffusion
from proxfed.algorithms.extra import Extra, PGExtra
from proxfed.algorithms.fast_fedda import FastFedDA
from proxfed.algorithms.fedadmm import FedADMM
from proxfed.algorithms.fedavg import FedAvg
from proxfed.algorithms.fedcanon import FedCanon
from proxfed.algorithms.fedcef import FedCEF
from proxfed.algorithms.fedcomposite import FedComposite
from proxfed.algorithms.feddr import FedDR
from proxfed.algorithms.feddualavg import FedDualAvg
from proxfed.algorithms.feddyn import FedDyn
from proxfed.algorithms.fedmid import FedMiD
from proxfed.algorithms.fedmom import FedMom
from proxfed.algorithms.fednag import FedNAG
from proxfed.algorithms.fednag_peers import FedNAGPeers
from proxfed.algorithms.fednl import FedNL
from proxfed.algorithms.fednova import FedNova
from proxfed.algorithms.fedopt import FedOpt
from proxfed.algorithms.fedpaq import FedPAQ
from proxfed.algorithms.fedpd import FedPD
from proxfed.algorithms.fedprox import FedProx
from proxfed.algorithms.fedsam import FedSAM, MoFedSAM
from proxfed.algorithms.fedspeed import FedSpeed
from proxfed.algorithms.fedsplit import FedSplit
from proxfed.algorithms.local_adam import LocalAdam
from proxfed.algorithms.locodl import LoCoDL
from proxfed.algorithms.mime import Mime, MimeLite
from proxfed.algorithms.mosaic import Mosaic
from proxfed.algorithms.naive_composite import NaiveComposite
from proxfed.algorithms.pledge import Pledge
from proxfed.algorithms.pledge_peers import PledgePeers
from proxfed.algorithms.prox_lead import ProxLEAD
from proxfed.algorithms.prox_newton import ProxNewton
from proxfed.algorithms.proxgt import ProxGT
from proxfed.algorithms.proxskip import ProxSkip
from proxfed.algorithms.scafcom import Scafcom, Scallion
from proxfed.algorithms.scaffold import Scaffold
from proxfed.algorithms.slowmo import SlowMo
from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.types import Method

ALGORITHMS: Registry[type[Method]] = Registry(
    "algorithms",
    {
        "beer": BEER,
        "cdproxsgt": CDProxSGT,
        "choco_sgd": ChocoSGD,
        "depositum": Depositum,
        "dfedadmm": DFedADMM,
        "dfedavg": DFedAvg,
        "dfedavgm": DFedAvgM,
        "dfedsam": DFedSAM,
        "diana": Diana,
        "dpsgd": DPSGD,
        "dsgt": DSGT,
        "dsmt": DSMT,
        "econtrol": EControl,
        "ef14": EF14,
        "ef21": EF21,
        "ef21_bc": EF21BC,
        "ef21_sgdm": EF21SGDM,
        "exact_diffusion": ExactDiffusion,
        "extra": Extra,
        "fast_fedda": FastFedDA,
        "fedadmm": FedADMM,
        "fedavg": FedAvg,
        "fedcanon": FedCanon,
        "fedcef": FedCEF,
        "fedcomposite": FedComposite,
        "feddr": FedDR,
        "feddualavg": FedDualAvg,
        "feddyn": FedDyn,
        "fedmid": FedMiD,
        "fedmom": FedMom,
        "fednag": FedNAG,
        "fednag_peers": FedNAGPeers,
        "fednl": FedNL,
        "fednova": FedNova,
        "fedopt": FedOpt,
        "fedpaq": FedPAQ,
        "fedpd": FedPD,
        "fedprox": FedProx,
        "fedsam": FedSAM,
        "fedspeed": FedSpeed,
        "fedsplit": FedSplit,
        "fista": FISTA,
        "gradient_descent": GradientDescent,
        "heavy_ball": HeavyBall,
        "local_adam": LocalAdam,
        "locodl": LoCoDL,
        "mime": Mime,
        "mimelite": MimeLite,
        "mofedsam": MoFedSAM,
        "mosaic": Mosaic,
        "naive_composite": NaiveComposite,
        "nesterov": Nesterov,
        "pg_extra": PGExtra,
        "pledge": Pledge,
        "pledge_peers": PledgePeers,
        "prox_lead": ProxLEAD,
        "prox_newton": ProxNewton,
        "proxgt": ProxGT,
        "proximal_gradient": ProximalGradient,
        "proxskip": ProxSkip,
        "scafcom": Scafcom,
        "scaffold": Scaffold,
        "scallion": Scallion,
        "slowmo": SlowMo,
    },
)

__all__ = [
    "ALGORITHMS",
    "BEER",
    "DPSGD",
    "DSGT",
    "DSMT",
    "EF14",
    "EF21",
    "EF21BC",
    "EF21SGDM",
    "FISTA",
    "CDProxSGT",
    "ChocoSGD",
    "CompressedDownlink",
    "DFedADMM",
    "DFedAvg",
    "DFedAvgM",
    "DFedSAM",
    "Depositum",
    "Diana",
    "EControl",
    "ExactDiffusion",
    "Extra",
    "FastFedDA",
    "FedADMM",
    "FedAvg",
    "FedCEF",
    "FedCanon",
    "FedComposite",
    "FedDR",
    "FedDualAvg",
    "FedDyn",
    "FedMiD",
    "FedMom",
    "FedNAG",
    "FedNAGPeers",
    "FedNL",
    "FedNova",
    "FedOpt",
    "FedPAQ",
    "FedPD",
    "FedProx",
    "FedSAM",
    "FedSpeed",
    "FedSplit",
    "GradientDescent",
    "HeavyBall",
    "LoCoDL",
    "LocalAdam",
    "Mime",
    "MimeLite",
    "MoFedSAM",
    "Mosaic",
    "NaiveComposite",
    "Nesterov",
    "PGExtra",
    "Pledge",
    "PledgePeers",
    "ProxGT",
    "ProxLEAD",
    "ProxNewton",
    "ProxSkip",
    "ProximalGradient",
    "Scafcom",
    "Scaffold",
    "Scallion",
    "SlowMo",
]


explain(__name__)
