"""How good are the steps that `auto` finds? Against the best of a grid of 15, for every algorithm and seven problems.

python benchmarks/auto_steps.py runs/auto [PROBLEM ...]

For each algorithm the grid is run first: 15 steps over four decades. Its best step is the one that reaches the target
in the fewest rounds; a step that is beyond the target again at the end has only passed it, and has not reached it. Then
the same with step sizes "auto". On convex problems the target is a part of the first gap, the smallest of 1, 3 and 10 %
that the grid reaches in two thirds of the rounds; for networks it is an accuracy. What the grid does not reach does not
train there, and is left out. Results are kept in a file per problem; a second call
goes on with what is missing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from proxfed import InputError, read_study, run
from proxfed.algorithms import ALGORITHMS
from proxfed.auto import Auto
from proxfed.compressors import QSGD, TopK
from proxfed.regularisers import L1
from proxfed.topologies import Ring
from proxfed.types import Graph, Problem

K, POINTS, DECADES = 5, 15, 4.0


class Trial(NamedTuple):
    experiment: str
    changes: list[str]
    rounds: int
    accuracy: float | None = None
    case: str = ""
    only: tuple[str, ...] = ()
    """The algorithms that are tried; all if empty."""


FEW = ("depositum", "dfedadmm", "dfedavg", "fedavg", "fedcef", "fedcomposite", "fednag", "pledge", "scaffold")
"""Where a run takes long: those of the five papers, and a few others."""

TINY_MNIST = ["data.limit=500", "data.test_limit=500", "problem.batch=8"]
SMALL_MNIST = ["data.limit=1000", "data.test_limit=1000"]
PROBLEMS = {
    "composite": Trial("composite_fl/fig1_full", ["data.samples=200"], 120),
    "composite, batches": Trial("composite_fl/fig1_stochastic", ["data.samples=200"], 90),
    "a9a": Trial("depositum/prox_step", ["data.limit=1000"], 90),
    "mnist, linear": Trial("fednag/fig3_convex", SMALL_MNIST, 60, None, "linear"),
    "mnist, logistic": Trial("fednag/fig3_convex", SMALL_MNIST, 60, None, "logistic"),
    "mnist, mlp": Trial("depositum/table3_mlp", [*SMALL_MNIST, "problem.batch=16"], 45, 0.8, "MNIST, Dir(1)"),
    "mnist, cnn": Trial(
        "fednag/fig4_tau", ["data.limit=500", "data.test_limit=500", "problem.batch=8"], 30, 0.75, "", FEW
    ),
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
        "prox_newton": None,  # has no step
        "ef14": {"compressor": C},
        "ef21": {"compressor": C},
        "ef21_sgdm": {"eta": 0.5, "compressor": C},
        "fast_fedda": {"mu": mu},
        "fedcef": {"compressor": C},
        "fednag": {"gamma": 0.9},
        "fedopt": None,  # its own step is that of the server, a length in the space of x
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
    steps = {k: "auto" for k in (make.facts.step, *make.tied(1.0, 1)) if k in fields}
    return local | given | steps


def unit(problem: Problem) -> float:
    try:
        return 1 / problem.smoothness().L
    except InputError:
        return 1.0


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for problem_name in names or PROBLEMS:
        trial = PROBLEMS[problem_name]
        file = folder / f"{problem_name.replace(', ', '-')}.json"
        done = json.loads(file.read_text()) if file.exists() else {}
        study = read_study(trial.experiment, trial.changes, trial.case)
        problem = replace(study.problem, **_measured(study.problem))
        if trial.accuracy is not None:  # every algorithm takes l1, with every step
            problem = study.problem.with_h(L1(1e-5))
        optimum = None if trial.accuracy is not None else _optimum(problem)
        for name in ALGORITHMS:
            left_out = trial.only and name not in trial.only
            if name in done or left_out or (given := settings(name, 0.01)) is None:
                continue
            done[name] = _judge(problem, ALGORITHMS[name](**given), trial, optimum)
            file.write_text(json.dumps(done, indent=1))
            print(problem_name, name, {k: v for k, v in done[name].items() if k != "grid"}, flush=True)
        _summary(problem_name, done)


def _measured(problem: Problem) -> dict[str, Any]:
    return {"train_measures": True} if hasattr(problem, "model") else {}


def _optimum(problem: Any) -> float | None:
    """phi at the solution; None: below all that is seen, for networks without a solver."""
    if not problem.solvable:
        return None
    x = problem.solve(1e-10)
    return run(problem.starting_at(x), ALGORITHMS["gradient_descent"](eta=1e-9), 0, progress=False).rows[0]["objective"]


def _curve(problem: Problem, algorithm: Any, trial: Trial) -> tuple[list[float], Any]:
    peers = issubclass(algorithm.make if isinstance(algorithm, Auto) else type(algorithm), Graph)
    result = run(problem, algorithm, trial.rounds, topology=Ring(problem.n) if peers else None, progress=False)
    column = "objective" if trial.accuracy is None else "accuracy"
    return [row.get(column, inf) for row in result.rows], result


def _judge(problem: Problem, auto: Auto, trial: Trial, optimum: float | None) -> dict[str, Any]:
    scale = unit(problem)
    steps = (scale * 10 ** np.linspace(-DECADES + 1.2, 1.2, POINTS)).tolist()
    grid = {f"{s:.4g}": _curve(problem, auto.at(s), trial)[0] for s in steps}
    found, result = _curve(problem, auto, trial)
    if trial.accuracy is not None:
        target: float | None = trial.accuracy
        reached = lambda curve: _first(curve, lambda v: v >= trial.accuracy)
    else:
        lowest = min(min(c) for c in [*grid.values(), found]) if optimum is None else optimum
        for target in (0.01, 0.03, 0.1):
            level = lowest + target * (found[0] - lowest)
            reached = lambda curve, level=level: _first(curve, lambda v: v <= level)
            if min(map(reached, grid.values())) <= trial.rounds / 1.5:
                break
    rounds = {s: reached(curve) for s, curve in grid.items()}
    best = min(rounds, key=rounds.__getitem__)
    if rounds[best] > trial.rounds / 1.5:
        return {"trains": False}
    ours = reached(found)
    plain = _curve_bytes(result, ours)
    return {
        "trains": True,
        "target": target,
        "best step": float(best),
        "rounds of the best": rounds[best],
        "rounds of auto": None if ours == inf else ours,
        "ratio": None if ours == inf else ours / max(rounds[best], 1),
        "found": result.message,
        "bytes until then": plain,
        "within 1.5": sum(r <= 1.5 * rounds[best] for r in rounds.values()),
    }


def _first(curve: list[float], good: Any) -> float:
    return next((t for t, value in enumerate(curve) if good(value)), inf) if good(curve[-1]) else inf


def _curve_bytes(result: Any, t: float) -> int | None:
    if t == inf:
        return None
    row = result.rows[int(t)]
    return sum(row[f"bytes_{way}"] for way in ("up", "down", "edge"))


def _summary(name: str, done: dict[str, Any]) -> None:
    trained = {k: v for k, v in done.items() if v["trains"]}
    good = [k for k, v in trained.items() if v["ratio"] is not None and v["ratio"] <= 1.5]
    print(f"{name}: {len(trained)} of {len(done)} train; auto within 1.5 of the best of 15 steps: {len(good)}")
    for k, v in trained.items():
        if k not in good:
            print(f"   {k}: {v['rounds of auto']} rounds against {v['rounds of the best']}; {v['found']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
