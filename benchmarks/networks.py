"""Rounds on neural networks: ours, the obvious loop over clients, and one centralised model over the same samples.

fedavg_mlp   FedAvg, 100 clients x 600 samples, MLP 784-200-200-10, batch 32, one epoch a round
fedavg_cnn   FedAvg, 10 clients x 600 samples, CNN 5x5 32-64 (FedNAG's), batch 64, one epoch a round
ring_mlp     D-PSGD on a ring of 100 with a local epoch a round (DFedAvg); model, data and batch of fedavg_mlp
admm_mlp     DFedADMM on the same ring with a local epoch a round
depositum    DEPOSITUM on a ring of 20, 600 samples each, DEPOSITUM's CNN, batch 64, T0 = 10, MCP

Samples are random: only their shapes matter. The obvious loop is what one writes first with nn.Module and torch.optim;
it has the same allocator settings as ours. Everyone has a process of their own and takes turns with the others, a few
rounds one after the other at each turn, as in a run: ours with all threads, the others once with one and once with all,
of which the faster counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from math import inf
from statistics import median

import numpy as np
import torch
from timing import rounds_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.flop_counter import FlopCounterMode

from proxfed import Depositum, DFedADMM, FedAvg, Federated
from proxfed.algorithms.dfedavg import DFedAvg
from proxfed.engine.allocator import tune_process
from proxfed.engine.run import Run
from proxfed.engine.stacked import Stacked
from proxfed.problems.architectures import MODELS
from proxfed.problems.network import Model
from proxfed.regularisers import MCP, Zero
from proxfed.topologies import Ring
from proxfed.types import Algorithm, Regulariser, Star

Round = Callable[[], None]
ROUNDS = 3
"""Of a turn."""
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
CONVOLUTIONS = Setting(10, "fednag_cnn", 64, 10, 64)
COMPOSITE = Setting(20, "depositum_cnn", 64, 10, 64)


def samples(n: int) -> Federated:
    rng = np.random.default_rng(0)
    A = rng.integers(0, 256, (n * M, 1, 28, 28), dtype=np.uint8)
    return Federated(A, rng.integers(0, 10, n * M), np.full(n, M), classes=10)


# ---- ours ----------------------------------------------------------------------------------------------------------


def ours(s: Setting, data: Federated, algorithm: Algorithm, h: Regulariser) -> Round:
    problem = Model(data, s.model, h=h, batch=s.batch)
    topology = None if isinstance(algorithm, Star) else Ring(s.n)
    return rounds_of(Run(problem, algorithm, Stacked(problem.n, problem.d, topology)))


# ---- the obvious loop ----------------------------------------------------------------------------------------------


def tensors(data: Federated) -> tuple[Tensor, Tensor]:
    return torch.tensor(data.features).float() / 255, torch.tensor(data.labels)


def minibatches(s: Setting, i: int) -> Iterator[Tensor]:
    """An epoch of client i, as rows of the pooled data."""
    for rows in torch.randperm(M).split(s.batch)[: s.steps]:
        yield i * M + rows


def local_epoch(model: nn.Module, s: Setting, i: int, A: Tensor, b: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    for rows in minibatches(s, i):
        optimiser.zero_grad()
        cross_entropy(model(A[rows]), b[rows]).backward()
        optimiser.step()


def loop_fedavg(s: Setting, data: Federated) -> Round:
    A, b = tensors(data)
    model = MODELS[s.model](1, 28, 10)
    server = parameters_to_vector(model.parameters()).detach().clone()

    def one_round() -> None:
        nonlocal server
        total = torch.zeros_like(server)
        for i in range(s.n):
            vector_to_parameters(server.clone(), model.parameters())
            local_epoch(model, s, i, A, b)
            total += parameters_to_vector(model.parameters()).detach()
        server = total / s.n

    return one_round


def loop_ring(s: Setting, data: Federated) -> Round:
    A, b = tensors(data)
    models = [MODELS[s.model](1, 28, 10) for _ in range(s.n)]

    @torch.no_grad()
    def gossip() -> None:
        x = [parameters_to_vector(model.parameters()).clone() for model in models]
        for i, model in enumerate(models):
            vector_to_parameters((x[i - 1] + x[i] + x[(i + 1) % s.n]) / 3, model.parameters())

    def one_round() -> None:
        for i, model in enumerate(models):
            local_epoch(model, s, i, A, b)
        gossip()

    return one_round


def gradient(model: nn.Module, x: Tensor, A: Tensor, b: Tensor) -> Tensor:
    vector_to_parameters(x, model.parameters())
    model.zero_grad()
    cross_entropy(model(A), b).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


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


# ---- the limit -----------------------------------------------------------------------------------------------------


def centralised(s: Setting, data: Federated) -> Round:
    """One model that sees as many samples, in the layout that is fastest."""
    A, b = tensors(data)
    model = MODELS[s.model](1, 28, 10).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)

    def one_round() -> None:
        for rows in torch.randperm(s.n * M)[: s.n * s.steps * s.batch].split(s.central):
            optimiser.zero_grad()
            images = A[rows].contiguous(memory_format=torch.channels_last)
            cross_entropy(model(images), b[rows]).backward()
            optimiser.step()

    return one_round


def gigaflops(s: Setting) -> float:
    """Of a round: forward and backward of every minibatch."""
    model = MODELS[s.model](1, 28, 10)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(torch.zeros(s.batch, 1, 28, 28)), torch.zeros(s.batch, dtype=torch.int64)).backward()
    epoch = M / s.batch if s.steps * s.batch >= M else s.steps  # the last minibatch is smaller
    return counter.get_total_flops() * s.n * epoch / 1e9


def peak(threads: int) -> float:
    """GFLOP/s of a large matrix product: the best of ten."""
    torch.set_num_threads(threads)
    A, B = torch.rand(2, 2048, 2048)
    best = inf
    for _ in range(10):
        start = time.perf_counter()
        A @ B
        best = min(best, time.perf_counter() - start)
    return 2 * 2048**3 / best / 1e9


# ---- side by side --------------------------------------------------------------------------------------------------

SETTINGS: dict[str, tuple[Setting, Algorithm, Regulariser, Callable[[Setting, Federated], Round]]] = {
    "fedavg_mlp": (DENSE, FedAvg(ETA, DENSE.steps), Zero(), loop_fedavg),
    "fedavg_cnn": (CONVOLUTIONS, FedAvg(ETA, CONVOLUTIONS.steps), Zero(), loop_fedavg),
    "ring_mlp": (DENSE, DFedAvg(ETA, DENSE.steps), Zero(), loop_ring),
    "admm_mlp": (DENSE, DFedADMM(ETA, DENSE.steps, lam=LAM), Zero(), loop_admm),
    "depositum": (COMPOSITE, Depositum(ALPHA, gamma=GAMMA, T0=COMPOSITE.steps), SPARSITY, loop_depositum),
}


def contender(name: str, who: str) -> Round:
    s, algorithm, h, loop = SETTINGS[name]
    data = samples(s.n)
    if who == "proxfed":
        return ours(s, data, algorithm, h)
    return loop(s, data) if who == "obvious loop" else centralised(s, data)


def take_turns(name: str, who: str, threads: int) -> None:
    """A contender's own process: a turn for every line that arrives, and the seconds of its rounds back."""
    tune_process()
    torch.set_num_threads(threads)
    one_round = contender(name, who)
    print("ready", flush=True)
    for _ in sys.stdin:
        times = [time.perf_counter()]
        for _ in range(ROUNDS):
            one_round()
            times.append(time.perf_counter())
        print(*(after - before for before, after in pairwise(times)), flush=True)


class Process:
    """A contender as the others see it."""

    def __init__(self, name: str, who: str, threads: int) -> None:
        self.who, self.threads = who, threads
        waiting = {} if who == "proxfed" else {"GOMP_SPINCOUNT": "300000"}  # what it is when nobody asks for passive
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--turns-of", name, who, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | waiting,
        )
        self._hear()

    def turn(self) -> list[float]:
        """Seconds of some rounds."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return [float(seconds) for seconds in self._hear().split()]

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def compare(name: str, turns: int, threads: int) -> None:
    others = [(who, t) for who in ("obvious loop", "centralised") for t in sorted({1, threads})]
    processes = [Process(name, who, t) for who, t in [("proxfed", threads), *others]]
    first = [p.turn()[0] for p in processes]
    later = [[p.turn() for p in processes] for _ in range(turns)]
    for p in processes:
        p.process.kill()
    medians = [median(chain(*times)) for times in zip(*later, strict=True)]
    best = {}
    for p, seconds in zip(processes, medians, strict=True):
        best[p.who] = min(best.get(p.who, inf), seconds)
    shown = "  ".join(f"{p.who} ({p.threads}) {t:.2f}" for p, t in zip(processes, medians, strict=True))
    theirs, limit = (best[who] / best["proxfed"] for who in ("obvious loop", "centralised"))
    print(f"{name}: {shown}; the loop takes {theirs:.2f}x, a centralised model {limit:.2f}x our time", flush=True)
    work, speed = gigaflops(SETTINGS[name][0]), peak(threads)
    print(
        f"    our first round took {first[0] / best['proxfed']:.2f}x a later one; {work:.0f} GFLOP at the {speed:.0f} "
        f"GFLOP/s of a large matrix product are {work / speed:.2f} s, {work / speed / best['proxfed']:.0%} of our time",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help=f"{', '.join(SETTINGS)}; all by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--turns-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns_of:
        name, who, threads = options.turns_of
        take_turns(name, who, int(threads))
        return
    print(
        f"threads {options.threads}, float32; seconds a round (threads in brackets), "
        f"median of {options.turns} turns of {ROUNDS} rounds"
    )
    for name in options.settings or SETTINGS:
        compare(name, options.turns, options.threads)


if __name__ == "__main__":
    main()
