"""One paper, one file."""

from proxfed.algorithms.depositum import Depositum
from proxfed.algorithms.dfedadmm import DFedADMM
from proxfed.algorithms.fedavg import FedAvg
from proxfed.algorithms.fedcef import FedCEF
from proxfed.algorithms.fedcomposite import FedComposite
from proxfed.algorithms.fednag import FedNAG

ALGORITHMS: dict[str, type] = {
    "depositum": Depositum,
    "dfedadmm": DFedADMM,
    "fedavg": FedAvg,
    "fedcef": FedCEF,
    "fedcomposite": FedComposite,
    "fednag": FedNAG,
}
