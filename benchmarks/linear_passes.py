"""Full gradients of linear models: how many reads of the data one takes, and what a non-zero costs where most are zero.

gradient   30 x 2000 x 60, logistic, float64, beside one read of the data and the products of torch; and with an eighth
           and eight times as many samples, which are in the cache for sure, and for sure not
sparse     10^6 x 10^5 with 10^7 non-zeros on ten clients: a round

python benchmarks/linear_passes.py [gradient sparse] [--threads 1 2] [--turns 15] [--least]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import torch
from timing import rounds_of, side_by_side

from proxfed import Federated, Linear, Logistic
from proxfed.algorithms import ProxNewton
from proxfed.data import SparseRows
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.machine import numba_is_used, over_threads
from proxfed.problems.linear.products import Products
from proxfed.regularisers import Zero


def full_gradients(threads: list[int], turns: int, least: bool) -> None:
    for m in (250, 2000, 16000):
        full_gradient(m, threads, turns, least)


def full_gradient(m: int, threads: list[int], turns: int, least: bool) -> None:
    """Clients are shared out over the threads as in a round."""
    n, p, took = 30, 60, "least" if least else "median"
    rng = np.random.default_rng(0)
    data = Federated(rng.normal(size=(n * m, p)), np.sign(rng.normal(size=n * m)), np.full(n, m))
    problem, x = Linear(data, Logistic(), l2=0.01), torch.tensor(rng.normal(size=p)) / 10
    A, network, products = problem.A, Stacked(n, problem.d), Products()
    print(f"{n} x {m} x {p}, logistic, float64 ({A.nbytes / 1e6:.1f} MB); milliseconds, {took} of {turns}")
    one_thread: dict[str, float] = {}

    def shared_out(work):
        blocks = network.blocks(range(n), problem.gradient_size)
        return lambda: over_threads(lambda some: [work(ids) for ids in some], blocks)

    for count in threads:
        torch.set_num_threads(count)
        contenders = {
            "one read": shared_out(lambda ids: A[ids.start * m : ids.stop * m].sum()),
            "gradient": shared_out(lambda ids: problem.local(0, ids).full_grad(x)),
            "value and gradient": shared_out(lambda ids: problem.local(0, ids).value_and_grad(x)),
            "products of torch": shared_out(lambda ids: products.full(problem, ids, x, gradients=True)),
        }
        seconds = side_by_side(contenders, turns, min if least else median)
        one_thread = one_thread or seconds
        faster = {name: one_thread[name] / s for name, s in seconds.items()}
        shown = "   ".join(f"{name} {1e3 * s:.2f} (x{faster[name]:.2f})" for name, s in seconds.items())
        print(f"threads {count}:   {shown}   the gradient takes {seconds['gradient'] / seconds['one read']:.2f} reads")


def sparse_round(threads: list[int], turns: int, least: bool) -> None:
    n, N, p, each = 10, 10**6, 10**5, 10
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, p, N * each), rng.normal(size=N * each)
    A = SparseRows(values, columns, np.arange(0, N * each + 1, each), p)
    problem = Linear(Federated(A, np.sign(rng.normal(size=N)), np.full(n, N // n)), Logistic(), l2=1e-4)
    print(f"{N} x {p} with {N * each} non-zeros on {n} clients, logistic; milliseconds a round")
    for count in threads:
        torch.set_num_threads(count)
        seconds = side_by_side(
            {"ours": rounds_of(run_of(problem + Zero(), ProxNewton(1.0), Stacked(n, p)))},
            turns,
            min if least else median,
        )
        print(f"threads {count}:   {1e3 * seconds['ours']:.0f}")
    start = time.perf_counter()
    problem.smoothness()
    print(f"its smoothness constants take {time.perf_counter() - start:.1f} s, once")


PARTS = {"gradient": full_gradients, "sparse": sparse_round}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--least", action="store_true", help="of the turns, not their median: for a machine with load")
    options = parser.parse_args()
    tune_process()
    print(f"kernels: {'numba' if numba_is_used() else 'torch'}")
    for name in options.parts:
        PARTS[name](options.threads, options.turns, options.least)


if __name__ == "__main__":
    main()
