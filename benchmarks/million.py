"""A million clients: does a round cost what its cohort costs?

in memory    d = 50, one sample a client, FedAvg: what the engine does beside arithmetic
on demand    d = 1000, 10 samples a client that are read when it takes part, batches of 5, 3 local steps

n = 10^4 against n = 10^6, cohort 1000; one round of each in turn, medians. Then the peak of a process of its own with
n = 10^6, against 1 GiB plus the state of the clients that were met; and that with a checkpoint after every round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import rounds_of, side_by_side
from turns import peak_rss_mb

from proxfed import FedAvg, FedCEF, FedComposite, Federated, Linear, Logistic, Scaffold
from proxfed.compressors import TopK
from proxfed.data import OnDemand
from proxfed.engine.allocator import tune_process
from proxfed.engine.compatibility import check_combination
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.star import StarRun
from proxfed.engine.start import run_of
from proxfed.harness.folder.checkpoint import TaskFolder
from proxfed.participation import UniformSampling
from proxfed.regularisers import Zero
from proxfed.types import Algorithm, Problem

FEW, MANY, COHORT, D, SAMPLES = 10**4, 10**6, 1000, 1000, 10
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: FedAvg(0.1, 3),
    "scaffold": lambda: Scaffold(0.1, 3),
    "fedcomposite": lambda: FedComposite(0.1, 3, partial=True),
    "fedcef": lambda: FedCEF(0.1, 3, compressor=TopK(k=10), partial=True),
}


def in_memory(n: int) -> Run:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(n, 50)).astype(np.float32)
    data = Federated(A, np.where(A[:, 0] > 0, np.float32(1), np.float32(-1)), np.ones(n, np.int64))
    p = Linear(data, Logistic(), dtype=torch.float32)
    return run_of(p + Zero(), FedAvg(0.1, 3), Stacked(n, p.d), UniformSampling(COHORT))


def problem(n: int) -> Problem[Linear]:
    """Clients whose samples are rows of one pool, from a place of their own on, turned by their own sign."""
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(4096, D)) / D**0.5
    labels = np.where(pool @ rng.normal(size=D) > 0, 1.0, -1.0)

    def read(i: int) -> tuple[np.ndarray, np.ndarray]:
        first = i * 7919 % (len(pool) - SAMPLES)
        return pool[first : first + SAMPLES], labels[first : first + SAMPLES]

    return Linear(OnDemand(read, np.full(n, SAMPLES), cache=1 << 26), Logistic(), batch=5) + Zero()


def begun(name: str, n: int) -> StarRun:
    p, algorithm, some = problem(n), ALGORITHMS[name](), UniformSampling(COHORT)
    check_combination(p, algorithm, None, some)
    return StarRun(p, algorithm, Stacked(n, p.f.d), some)


def speed(name: str, begin: Callable[[int], Run], turns: int) -> None:
    few, start = begin(FEW), time.perf_counter()
    many = begin(MANY)
    started = time.perf_counter() - start
    found = side_by_side({"few": rounds_of(few), "many": rounds_of(many)}, turns)
    print(
        f"{name}: {1e3 * found['few']:.1f} ms with {FEW:,} clients, {1e3 * found['many']:.1f} ms with {MANY:,}: "
        f"{found['many'] / found['few']:.2f} times; made in {started:.2f} s",
        flush=True,
    )


def memory(name: str, rounds: int, checkpoints: bool) -> None:
    """In this process."""
    tune_process()
    run = begun(name, MANY)
    with tempfile.TemporaryDirectory() as place:
        files = TaskFolder(Path(place), "million", 0, "", [])
        files.path.mkdir()
        for t in range(1, rounds + 1):
            run.round(t)
            if checkpoints:
                files.save(t, {}, run.dump(clients=False), run.changes())
    peak = peak_rss_mb() * 2**20
    state = run.rows.met * run.rows.row_bytes
    allowed = 2**30 + state
    saved = ", a checkpoint after each" if checkpoints else ""
    print(
        f"{name}: after {rounds} rounds{saved}: {run.rows.met:,} clients have a state, {state / 1e9:.2f} GB; "
        f"peak {peak / 1e9:.2f} GB of {allowed / 1e9:.2f} GB allowed ({peak / allowed:.0%})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", help=f"{', '.join(ALGORITHMS)}; all by default")
    parser.add_argument("--turns", type=int, default=31, help="rounds that are timed (31)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds whose memory is measured (200)")
    parser.add_argument("--here", choices=["memory", "checkpoints"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        memory(options.algorithms[0], options.rounds, options.here == "checkpoints")
        return
    tune_process()
    print(f"threads {torch.get_num_threads()}, cohort {COHORT}")
    speed("fedavg, in memory", in_memory, options.turns)
    for name in options.algorithms or ALGORITHMS:
        speed(name, partial(begun, name), options.turns)
        for here in ("memory", "checkpoints"):
            again = [sys.executable, __file__, name, "--rounds", str(options.rounds), "--here", here]
            subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
