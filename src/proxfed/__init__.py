"""proxfed: federated composite optimisation.

Names are imported when they are first used, so that `import proxfed` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxfed._version import __version__

if TYPE_CHECKING:
    from proxfed.algorithms import Depositum, DFedADMM, FedAvg, FedCEF, FedComposite, FedNAG, Scaffold
    from proxfed.data import Federated, load
    from proxfed.engine.allocator import tune_process
    from proxfed.errors import InputError, ProxfedError, RunError
    from proxfed.harness.build import read_study
    from proxfed.harness.compare import Diverged, Result, compare, run, run_study
    from proxfed.harness.path import path
    from proxfed.harness.results import Cases, Results
    from proxfed.harness.study import Entry, Study
    from proxfed.problems.linear import Linear
    from proxfed.problems.losses import Logistic, Softmax, Squared
    from proxfed.problems.network import Model
    from proxfed.problems.saved import load_model
    from proxfed.tuning.sweep import sweep
    from proxfed.tuning.swept import Swept
    from proxfed.tuning.tune import tune
    from proxfed.tuning.tuned import Tuned

_FROM = {
    "proxfed.algorithms": ("DFedADMM", "Depositum", "FedAvg", "FedCEF", "FedComposite", "FedNAG", "Scaffold"),
    "proxfed.data": ("Federated", "load"),
    "proxfed.engine.allocator": ("tune_process",),
    "proxfed.errors": ("InputError", "ProxfedError", "RunError"),
    "proxfed.harness.build": ("read_study",),
    "proxfed.harness.compare": ("Diverged", "Result", "compare", "run", "run_study"),
    "proxfed.harness.path": ("path",),
    "proxfed.harness.results": ("Cases", "Results"),
    "proxfed.harness.study": ("Entry", "Study"),
    "proxfed.problems.linear": ("Linear",),
    "proxfed.problems.losses": ("Logistic", "Softmax", "Squared"),
    "proxfed.problems.saved": ("load_model",),
    "proxfed.problems.network": ("Model",),
    "proxfed.tuning.sweep": ("sweep",),
    "proxfed.tuning.swept": ("Swept",),
    "proxfed.tuning.tune": ("tune",),
    "proxfed.tuning.tuned": ("Tuned",),
}
_HOME = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "Cases",
    "DFedADMM",
    "Depositum",
    "Diverged",
    "Entry",
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
    "Results",
    "RunError",
    "Scaffold",
    "Softmax",
    "Squared",
    "Study",
    "Swept",
    "Tuned",
    "__version__",
    "compare",
    "load",
    "load_model",
    "path",
    "read_study",
    "run",
    "run_study",
    "sweep",
    "tune",
    "tune_process",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'proxfed' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
