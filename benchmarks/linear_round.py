"""A FedAvg round on softmax regression: ours, the obvious loop over clients, and one centralised model.

C = 1000 clients, 60 features, 10 classes, K = 5 local steps, batches of 20, float32.
"""

from __future__ import annotations

import numpy as np
import torch
from timing import rounds_of
from turns import Clock, options

from proxfed import FedAvg, Federated, Linear, Softmax
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.regularisers import Zero

C, P, Q, K, B, M, ETA = 1000, 60, 10, 5, 20, 100, 0.05


def ours(data: Federated):
    problem = Linear(data, Softmax(), batch=B, dtype=torch.float32)
    return rounds_of(run_of(problem + Zero(), FedAvg(ETA, K), Stacked(problem.n, problem.d)))


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


def main() -> None:
    args = options(__doc__, ("linear",), contestant="proxfed")
    tune_process()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(C * M, P)), rng.integers(0, Q, C * M)
    data = Federated(A, b, np.full(C, M), classes=Q)
    clock = Clock()
    one_round = {"proxfed": ours, "loop": obvious_loop, "centralised": centralised}[args.contestant](data)
    clock.time(one_round, args.rounds, times=1 if args.contestant == "loop" else 20)
    clock.report()


if __name__ == "__main__":
    main()
