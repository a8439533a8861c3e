"""proxfed: federated composite optimisation."""

import os

# Threads that wait for each other should sleep, not spin: where other work shares the cores, spinning costs tenfold.
# Has an effect only if torch has not been imported before.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from proxfed._version import __version__
from proxfed.algorithms import Depositum, DFedADMM, FedAvg, FedCEF, FedComposite, FedNAG
from proxfed.data import Federated, load
from proxfed.engine.run import Result, run
from proxfed.errors import InputError, ProxfedError, RunError
from proxfed.problems.linear import Linear
from proxfed.problems.losses import Logistic, Softmax, Squared
from proxfed.problems.network import Model

__all__ = [
    "DFedADMM",
    "Depositum",
    "FedAvg",
    "FedCEF",
    "FedComposite",
    "FedNAG",
    "Federated",
    "InputError",
    "Linear",
    "Logistic",
    "Model",
    "ProxfedError",
    "Result",
    "RunError",
    "Softmax",
    "Squared",
    "__version__",
    "load",
    "run",
]
