"""A small experiment to tune: digits over ten clients with skewed classes, four algorithms with a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

GUESSES = {
    "small steps": {"FedAvg": 0.01, "FedNAG": 0.01, "SCAFFOLD": 0.01, "FedProx": 0.01},
    "mixed steps": {"FedAvg": 2.0, "FedNAG": 0.002, "SCAFFOLD": 0.1, "FedProx": 0.05},
}
"""What two people may write down before they know better."""


def digits(path: Path, guess: str = "small steps", **changes: Any) -> Path:
    """The file of the experiment."""
    steps = GUESSES[guess]
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
            {"name": "fedavg", "label": "FedAvg", "eta": steps["FedAvg"], "K": 5},
            {"name": "fednag", "label": "FedNAG", "eta": steps["FedNAG"], "gamma": 0.9, "tau": 5},
            {"name": "scaffold", "label": "SCAFFOLD", "eta": steps["SCAFFOLD"], "K": 5},
            {"name": "fedprox", "label": "FedProx", "eta": steps["FedProx"], "K": 5, "mu": 1.0},
        ],
    }
    path.write_text(tomli_w.dumps(table | changes))
    return path
