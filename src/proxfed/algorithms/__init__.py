"""One paper, one file."""

from proxfed.algorithms.centralised import FISTA, GradientDescent, HeavyBall, Nesterov, ProximalGradient
from proxfed.algorithms.choco import ChocoSGD
from proxfed.algorithms.depositum import Depositum
from proxfed.algorithms.dfedadmm import DFedADMM
from proxfed.algorithms.dfedavg import DFedAvg, DFedAvgM
from proxfed.algorithms.dfedsam import DFedSAM
from proxfed.algorithms.dpsgd import DPSGD
from proxfed.algorithms.dsgt import DSGT
from proxfed.algorithms.dsmt import DSMT
from proxfed.algorithms.exact_diffusion import ExactDiffusion
from proxfed.algorithms.extra import Extra, PGExtra
from proxfed.algorithms.fedavg import FedAvg
from proxfed.algorithms.fedcef import FedCEF
from proxfed.algorithms.fedcomposite import FedComposite
from proxfed.algorithms.fednag import FedNAG
from proxfed.algorithms.proxgt import ProxGT

ALGORITHMS: dict[str, type] = {
    "choco_sgd": ChocoSGD,
    "depositum": Depositum,
    "dfedadmm": DFedADMM,
    "dfedavg": DFedAvg,
    "dfedavgm": DFedAvgM,
    "dfedsam": DFedSAM,
    "dpsgd": DPSGD,
    "dsgt": DSGT,
    "dsmt": DSMT,
    "exact_diffusion": ExactDiffusion,
    "extra": Extra,
    "fedavg": FedAvg,
    "fedcef": FedCEF,
    "fedcomposite": FedComposite,
    "fednag": FedNAG,
    "fista": FISTA,
    "gradient_descent": GradientDescent,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "pg_extra": PGExtra,
    "proxgt": ProxGT,
    "proximal_gradient": ProximalGradient,
}
