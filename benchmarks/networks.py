"""Rounds of peers with networks: ours, the obvious loop over clients, and one centralised model over the same samples.

depositum    DEPOSITUM on a ring of 20, 600 samples each, DEPOSITUM's CNN, batch 64, T0 = 10, MCP
admm         DFedADMM on a ring of 100, 600 samples each, MLP 784-200-200-10, batch 32, one epoch a round

Samples are random: only their shapes matter. The obvious loop is what one writes first with nn.Module and torch.optim;
it has the same allocator settings as ours. `bench.py` lets them take turns; (a) to (c) are in peers/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from timing import rounds_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from turns import Clock, options

from proxfed import Depositum, DFedADMM, Federated
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.problems.neural.architectures import MODELS
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import MCP, Zero
from proxfed.topologies import Ring
from proxfed.types import Algorithm, Regulariser

Round = Callable[[], None]
M, ETA, LAM = 600, 0.05, 10.0
ALPHA, GAMMA, SPARSITY = 0.05, 0.5, MCP(1e-4, 10.0)


@dataclass(frozen=True)
class Setting:
    """Clients, their model, batch and local steps."""

    n: int
    model: str
    batch: int
    steps: int
    central: int
    """Batch of the centralised model: whichever is fastest."""


DENSE = Setting(100, "dfedadmm_mlp", 32, 19, 3200)
COMPOSITE = Setting(20, "depositum_cnn", 64, 10, 64)


def samples(n: int) -> Federated:
    rng = np.random.default_rng(0)
    A = rng.integers(0, 256, (n * M, 1, 28, 28), dtype=np.uint8)
    return Federated(A, rng.integers(0, 10, n * M), np.full(n, M), classes=10)


# ---- ours ----------------------------------------------------------------------------------------------------------


def ours(s: Setting, data: Federated, algorithm: Algorithm, h: Regulariser) -> Round:
    problem = Neural(data, s.model, batch=s.batch) + h
    return rounds_of(run_of(problem, algorithm, Stacked(problem.f.n, problem.f.d, Ring(s.n))))


# ---- the obvious loop ----------------------------------------------------------------------------------------------


def tensors(data: Federated) -> tuple[Tensor, Tensor]:
    return torch.tensor(data.features).float() / 255, torch.tensor(data.labels)


def minibatches(s: Setting, i: int) -> Iterator[Tensor]:
    """An epoch of client i, as rows of the pooled data."""
    for rows in torch.randperm(M).split(s.batch)[: s.steps]:
        yield i * M + rows


def gradient(model: nn.Module, x: Tensor, A: Tensor, b: Tensor) -> Tensor:
    vector_to_parameters(x, model.parameters())
    model.zero_grad()
    cross_entropy(model(A), b).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def start(s: Setting) -> tuple[nn.Module, Tensor]:
    model = MODELS[s.model](1, 28, 10)
    return model, parameters_to_vector(model.parameters()).detach().repeat(s.n, 1)


def mixed(x: Tensor) -> Tensor:
    return (x.roll(1, 0) + x + x.roll(-1, 0)) / 3


def loop_admm(s: Setting, data: Federated) -> Round:
    A, b = tensors(data)
    model, x = start(s)
    dual = torch.zeros_like(x)

    def one_round() -> None:
        nonlocal x
        z = torch.empty_like(x)
        for i in range(s.n):
            y = x[i].clone()
            for rows in minibatches(s, i):
                y -= ETA * (gradient(model, y.clone(), A[rows], b[rows]) - dual[i] + (y - x[i]) / LAM)
            z[i] = y - LAM * dual[i]
            dual[i] -= (y - x[i]) / LAM
        x = mixed(z)

    return one_round


def loop_depositum(s: Setting, data: Federated) -> Round:
    A, b = tensors(data)
    model, x = start(s)
    y, g, m = (torch.zeros_like(x) for _ in range(3))

    def one_round() -> None:
        nonlocal x, y, m
        orders = [list(minibatches(s, i)) for i in range(s.n)]
        for k in range(s.steps):
            m = GAMMA * m + (1 - GAMMA) * y
            x = SPARSITY.prox(x - ALPHA * m, ALPHA)
            x = mixed(x) if k == s.steps - 1 else x
            for i in range(s.n):
                rows = orders[i][k]
                new = gradient(model, x[i].clone(), A[rows], b[rows])
                y[i] += new - g[i]
                g[i] = new
            y = mixed(y) if k == s.steps - 1 else y

    return one_round


# ---- one model -----------------------------------------------------------------------------------------------------


def centralised(s: Setting, data: Federated) -> Round:
    """One model that sees as many samples, in the layout that is fastest."""
    A, b = tensors(data)
    model = MODELS[s.model](1, 28, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)

    def one_round() -> None:
        for rows in torch.randperm(s.n * M)[: s.n * s.steps * s.batch].split(s.central):
            optimiser.zero_grad()
            images = A[rows].contiguous(memory_format=torch.channels_last)
            cross_entropy(model(images), b[rows]).backward()
            optimiser.step()

    return one_round


SETTINGS: dict[str, tuple[Setting, Algorithm, Regulariser, Callable[[Setting, Federated], Round]]] = {
    "admm": (DENSE, DFedADMM(ETA, DENSE.steps, lam=LAM), Zero(), loop_admm),
    "depositum": (COMPOSITE, Depositum(ALPHA, gamma=GAMMA, T0=COMPOSITE.steps), SPARSITY, loop_depositum),
}


def main() -> None:
    args = options(__doc__, tuple(SETTINGS), contestant="proxfed")
    tune_process()
    torch.set_num_threads(args.threads)
    s, algorithm, h, loop = SETTINGS[args.workload]
    data = samples(s.n)
    clock = Clock()
    made = {
        "proxfed": lambda: ours(s, data, algorithm, h),
        "loop": lambda: loop(s, data),
        "centralised": lambda: centralised(s, data),
    }
    clock.time(made[args.contestant](), args.rounds)
    clock.report()


if __name__ == "__main__":
    main()
