"""proxfed: federated composite optimisation."""

import os

# Threads that wait for each other should sleep, not spin: where other work shares the cores, spinning costs tenfold.
# Has an effect only if torch has not been imported before.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from proxfed.algorithms import Depositum, DFedADMM, FedAvg, FedCEF, FedComposite, FedNAG
from proxfed.data import Federated, load
from proxfed.engine.run import Result, run
from proxfed.errors import InputError, ProxfedError, RunError
from proxfed.problems.linear import Linear
from proxfed.problems.losses import Logistic, Softmax, Squared
from proxfed.problems.network import Model

__version__ = "0.1.0"

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
    "load",
    "run",
]
