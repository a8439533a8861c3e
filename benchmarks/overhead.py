"""What the engine itself costs: microseconds a round on one client with one local step on a tiny problem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import side_by_side
from torch import Tensor

from proxfed import Depositum, DFedADMM, FedAvg, FedCEF, FedComposite, Federated, FedNAG, Linear, Squared
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.regularisers import L1
from proxfed.topologies import Complete
from proxfed.types import Local, Problem

ROUNDS = 300


def rounds(problem: Problem[Linear], algorithm):
    run = run_of(problem, algorithm, Stacked(problem.f.n, problem.f.d, Complete(problem.f.n)))
    t = 0

    def many() -> None:
        nonlocal t
        for _ in range(ROUNDS):
            t += 1
            run.round(t)

    return many


def gradients(local: Local, x: Tensor) -> None:
    for _ in range(ROUNDS):
        local.grad(x, 0)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    data = Federated.from_clients([(rng.normal(size=(10, 5)), rng.normal(size=10))])
    algorithms = {
        "fedavg": FedAvg(0.01, 1),
        "fednag": FedNAG(0.01, 0.5, 1),
        "fedcomposite": FedComposite(0.01, 1),
        "fedcef": FedCEF(0.01, 1),
        "depositum": Depositum(0.01),
        "dfedadmm": DFedADMM(0.01, 1, lam=0.1),
    }
    for batch in (None, 5):
        problem = Linear(data, Squared(), batch=batch) + L1(0.01)
        local = problem.f.local(1, range(1))
        x = problem.start(0)[None]
        contenders: dict[str, Callable[[], object]] = {"one gradient": partial(gradients, local, x)}
        contenders |= {name: rounds(problem, algorithm) for name, algorithm in algorithms.items()}
        seconds = side_by_side(contenders)
        shown = "   ".join(f"{name} {1e6 * s / ROUNDS:.0f}" for name, s in seconds.items())
        print(f"{'full gradients' if batch is None else 'minibatches'}, microseconds a round:   {shown}")


if __name__ == "__main__":
    main()
