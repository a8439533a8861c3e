"""Two small studies to tune: digits over ten clients with skewed classes, and a convex problem without test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

import proxfed
from proxfed import FedAvg, Linear, Logistic, Scaffold, Study, Tuned
from proxfed.regularisers import Zero

STEPS = "log(1e-2, 10)"
BUDGET = 105
"""Nine configurations to round 5, three of them to round 15, one of them to round 45: 9 * 5 + 3 * 10 + 30 rounds."""


def convex() -> Study:
    """Judged by the objective."""
    data = proxfed.load("synthetic_binary", alpha=1.0, beta=1.0, clients=6, samples=20, features=8)
    problem = Linear(data, Logistic(), l2=0.05)
    return Study(problem + Zero(), {"FedAvg": FedAvg(0.5, 2), "SCAFFOLD": Scaffold(0.5, 2)}, 45, [0, 1], "convex")


def digits(path: Path, **changes: Any) -> Path:
    """The file of an experiment on phones, which is judged by its accuracy."""
    table: dict[str, Any] = {
        "name": "digits",
        "rounds": 18,
        "seeds": [0, 1],
        "every": 2,
        "dtype": "float32",
        "targets": {"accuracy": [0.85]},
        "data": {
            "name": "digits",
            "limit": 600,
            "partition": {"name": "dirichlet_by_class", "num_partitions": 10, "alpha": 1.0},
        },
        "problem": {"name": "softmax", "batch": 10},
        "participation": {"name": "uniform", "m": 4},
        "time": {"profile": "phones_4g"},
        "algorithms": [
            {"name": "fedavg", "label": "FedAvg", "eta": 0.01, "K": 5},
            {"name": "fednag", "label": "FedNAG", "eta": 0.01, "gamma": 0.9, "tau": 5},
            {"name": "scaffold", "label": "SCAFFOLD", "eta": 0.01, "K": 5},
            {"name": "fedprox", "label": "FedProx", "eta": 0.01, "K": 5, "mu": 1.0},
        ],
    }
    path.write_text(tomli_w.dumps(table | changes))
    return path


def trials(tuned: Tuned) -> Path:
    """The run folder of what was tried."""
    assert tuned.folder is not None
    return tuned.folder / "trials" / "1"


def told(tuned: Tuned) -> list[dict[str, Any]]:
    """All that a tuning says of its configurations and choices."""
    return [*tuned.rows(), *tuned.table()]
