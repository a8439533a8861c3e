"""Cost of a round against the number of clients and the dimension: it should grow linearly in both."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from timing import rounds_of, side_by_side

from proxfed import Depositum, DFedADMM, FedAvg, FedCEF, Federated, Linear, Squared
from proxfed.compressors import TopK
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.regularisers import L1
from proxfed.topologies import Ring
from proxfed.types import Algorithm

SAMPLES, BATCH, K = 10, 5, 2


def rounds(n: int, d: int, name: str):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n * SAMPLES, d), dtype=np.float32)
    data = Federated(features, rng.standard_normal(n * SAMPLES), np.full(n, SAMPLES))
    problem = Linear(data, Squared(), batch=BATCH, dtype=torch.float32) + L1(0.01)
    algorithms: dict[str, Algorithm] = {
        "fedavg": FedAvg(1e-3, K),
        "fedcef": FedCEF(1e-3, K, compressor=TopK(fraction=0.1)),
        "depositum": Depositum(1e-3, T0=K),
        "dfedadmm": DFedADMM(1e-3, K, lam=1e-2),
    }
    return rounds_of(run_of(problem, algorithms[name], Stacked(n, d, Ring(n))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000, 100_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(1)  # the cost itself; where other work shares the cores, threads that wait would drown it
    names = ("fedavg", "fedcef", "depositum", "dfedadmm")
    print(f"least squares, {SAMPLES} samples a client, batch {BATCH}, {K} local steps, float32")
    print("milliseconds a round (microseconds per client)")
    for title, sizes in (
        ("clients, d = 60", [(n, 60) for n in options.clients]),
        ("d, 100 clients", [(100, d) for d in options.dimensions]),
    ):
        print(f"\n{title:>16}" + "".join(f"{name:>20}" for name in names))
        for n, d in sizes:
            cells = []
            for name in names:
                seconds = side_by_side({name: rounds(n, d, name)}, options.turns)[name]
                cells.append(f"{1e3 * seconds:10.2f} ({1e6 * seconds / n:6.1f})")
            print(f"{n if 'clients, d' in title else d:>16,}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
