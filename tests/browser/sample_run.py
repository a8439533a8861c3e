"""A made-up run that exercises every part of the report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.report.client_stats import ClientStats


def sample_report(folder: Path) -> Path:
    """The page about it."""
    sample_folder(folder / "sample")
    return Results.read(folder / "sample").report(folder / "sample.html")


def sample_folder(path: Path) -> None:
    """A made-up run: six algorithms, one of which diverges, three seeds, 30 clients, a weight matrix and a bias."""
    draw = np.random.default_rng(0)
    rates = {"FedCEF, top-k 10 %": 0.06, "ZHJ": 0.045, "DEPOSITUM": 0.03, "FedAvg": 0.012, "Scaffold": 0.05}
    algorithms = list(rates.items())
    config = {
        "name": "sample",
        "description": "A made-up run of sparse multinomial regression that exercises every part of the report.",
        "seeds": [0, 1, 2],
        "problem": {"kind": "linear", "clients": 30, "l1": 0.002, "heterogeneity": {"kind": "dirichlet", "alpha": 0.1}},
        "algorithms": [{"label": a, "name": a.split(",")[0].lower(), "eta": r, "local_steps": 5} for a, r in algorithms]
        + [{"label": "ZHJ, step too large", "name": "zhj", "eta": 4.0, "local_steps": 5}],
    }
    folder = RunFolder(path)
    counts = np.ceil(draw.dirichlet(np.full(10, 0.2), 30) * draw.lognormal(5, 1, (30, 1)) - 0.5).astype(int)
    folder.create(config, ClientStats(counts.sum(axis=1), counts, tuple("0123456789")), ["accuracy"])
    rows, status = [], []
    for label, rate in [*algorithms, ("ZHJ, step too large", -0.2)]:
        floor = 2e-3 if label == "FedAvg" else 1e-12
        size = 0.2 if "top-k" in label else 1.0
        for seed in range(3):
            last = 60 if rate < 0 else 600
            for t in range(0, last + 1, 4):
                gap = max(0.6 * math.exp(-rate * t + 0.3 * draw.normal()), floor * math.exp(0.2 * draw.normal()))
                bytes_each = int(30 * 7850 * 8 * t)
                graph = label == "DEPOSITUM"
                rows.append({
                    "run": "sample", "algorithm": label, "seed": seed, "round": t,
                    "gradients": 150 * t, "proxes": 150 * t,
                    "bytes_up": None if graph else int(bytes_each * size),
                    "bytes_down": None if graph else bytes_each,
                    "bytes_edge": 4 * bytes_each if graph else None,
                    "bytes_best": int(bytes_each * (4 if graph else 0.8 * (1 + size))),
                    "wall_seconds": 0.004 * t * (1 + 0.1 * seed), "objective": 0.42 + gap, "gap": gap,
                    "stationarity": math.sqrt(gap) * 0.3, "consensus": gap * 1e-2 if graph else None,
                    "nonzeros": int(900 + 6900 * min(1, gap)), "accuracy": 0.91 - 0.5 * min(1, gap),
                })  # fmt: skip
            weights = draw.normal(size=7850) * (draw.random(7850) < (1.0 if label == "FedAvg" else 0.12))
            blocks = [("weight", 0, 7840, (10, 784)), ("bias", 7840, 7850, (10,))]
            status.append({
                "algorithm": label, "seed": seed, "status": "diverged" if rate < 0 else "finished", "round": last,
                "message": "", "model": folder.write_model(label, seed, torch.tensor(weights), blocks),
            })  # fmt: skip
    folder.rewrite(folder.config(), rows)
    folder.write_status(status)
