"""FedNAG and its rivals on MNIST in plain PyTorch, without anything of proxfed but its reader: do the orders agree?

python benchmarks/plain_fednag.py [--model linear|logistic|cnn] [--workers 4] [--tau 4] [--batch 64] [--one 64]

IID data, step 0.01, momentum 0.9, as in FedNAG's Figs. 3 and 4. Prints the training loss of the averaged model at the
end and, with --watch, the first iteration at which the mean of FedNAG's workers has a loss below 0.5 and an accuracy
above 85 %, looked at every five iterations. --one is the batch of cNAG and cSGD, on one machine. The notes and causes
in results/fednag say what came out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from proxfed.data import read

ETA, GAMMA = 0.01, 0.9


def network(model: str) -> nn.Sequential:
    if model != "cnn":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def squared(s: Tensor, b: Tensor) -> Tensor:
    return (s - one_hot(b, 10)).square().sum(1).mean() / 2


class Task:
    """The data, shared out evenly, and gradients of any worker."""

    def __init__(self, model: str, workers: int, seed: int) -> None:
        data = read("mnist")
        A, self.b = torch.tensor(data.features).view(-1, 1, 28, 28) / 255, torch.tensor(data.labels)
        self.A = (A - 0.1307) / 0.3081 if model == "cnn" else A
        self.loss: Callable[[Tensor, Tensor], Tensor] = squared if model == "linear" else cross_entropy
        torch.manual_seed(seed)
        self.net, self.rng = network(model), np.random.default_rng(seed)
        self.parts = np.array_split(self.rng.permutation(len(self.b)), workers)
        self.seen = torch.as_tensor(self.rng.choice(len(self.b), 10_000, replace=False))
        self.start = parameters_to_vector(self.net.parameters()).detach()

    def grad(self, w: Tensor, rows: np.ndarray, batch: int) -> Tensor:
        vector_to_parameters(w, self.net.parameters())
        some = self.rng.choice(rows, batch)
        loss = self.loss(self.net(self.A[some]), self.b[some])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.net.parameters()))])

    @torch.no_grad()
    def look(self, w: Tensor, everything: bool = False) -> tuple[float, float]:
        """(loss, accuracy) on training data: on all of them, or on ten thousand."""
        vector_to_parameters(w, self.net.parameters())
        rows = torch.arange(len(self.b)) if everything else self.seen
        scores = torch.cat([self.net(self.A[some]) for some in rows.split(2000)])
        return float(self.loss(scores, self.b[rows])), float((scores.argmax(1) == self.b[rows]).double().mean())


def fednag(task: Task, tau: int, batch: int, steps: int, watch: bool) -> tuple[Tensor, dict[str, int]]:
    n = len(task.parts)
    w, v = task.start.repeat(n, 1), torch.zeros(n, len(task.start))
    first: dict[str, int] = {}
    for t in range(1, steps + 1):
        for i, rows in enumerate(task.parts):
            g = task.grad(w[i], rows, batch)
            v[i] = GAMMA * v[i] - ETA * g
            w[i] = w[i] + GAMMA * v[i] - ETA * g
        if t % tau == 0:
            w[:], v[:] = w.mean(0), v.mean(0)
        if watch and len(first) < 2 and t % 5 == 0:
            loss, accuracy = task.look(w.mean(0))
            if loss < 0.5:
                first.setdefault("loss 0.5", t)
            if accuracy > 0.85:
                first.setdefault("accuracy 85 %", t)
    return w.mean(0), first


def fedavg(task: Task, tau: int, batch: int, steps: int, gamma: float) -> Tensor:
    """With Nesterov momentum at the server, it is FedMom."""
    w, v = task.start, task.start
    for _ in range(steps // tau):
        mean = torch.zeros_like(w)
        for rows in task.parts:
            y = w.clone()
            for _ in range(tau):
                y -= ETA * task.grad(y, rows, batch)
            mean += y / len(task.parts)
        w, v = mean + gamma * (mean - v), mean
    return w


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("linear", "logistic", "cnn"), default="logistic")
    for name, default in {"workers": 4, "tau": 4, "batch": 64, "one": 64, "steps": 1000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="*", default=["cNAG", "FedNAG", "cSGD", "FedMom", "FedAvg"])
    parser.add_argument("--watch", action="store_true", help="look at FedNAG's mean model every five iterations")
    asked = parser.parse_args()

    def task(workers: int = asked.workers) -> Task:
        return Task(asked.model, workers, asked.seed)

    for method in asked.only:
        t, first = task(1 if method.startswith("c") else asked.workers), {}
        if method in ("cNAG", "FedNAG"):
            batch = asked.one if method == "cNAG" else asked.batch
            w, first = fednag(t, asked.tau, batch, asked.steps, asked.watch and method == "FedNAG")
        else:
            batch = asked.one if method == "cSGD" else asked.batch
            w = fedavg(t, asked.tau, batch, asked.steps, GAMMA if method == "FedMom" else 0.0)
        loss, accuracy = t.look(w, everything=True)
        print(
            f"{method}: loss {loss:.4f}, accuracy {accuracy:.4f}",
            *(f"{k} at {n}" for k, n in first.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
