"""proxfed: federated composite optimisation.

Names are imported when they are first used, so that `import proxfed` does not wait for torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from proxfed._version import __version__

if sys.platform == "win32":
    raise ImportError("proxfed needs a POSIX system, for its locks and signals: on Windows, install it in WSL")

if TYPE_CHECKING:
    from proxfed.algorithms import (
        Depositum,
        DFedADMM,
        FedAvg,
        FedCEF,
        FedComposite,
        FedNAG,
        Pledge,
        PledgePeers,
        Scaffold,
    )
    from proxfed.data import Federated, load
    from proxfed.epochs import Epochs
    from proxfed.errors import InputError, ProxfedError, RunError
    from proxfed.fit.consortium import Fitted, fit
    from proxfed.harness.build import read_study
    from proxfed.harness.compare import Diverged, Result, compare, run, run_study
    from proxfed.harness.path import penalty_path
    from proxfed.harness.results import Cases, Results
    from proxfed.harness.study import Entry, Study
    from proxfed.hooks import Bytes, Hook, Moment, Patience, Seconds, Stop, Target
    from proxfed.problems.linear.linear import Linear
    from proxfed.problems.losses import Logistic, Softmax, Squared
    from proxfed.problems.neural.neural import Neural
    from proxfed.problems.saved import load_model
    from proxfed.regularisers import L1, L2, MCP, SCAD, Box, ElasticNet, GroupLasso, Nuclear, SparseGroup, Zero
    from proxfed.topologies import Complete, ErdosRenyi, ExponentialGraph, Grid, Ring, Torus
    from proxfed.tuning.sweep import sweep
    from proxfed.tuning.swept import Swept
    from proxfed.tuning.tune import tune
    from proxfed.tuning.tuned import Tuned
    from proxfed.types import Graph, Local, Measure, Problem, Regulariser, Smooth, Star

_FROM = {
    "proxfed.algorithms": (
        "DFedADMM",
        "Depositum",
        "FedAvg",
        "FedCEF",
        "FedComposite",
        "FedNAG",
        "Pledge",
        "PledgePeers",
        "Scaffold",
    ),
    "proxfed.data": ("Federated", "load"),
    "proxfed.epochs": ("Epochs",),
    "proxfed.errors": ("InputError", "ProxfedError", "RunError"),
    "proxfed.fit.consortium": ("Fitted", "fit"),
    "proxfed.harness.build": ("read_study",),
    "proxfed.harness.compare": ("Diverged", "Result", "compare", "run", "run_study"),
    "proxfed.harness.path": ("penalty_path",),
    "proxfed.harness.results": ("Cases", "Results"),
    "proxfed.harness.study": ("Entry", "Study"),
    "proxfed.hooks": ("Bytes", "Hook", "Moment", "Patience", "Seconds", "Stop", "Target"),
    "proxfed.problems.linear.linear": ("Linear",),
    "proxfed.problems.losses": ("Logistic", "Softmax", "Squared"),
    "proxfed.problems.neural.neural": ("Neural",),
    "proxfed.problems.saved": ("load_model",),
    "proxfed.regularisers": (
        "L1",
        "L2",
        "MCP",
        "SCAD",
        "Box",
        "ElasticNet",
        "GroupLasso",
        "Nuclear",
        "SparseGroup",
        "Zero",
    ),
    "proxfed.topologies": ("Complete", "ErdosRenyi", "ExponentialGraph", "Grid", "Ring", "Torus"),
    "proxfed.tuning.sweep": ("sweep",),
    "proxfed.tuning.swept": ("Swept",),
    "proxfed.tuning.tune": ("tune",),
    "proxfed.tuning.tuned": ("Tuned",),
    "proxfed.types": ("Graph", "Local", "Measure", "Problem", "Regulariser", "Smooth", "Star"),
}
_HOME = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "L1",
    "L2",
    "MCP",
    "SCAD",
    "Box",
    "Bytes",
    "Cases",
    "Complete",
    "DFedADMM",
    "Depositum",
    "Diverged",
    "ElasticNet",
    "Entry",
    "Epochs",
    "ErdosRenyi",
    "ExponentialGraph",
    "FedAvg",
    "FedCEF",
    "FedComposite",
    "FedNAG",
    "Federated",
    "Fitted",
    "Graph",
    "Grid",
    "GroupLasso",
    "Hook",
    "InputError",
    "Linear",
    "Local",
    "Logistic",
    "Measure",
    "Moment",
    "Neural",
    "Nuclear",
    "Patience",
    "Pledge",
    "PledgePeers",
    "Problem",
    "ProxfedError",
    "Regulariser",
    "Result",
    "Results",
    "Ring",
    "RunError",
    "Scaffold",
    "Seconds",
    "Smooth",
    "Softmax",
    "SparseGroup",
    "Squared",
    "Star",
    "Stop",
    "Study",
    "Swept",
    "Target",
    "Torus",
    "Tuned",
    "Zero",
    "__version__",
    "compare",
    "fit",
    "load",
    "load_model",
    "penalty_path",
    "read_study",
    "run",
    "run_study",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'proxfed' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Root(ModuleType):
    """`proxfed.fit` is the function, also once the package of this name has been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
