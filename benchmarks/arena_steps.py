"""How much the step matters: rounds to a target with the tuned step times 1/4, 1/2, 1, 2 and 4.

    python benchmarks/arena_steps.py composite        to 1e-6, on the first draw of the data
    python benchmarks/arena_steps.py a9a_ring         to 1e-3, likewise
    python benchmarks/arena_steps.py mnist_server     to 90 %, with the first seed
    python benchmarks/arena_steps.py mnist_ring       likewise

All other settings are as they were tuned. Runs are in runs/arena/steps; what was stopped goes on where it was.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, field
from typing import Any

import tomli_w
from arena import EXPERIMENTS, FIGHTS, RUNS, labels, proxfed

from proxfed.harness.results import Results
from proxfed.report.markdown import table
from proxfed.report.targets import NEVER, first_reached

TIMES = (0.25, 0.5, 1, 2, 4)


@dataclass(frozen=True)
class Trial:
    """What is asked of a fight, and in how many rounds."""

    measure: str
    target: float
    rounds: int
    methods: list[str]
    data: dict[str, Any] = field(default_factory=dict)
    """Changes to the experiment's data."""


TRIALS = {
    "composite": Trial(
        "error",
        1e-6,
        250,
        ["PLEDGE", "FedComposite", "FedCEF", "DEPOSITUM", "EF21, quantised both ways", "ProxSkip"],
        {"samples": 200, "seed": 0},
    ),
    "a9a_ring": Trial(
        "error", 1e-3, 400, ["PLEDGE, tree", "PLEDGE, peers", "DEPOSITUM", "FedComposite, tree", "FedCEF, tree"]
    ),
    "mnist_server": Trial("accuracy", 0.9, 45, labels(FIGHTS["mnist_server"])),
    "mnist_ring": Trial("accuracy", 0.9, 50, ["PLEDGE, tree", "PLEDGE, peers", "DEPOSITUM", "DFedADMM", "DFedAvgM"]),
}


def variants(name: str, label: str, tuned: dict[str, Any]) -> list[dict[str, Any]]:
    """The method with other steps; its step is the first setting that was tuned."""
    step = next(key for key in FIGHTS[name].over if key.startswith(f"{label}.")).rpartition(".")[2]
    own = {key: value for key, value in tuned.items() if key != "tuned"}
    return [own | {"label": f"{label} x {times:g}", step: tuned[step] * times} for times in TIMES]


def experiment(name: str) -> dict[str, Any]:
    """The shipped experiment with all these variants, without its cases, claims and figures."""
    trial, shipped = TRIALS[name], tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text())
    tuned = {entry["label"]: entry for entry in shipped["algorithms"]}
    kept = {key: value for key, value in shipped.items() if key not in ("cases", "claims", "paper", "description")}
    return kept | {
        "name": f"steps-{name}",
        "rounds": trial.rounds,
        "seeds": [0],
        "data": shipped["data"] | trial.data,
        "algorithms": [entry for label in trial.methods for entry in variants(name, label, tuned[label])],
    }


def main(name: str) -> None:
    trial, folder = TRIALS[name], RUNS / "steps" / name
    file = folder.with_suffix(".toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(experiment(name)))
    proxfed("run", str(file), "--jobs", "1", "--out", str(folder), *(["--resume"] if folder.exists() else []))
    results = Results.read(folder)

    def rounds(label: str) -> str:
        there = first_reached(results.histories(label)[0], trial.measure, trial.target)
        return "-" if there in (None, NEVER) or results.diverged(label) else f"{there:g}"

    lines = [[label, *(rounds(f"{label} x {times:g}") for times in TIMES)] for label in trial.methods]
    print(table(["method", *(f"{times:g}" for times in TIMES)], lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
