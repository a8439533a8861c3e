"""A made-up paper with two experiments, and the folders that its reproductions would leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from proxfed.harness.experiment import slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.papers.paper_file import PaperFile
from proxfed.report.client_stats import ClientStats

FIG1 = """
name = "toy-fig1"
description = "A toy."
rounds = 100
seeds = [0, 1, 2]

[paper]
title = "A. Author, On toys"
figure = "Fig. 1"
quick_cases = ["IID"]

[paper.quick]
rounds = 20
"algorithms.Ours.eta" = 0.5

[paper.variants.slow]
"algorithms.Ours.eta" = 0.1

[[paper.figures]]
name = "loss"
y = "objective"
log_y = true

[[paper.figures]]
name = "never"
y = "accuracy"

[cases.IID]
"data.clients" = 3

[cases."very skewed"]
"data.clients" = 6

[[claims]]
says = "ours is better | than theirs"
measure = "objective"
order = ["Ours", "Theirs"]

[[claims]]
says = "ours arrives at 0.01"
label = "Ours"
measure = "objective"
below = 0.01
form = "full"

[[reported]]
measure = "objective"
case = "IID"
values = { Ours = 0.25, Theirs = 0.5 }

[[reported]]
measure = "objective"
target = 0.6
values = { Ours = 7, Theirs = "> 99" }

[data]
name = "synthetic_binary"
features = 4           # ours: the paper is silent

[problem]
name = "logistic"

[[algorithms]]
name = "fedavg"
label = "Theirs"
eta = 1.0

[[algorithms]]
name = "fedavg"
label = "Ours"
eta = 1.0              # ours: as theirs
"""

FIG2 = """
name = "toy-fig2"
rounds = 5
[paper]
title = "A. Author, On toys"
figure = "Table 2"
[[claims]]
says = "it was not looked at"
label = "Ours"
measure = "objective"
above = 0
[data]
name = "synthetic_binary"
[problem]
name = "logistic"
[[algorithms]]
name = "fedavg"
label = "Ours"
"""


def write_paper(folder: Path) -> None:
    """The files of its two experiments, toy/fig1 and toy/fig2."""
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "fig1.toml").write_text(FIG1)
    (folder / "toy" / "fig2.toml").write_text(FIG2)


def fall(label: str, seed: int, t: int) -> float:
    """What the made-up runs find: ours is at 1/4 after 20 rounds, theirs at 1/2, and seed 1 is in the middle."""
    return {"Ours": 0.25, "Theirs": 0.5}[label] ** (t / 20) * (1 + (seed - 1) / 100)


def swapped(label: str, seed: int, t: int) -> float:
    """Theirs is the better one."""
    return fall("Ours" if label == "Theirs" else "Theirs", seed, t)


def run(out: Path, form="quick", variant=None, only=("IID",), value=fall, seeds=(0, 1, 2)) -> None:
    """The folders that a reproduction of toy/fig1 would leave."""
    cases = PaperFile("toy/fig1").form(quick=form == "quick", variant=variant, only=only)
    for case, experiment in cases.items():
        called = form + (f"+{variant}" if variant else "")
        folder = RunFolder(out / "toy-fig1" / called / slug(case))
        config = experiment.model_dump(exclude_none=True) | {"seeds": list(seeds)}
        held = ClientStats(np.array([5, 5, 2]), np.array([[5, 0], [5, 0], [0, 2]]), ("-1", "+1"))
        folder.create(config, held, ["accuracy"])
        rows = []
        for label in ("Theirs", "Ours"):
            for seed in seeds:
                for t in range(0, experiment.rounds + 1, 5):
                    numbers = {"gradients": 3 * t, "bytes_up": 123_456_789 * t, "wall_seconds": t / 3}
                    rows.append({"run": "toy", "algorithm": label, "seed": seed, "round": t, **numbers,
                                   "objective": value(label, seed, t)})  # fmt: skip
        folder.rewrite(config, [row | {"accuracy": None} for row in rows])
        folder.write_status([
            {"algorithm": a, "seed": s, "status": "finished", "round": experiment.rounds, "message": ""}
            for a in ("Theirs", "Ours") for s in seeds
        ])  # fmt: skip
