"""How good are the steps that `auto` finds? Against the best of a grid of 15, for every algorithm and eight problems.

python benchmarks/auto_steps.py runs/auto [PROBLEM ...]

For each algorithm the grid is run first: 15 steps over four decades. Its best step is the one that reaches the target
in the fewest rounds; a step that is beyond the target again at the end has only passed it, and has not reached it. Then
the same with step sizes "auto", which ends with the best state that it has seen: "there a round before" says whether it
would have been there without that. Where one minibatch a round makes a curve jump, the fewest rounds of 15 steps are a
matter of luck; so the same is judged once more with a target that counts as reached from the first of three rounds in a
row on: "held". On convex problems the target is a part of the first gap, the smallest of 1, 3 and
10 % that the grid reaches in two thirds of the rounds; for networks it is an accuracy, the highest of three. What the
grid does not reach does not train there, and is left out.

A second call goes on with what is missing. What the grid did is kept in a file of its own: without the other one,
PROBLEM.json, "auto" alone is measured again.
"""

from __future__ import annotations

import json
import sys
from collections import UserDict
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from proxfed import InputError, read_study, run
from proxfed.algorithms import ALGORITHMS, GradientDescent
from proxfed.compressors import QSGD, TopK
from proxfed.engine.race import RACE
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1
from proxfed.topologies import Ring
from proxfed.types import Algorithm, Graph, Problem

K, POINTS, DECADES = 5, 15, 4.0


class Trial(NamedTuple):
    experiment: str
    changes: list[str]
    rounds: int
    accuracies: tuple[float, ...] = ()
    """The targets of a network; with few steps a round it gets less far in as many rounds."""
    case: str = ""
    model: Callable[[int, int, int], nn.Module] | None = None
    """Instead of the experiment's network."""
    only: tuple[str, ...] = ()
    """The algorithms that are tried; all if empty."""


def small_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """FedNAG's CNN for MNIST with a quarter of its channels and without its layer of 500."""
    first, second = (nn.Conv2d(channels, 8, 5), nn.ReLU(), nn.MaxPool2d(2)), (nn.Conv2d(8, 16, 5), nn.ReLU())
    return nn.Sequential(*first, *second, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, classes))


FEW = ("depositum", "dfedadmm", "dfedavg", "fedavg", "fedcef", "fedcomposite", "fednag", "pledge", "scaffold")
"""Where a run takes long: those of the five papers, and a few others."""

TINY_MNIST = ["data.limit=500", "data.test_limit=200", "problem.batch=8"]
SMALL_MNIST = ["data.limit=1000", "data.test_limit=1000"]
FIVE_CLIENTS = ["data.limit=1000", "data.test_limit=500", "problem.batch=16", "data.partition.num_partitions=5"]
PROBLEMS = {
    "composite": Trial("composite_fl/fig1_full", ["data.samples=200"], 120),
    "composite, batches": Trial("composite_fl/fig1_stochastic", ["data.samples=200"], 90),
    "a9a": Trial("depositum/prox_step", ["data.limit=1000"], 90),
    "mnist, linear": Trial("fednag/fig3_convex", SMALL_MNIST, 60, case="linear"),
    "mnist, logistic": Trial("fednag/fig3_convex", SMALL_MNIST, 60, case="logistic"),
    "mnist, mlp": Trial("depositum/table3_mlp", FIVE_CLIENTS, 45, (0.8, 0.6, 0.4), "MNIST, Dir(1)"),
    "mnist, small cnn": Trial("fednag/fig4_tau", TINY_MNIST, 30, (0.75, 0.6, 0.4), model=small_cnn),
    "mnist, cnn": Trial("fednag/fig4_tau", TINY_MNIST, 30, (0.75, 0.6, 0.4), only=FEW),
}


def settings(name: str, mu: float) -> dict[str, Any] | None:
    """All but the steps, which are "auto"."""
    C, Q = TopK(fraction=0.2), QSGD(levels=4)
    own: dict[str, dict[str, Any] | None] = {
        "choco_sgd": {"gamma": 0.3, "compressor": C},
        "depositum": {"T0": K},
        "dfedsam": {"rho": 0.05},
        "dsmt": {"beta": 0.5},
        "beer": {"gamma": 0.3, "compressor": C},
        "cdproxsgt": {"compressor": C},
        "prox_lead": {"gamma": 0.5, "alpha": 0.5, "compressor": C},
        "ef21_bc": {"compressor_up": C, "compressor_down": C},
        "mosaic": None,  # has no step
        "prox_newton": None,  # has no step
        "ef14": {"compressor": C},
        "ef21": {"compressor": C},
        "ef21_sgdm": {"eta": 0.5, "compressor": C},
        "fast_fedda": {"mu": mu},
        "fedcef": {"compressor": C},
        "fednag": {"gamma": 0.9},
        "fednag_peers": {"gamma": 0.9},
        "fedopt": {"K": K, "eta_g": 0.03},  # a length in the space of x, which cannot be found
        "fedpaq": {"compressor": Q},
        "fedsam": {"rho": 0.05},
        "fedspeed": {"rho": 0.05},
        "heavy_ball": {"gamma": 0.9},
        "mofedsam": {"rho": 0.05},
        "nesterov": {"gamma": 0.9},
        "proxskip": {"p": 0.2},
        "scafcom": {"compressor": C},
        "scallion": {"compressor": Q},
    }
    given = own.get(name, {})
    if given is None:
        return None
    make = ALGORITHMS[name]
    fields = make.__dataclass_fields__  # type: ignore[attr-defined]
    local = {k: K for k in ("K", "tau") if k in fields and name not in ("ef14", "choco_sgd", "fedopt")}
    steps = {k: "auto" for k, field in fields.items() if field.type.startswith(("Step", "FloatOrAuto"))}
    return local | given | steps


def unit(problem: Problem) -> float:
    try:
        return 1 / problem.f.smoothness().L
    except InputError:
        return 1.0


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for problem_name in names or PROBLEMS:
        trial = PROBLEMS[problem_name]
        stem = problem_name.replace(", ", "-").replace(" ", "_")
        grids, done = Kept(folder / f"{stem}.grid.json"), Kept(folder / f"{stem}.json")
        problem = _problem(trial)
        optimum = None if trial.accuracies else _optimum(problem)
        for name in trial.only or ALGORITHMS:
            if name in done or (given := settings(name, 0.01)) is None:
                continue
            make: Any = ALGORITHMS[name]
            auto = make(**given)
            if name not in grids:
                grids[name] = _grid(problem, auto, trial)
            done[name] = _judge(problem, auto, trial, grids[name], optimum)
            print(problem_name, name, done[name], flush=True)
        _summary(problem_name, done)


class Kept(UserDict[str, Any]):
    """What is known of each algorithm, in a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        if file.exists():
            self.data = json.loads(file.read_text())

    def __setitem__(self, name: str, known: Any) -> None:
        super().__setitem__(name, known)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.data))
        new.replace(self.file)


def _problem(trial: Trial) -> Problem:
    problem = read_study(trial.experiment, trial.changes, trial.case).problem
    if trial.model is not None:
        assert isinstance(problem.f, Neural)
        problem = replace(problem, f=replace(problem.f, model=trial.model))
    if trial.accuracies:  # every algorithm takes l1, with every step
        return problem.with_h(L1(1e-5))
    f = problem.f
    return replace(problem, f=replace(f, train_measures=True)) if isinstance(f, Neural) else problem


def _optimum(problem: Any) -> float | None:
    """phi at the solution; None: below all that is seen, where there is no solver."""
    if not problem.solvable:
        return None
    x = problem.solve(1e-10)
    return run(problem.starting_at(x), GradientDescent(1e-9), 0, progress=False).rows[0]["objective"]


def _rows(problem: Problem, algorithm: Any, trial: Trial) -> tuple[list[dict[str, Any]], str]:
    topology = Ring(problem.f.n) if isinstance(algorithm, Graph) else None
    result = run(problem, algorithm, trial.rounds, topology=topology, progress=False)
    if result.status == "stopped":  # half a curve would be taken for one that does not get there
        sys.exit(result.message)
    return result.rows, result.message


def _curve(rows: list[dict[str, Any]], trial: Trial) -> list[float]:
    return [row["accuracy" if trial.accuracies else "objective"] for row in rows]


def _bytes(row: dict[str, Any]) -> int:
    return sum(row[f"bytes_{way}"] for way in ("up", "down", "edge"))


def _grid(problem: Problem, auto: Algorithm, trial: Trial) -> dict[str, Any]:
    """The curves of its steps, and the bytes of a round."""
    steps = (unit(problem) * 10 ** np.linspace(-DECADES + 1.2, 1.2, POINTS)).tolist()
    runs = {f"{s:.4g}": _rows(problem, auto.with_local_steps(s), trial)[0] for s in steps}
    last = max((rows[-1] for rows in runs.values()), key=lambda row: row["round"])
    return {"bytes": _bytes(last) / last["round"], "curves": {s: _curve(rows, trial) for s, rows in runs.items()}}


def _judge(problem: Problem, auto: Algorithm, trial: Trial, grid: Any, optimum: float | None) -> dict[str, Any]:
    curves, in_time = grid["curves"], trial.rounds / 1.5
    rows, message = _rows(problem, auto, trial)
    found = _curve(rows, trial)
    lowest = min(map(min, [*curves.values(), found])) if optimum is None else optimum
    for target in trial.accuracies or (0.01, 0.03, 0.1):
        good = _reaches(trial, target, lowest, found[0])
        rounds = _rounds(curves, good)
        best = min(rounds, key=rounds.__getitem__)
        if rounds[best] <= in_time:
            break
    else:
        return {"trains": False}
    passed, race = _passed(found, good), rows[min(RACE, trial.rounds)]
    held, best_held = (_rounds(some, good, in_a_row=3) for some in ({"auto": found}, curves))
    return {
        "trains": True,
        "target": target,
        "best step": float(best),
        "rounds of the best": rounds[best],
        "rounds of auto": passed,
        "there at the end": good(found[-1]),
        "there a round before": good(found[-2]),
        "ratio": passed / max(rounds[best], 1) if good(found[-1]) else inf,
        "ratio, held": held["auto"] / max(min(best_held.values()), 1),
        "found": message,
        "further rounds of bytes": round(_bytes(race) / grid["bytes"]) - race["round"],
        "within 1.5": sum(r <= 1.5 * rounds[best] for r in rounds.values()),
    }


def _reaches(trial: Trial, target: float, lowest: float, first: float) -> Callable[[float], bool]:
    if trial.accuracies:
        return lambda value: value >= target
    return lambda value: value <= lowest + target * (first - lowest)


def _rounds(curves: dict[str, list[float]], good: Callable[[float], bool], in_a_row: int = 1) -> dict[str, float]:
    """Of each curve until it is there, or never if it is not there at its end."""
    return {s: _passed(curve, good, in_a_row) if good(curve[-1]) else inf for s, curve in curves.items()}


def _passed(curve: list[float], good: Callable[[float], bool], in_a_row: int = 1) -> float:
    return next((t for t in range(len(curve)) if all(map(good, curve[t : t + in_a_row]))), inf)


def _summary(name: str, done: Kept) -> None:
    trained = {k: v for k, v in done.items() if v["trains"]}
    good = [k for k, v in trained.items() if v["ratio"] <= 1.5]
    held = [k for k, v in trained.items() if not v["ratio, held"] > 1.5]
    print(f"{name}: {len(trained)} of {len(done)} train; auto within 1.5 of the best of 15 steps: {len(good)}")
    print(f"   with a target that is held for three rounds: {len(held)}")
    if trained:
        ratios, price = zip(*((v["ratio"], v["further rounds of bytes"]) for v in trained.values()), strict=True)
        print(f"   median ratio {median(ratios):.2f}; bytes of {min(price)} to {max(price)} further rounds")
    if saved := [k for k in good if not trained[k]["there a round before"]]:
        print(f"   there at the end, but not a round before: {', '.join(saved)}")
    for k, v in trained.items():
        if k not in good:
            end = "" if v["there at the end"] else ", but not at the end"
            print(f"   {k}: {v['rounds of auto']} rounds against {v['rounds of the best']}{end}; {v['found']}")
        if k not in held:
            print(f"   {k}: {v['ratio, held']:.2f} times the rounds of the best to a target that is held")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
