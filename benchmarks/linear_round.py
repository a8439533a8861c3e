"""Linear models: how fast a round, a full gradient and a pass over sparse features are.

round      FedAvg on softmax regression, C = 1000 clients, 60 features, 10 classes, K = 5 local steps, batches of 20,
           float32: ours, the obvious loop over clients, and one centralised model
gradient   the full gradients of 30 clients with 2000 samples of 60 features, logistic, float64: the compiled pass, the
           products of torch, and reading the data once
sparse     a ProxNewton round (value and full gradient) on 10^6 samples of 10^5 features, 10^7 of them not zero

python benchmarks/linear_round.py [round gradient sparse]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from timing import rounds_of, side_by_side

from proxfed import FedAvg, Federated, Linear, Logistic, Softmax
from proxfed.algorithms import ProxNewton
from proxfed.data import SparseRows
from proxfed.engine.allocator import tune_process
from proxfed.engine.run import Run
from proxfed.engine.stacked import Stacked
from proxfed.problems.passes import numba_is_used
from proxfed.problems.products import Products
from proxfed.threads import over_threads

C, P, Q, K, B, M, ETA = 1000, 60, 10, 5, 20, 100, 0.05


def ours(data: Federated):
    problem = Linear(data, Softmax(), batch=B, dtype=torch.float32)
    return rounds_of(Run(problem, FedAvg(ETA, K), Stacked(problem.n, problem.d)))


def obvious_loop(data: Federated):
    """What one writes first: a module and an optimiser, client after client."""
    A = torch.tensor(data.features, dtype=torch.float32)
    b = torch.tensor(data.labels)
    model = torch.nn.Linear(P, Q, bias=False)
    torch.nn.init.zeros_(model.weight)
    server = model.weight.detach().clone()
    loss = torch.nn.CrossEntropyLoss()

    def one_round() -> None:
        nonlocal server
        total = torch.zeros_like(server)
        for i in range(C):
            with torch.no_grad():
                model.weight.copy_(server)
            optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
            for _ in range(K):
                rows = i * M + torch.randint(M, (B,))
                optimiser.zero_grad()
                loss(model(A[rows]), b[rows]).backward()
                optimiser.step()
            total += model.weight.detach()
        server = total / C

    return one_round


def centralised(data: Federated):
    """One model that takes K steps over the samples that all clients of a step use together."""
    A = torch.tensor(data.features, dtype=torch.float32)
    b = torch.tensor(data.labels)
    model = torch.nn.Linear(P, Q, bias=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    loss = torch.nn.CrossEntropyLoss()

    def one_round() -> None:
        for _ in range(K):
            rows = torch.randint(len(A), (C * B,))
            optimiser.zero_grad()
            loss(model(A[rows]), b[rows]).backward()
            optimiser.step()

    return one_round


def fedavg_round(threads: list[int], turns: int) -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(C * M, P)), rng.integers(0, Q, C * M)
    data = Federated(A, b, np.full(C, M), classes=Q)
    print(f"{C} clients, softmax {P}x{Q}, K = {K}, batch {B}, float32; milliseconds a round, median of {turns}")
    for count in threads:
        torch.set_num_threads(count)
        contenders = {"proxfed": ours(data), "obvious loop": obvious_loop(data), "centralised": centralised(data)}
        seconds = side_by_side(contenders, turns)
        shown = "   ".join(f"{name} {1e3 * s:.1f}" for name, s in seconds.items())
        loop, centre = (seconds[name] / seconds["proxfed"] for name in ("obvious loop", "centralised"))
        print(f"threads {count}:   {shown}   the loop takes {loop:.0f}x, a centralised model {centre:.2f}x our time")


def full_gradient(threads: list[int], turns: int) -> None:
    """Clients are shared out over the threads as in a round."""
    n, m, p = 30, 2000, 60
    rng = np.random.default_rng(0)
    data = Federated(rng.normal(size=(n * m, p)), np.sign(rng.normal(size=n * m)), np.full(n, m))
    problem, x = Linear(data, Logistic(), l2=0.01), torch.tensor(rng.normal(size=p)) / 10
    A, network, products = problem.A, Stacked(n, problem.d), Products(problem)
    print(f"{n} x {m} x {p}, logistic, float64 ({A.nbytes / 1e6:.1f} MB); milliseconds, median of {turns}")

    def shared_out(work):
        blocks = network.blocks(range(n), problem.gradient_size)
        return lambda: over_threads(lambda some: [work(ids) for ids in some], blocks)

    for count in threads:
        torch.set_num_threads(count)
        contenders = {
            "one read": shared_out(lambda ids: A[ids.start * m : ids.stop * m].sum()),
            "gradient": shared_out(lambda ids: problem.local(0, ids).full_grad(x)),
            "value and gradient": shared_out(lambda ids: problem.local(0, ids).value_and_grad(x)),
            "products of torch": shared_out(lambda ids: products.full(ids, x, gradients=True)),
        }
        seconds = side_by_side(contenders, turns)
        shown = "   ".join(f"{name} {1e3 * s:.2f}" for name, s in seconds.items())
        print(f"threads {count}:   {shown}   the gradient takes {seconds['gradient'] / seconds['one read']:.2f} reads")


def sparse_round(threads: list[int], turns: int) -> None:
    n, N, p, each = 10, 10**6, 10**5, 10
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, p, N * each), rng.normal(size=N * each)
    A = SparseRows(values, columns, np.arange(0, N * each + 1, each), p)
    problem = Linear(Federated(A, np.sign(rng.normal(size=N)), np.full(n, N // n)), Logistic(), l2=1e-4)
    print(f"{N} x {p} with {N * each} non-zeros on {n} clients, logistic; milliseconds a round, median of {turns}")
    for count in threads:
        torch.set_num_threads(count)
        seconds = side_by_side({"ours": rounds_of(Run(problem, ProxNewton(1.0), Stacked(n, p)))}, turns)
        print(f"threads {count}:   {1e3 * seconds['ours']:.0f}")
    start = time.perf_counter()
    problem.smoothness()
    print(f"its smoothness constants take {time.perf_counter() - start:.1f} s, once")


PARTS = {"round": fedavg_round, "gradient": full_gradient, "sparse": sparse_round}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    tune_process()
    print(f"kernels: {'numba' if numba_is_used() else 'torch'}")
    for name in options.parts:
        PARTS[name](options.threads, options.turns)


if __name__ == "__main__":
    main()
