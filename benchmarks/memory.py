"""Peak resident memory of a run against what its state needs.

resnet    DEPOSITUM on a ring of 10, ResNet-18 on images 3 x 32 x 32, batch 64, T0 = 2, MCP
mlp       DFedADMM on a ring of 1000, MLP 784-200-200-10, batch 32, 3 local steps

The bound is 1.5 times the state (vectors of it x clients x d x 4 bytes) plus the data plus 1 GiB. Each runs two rounds
in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import numpy as np
import torch
from turns import peak_rss_mb

from proxfed import Depositum, DFedADMM, Federated
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.engine.states import flatten
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import MCP, Zero
from proxfed.topologies import Ring

GB = 1e9


def images(n: int, m: int, channels: int, side: int) -> Federated:
    rng = np.random.default_rng(0)
    A = rng.integers(0, 256, (n * m, channels, side, side), dtype=np.uint8)
    return Federated(A, rng.integers(0, 10, n * m), np.full(n, m), classes=10)


def resnet() -> Run:
    problem = Neural(images(10, 5000, 3, 32), "resnet18", batch=64) + MCP(1e-4, 10.0)
    return run_of(problem, Depositum(0.05, T0=2), Stacked(10, problem.f.d, Ring(10)))


def mlp() -> Run:
    problem = Neural(images(1000, 60, 1, 28), "dfedadmm_mlp", batch=32)
    return run_of(problem + Zero(), DFedADMM(0.1, 3, lam=10.0), Stacked(1000, problem.d, Ring(1000)))


SETTINGS = {"resnet": resnet, "mlp": mlp}


def measure(name: str) -> None:
    tune_process()
    run = SETTINGS[name]()
    for t in (1, 2):
        run.round(t)
    peak = peak_rss_mb() * 2**20
    vectors = flatten(run.state)
    state = sum(x.nbytes for x in vectors.values())
    assert run.problem.f.data is not None
    data = run.problem.f.data.features.nbytes
    bound = 1.5 * state + data + 2**30
    print(
        f"{name}: {len(vectors)} vectors of {run.problem.f.n} x {run.problem.f.d:,}, state {state / GB:.2f} GB, "
        f"data {data / GB:.2f} GB; peak {peak / GB:.2f} GB of {bound / GB:.2f} GB allowed ({peak / bound:.0%})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help=f"{', '.join(SETTINGS)}; all by default")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.here)
        return
    print(f"threads {torch.get_num_threads()}, float32")
    for name in options.settings or SETTINGS:
        subprocess.run([sys.executable, __file__, "--here", name], check=True)


if __name__ == "__main__":
    main()
