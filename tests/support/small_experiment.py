"""A small experiment that exercises everything at once: minibatches, compression, partial participation, graphs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import tomli_w

from proxfed.errors import require
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned, open_folder
from proxfed.report.progress import Progress

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 6,
    "seeds": [0, 1],
    "reference": True,
    "data": {
        "name": "synthetic_binary",
        "alpha": 1.0,
        "beta": 1.0,
        "clients": 7,
        "samples": 30,
        "features": 10,
    },
    "problem": {"name": "logistic", "l2": 0.05, "batch": 4},
    "regulariser": {"name": "l1", "weight": 0.01},
    "topology": {"name": "ring"},
    "algorithms": [
        {"name": "fedavg", "eta": 0.5, "K": 3, "participation": {"name": "uniform", "m": 3}},
        {"name": "fednag", "eta": 0.1, "gamma": 0.5, "tau": 3, "participation": {"name": "bernoulli", "p": 0.3}},
        {"name": "fedcomposite", "eta": 0.3, "tau": 3},
        {"name": "fedcef", "alpha": 0.3, "K": 3, "compressor": {"name": "top_k", "k": 2}},
        {
            "name": "fedcef",
            "label": "fedcef, random",
            "alpha": 0.3,
            "K": 3,
            "eta": 0.5,
            "compressor": {"name": "rand_k", "k": 2},
        },
        {"name": "depositum", "alpha": 0.3, "T0": 3},
        {
            "name": "depositum",
            "label": "depositum, one peer",
            "alpha": 0.3,
            "T0": 2,
            "option": "nesterov",
            "topology": {"name": "one_peer_exponential"},
        },
        {
            "name": "dfedadmm",
            "eta_l": 0.3,
            "inverse_penalty": 0.5,
            "K": 3,
            "rho": 0.05,
            "topology": {"name": "random_matching", "seed": 3},
        },
        {"name": "fedcomposite", "label": "fedcomposite, auto", "eta": "auto", "tau": 3},
        {"name": "depositum", "label": "depositum, auto", "alpha": "auto", "T0": 2},
        {"name": "pledge", "eta": 1.0},
        {
            "name": "pledge",
            "label": "pledge, tree",
            "eta": 0.5,
            "topology": {"name": "spanning_tree", "of": {"name": "ring"}, "root": 3},
        },
        {"name": "pledge_peers", "eta": 0.5},
    ],
}


def small(**changes: Any) -> dict[str, Any]:
    """SMALL with some of its keys changed."""
    return copy.deepcopy(SMALL) | changes


def write(path: Path, table: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(table))
    return path


class Crash(Exception):
    """Stands for the power cut."""


class Rounds:
    """Counts the rounds that it is told of; after so many, the process 'dies'."""

    def __init__(self, crash_after: int | None = None) -> None:
        self.seen, self.crash_after = 0, crash_after

    def __call__(self, _: Progress) -> None:
        self.seen += 1
        if self.seen == self.crash_after:
            raise Crash


def execute(
    path: Path, table: dict, *, resume: bool = False, crash_after: int | None = None, stop_after: int | None = None,
    force: bool = True,
) -> bool:  # fmt: skip
    """Run an experiment; the process 'dies' or is asked to stop after so many rounds (of all tasks together).

    True when every task is done.
    """
    study = build_study(parse(table, "test"))
    watch = Rounds(crash_after)
    require(not resume or RunFolder(path).exists(), f"there is no run to resume in {path}")
    folder = Planned(study, RunFolder(path), resume, force=force and not resume).folder
    resumed = open_folder(study, folder, resume, force=force and not resume)
    execution = Execution(
        study, folder, watch=watch, stop=lambda: watch.seen == stop_after, checkpoint_seconds=0, resumed=resumed
    )
    return execution.run()
