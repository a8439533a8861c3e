"""FedNAG and its rivals in plain PyTorch, without anything of proxfed but its reader: do the orders agree?

python benchmarks/plain_fednag.py [--model linear|logistic|cnn|vgg16_eighth] [--data mnist|cifar10|cifar100]
    [--workers 4] [--tau 4 ...] [--gamma 0.9] [--batch 64] [--one 64] [--steps 1000] [--only FedNAG ...] [--watch]

IID data and step 0.01, as in FedNAG's Figs. 3 and 4. Prints the loss of the averaged model at the end, on training and
on test data, and, with --watch, the first iteration at which the mean of FedNAG's workers has a loss below 0.5 and an
accuracy above 85 % on a thousand test samples, looked at every five iterations, between aggregations, too. --one is the
batch of cNAG and cSGD, on one machine. The notes and causes in results/fednag say what came out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from proxfed.data import read

ETA = 0.01


@cache
def load(data: str, standard: bool) -> list[tuple[Tensor, Tensor]]:
    """Images and labels, to train and to test; pixels are in 0 .. 1, or each channel has mean 0 and variance 1."""
    held, (channels, side) = read(data), (1, 28) if data == "mnist" else (3, 32)
    assert held.test is not None
    pairs = [
        (torch.tensor(A).view(-1, channels, side, side) / 255, b) for A, b in ((held.features, held.labels), held.test)
    ]
    std, mean = torch.std_mean(pairs[0][0], (0, 2, 3), keepdim=True) if standard else (1, 0)
    return [((A - mean) / std, torch.tensor(b).long()) for A, b in pairs]


def network(model: str, channels: int, side: int, classes: int) -> nn.Sequential:
    if model == "vgg16_eighth":
        return vgg16_eighth(channels, classes)
    if model != "cnn":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, classes))
    inside = 64 * (((side - 4) // 2 - 4) // 2) ** 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(inside, 500), nn.ReLU(), nn.Linear(500, classes),
    )  # fmt: skip


def vgg16_eighth(channels: int, classes: int) -> nn.Sequential:
    """VGG16 for images of 32x32 with an eighth of the channels and He's normal weights."""
    layers: list[nn.Module] = []
    inside = channels
    for width, depth in ((8, 2), (16, 2), (32, 3), (64, 3), (64, 3)):
        for _ in range(depth):
            conv = nn.Conv2d(inside, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)
            layers += [conv, nn.ReLU()]
            inside = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inside, classes))


def squared(s: Tensor, b: Tensor) -> Tensor:
    return (s - one_hot(b, 10)).square().sum(1).mean() / 2


class Task:
    """The data, shared out evenly, and gradients of any worker."""

    def __init__(self, data: str, model: str, workers: int, seed: int) -> None:
        (self.A, self.b), self.test = load(data, model in ("cnn", "vgg16_eighth"))
        channels, side = self.A.shape[1:3]
        self.loss: Callable[[Tensor, Tensor], Tensor] = squared if model == "linear" else cross_entropy
        torch.manual_seed(seed)
        self.net, self.rng = network(model, channels, side, int(self.b.max()) + 1), np.random.default_rng(seed)
        self.parts = np.array_split(self.rng.permutation(len(self.b)), workers)
        self.start = parameters_to_vector(self.net.parameters()).detach()

    def grad(self, w: Tensor, rows: np.ndarray, batch: int) -> Tensor:
        vector_to_parameters(w, self.net.parameters())
        some = self.rng.choice(rows, batch)
        loss = self.loss(self.net(self.A[some]), self.b[some])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.net.parameters()))])

    @torch.no_grad()
    def look(self, w: Tensor, A: Tensor, b: Tensor) -> tuple[float, float]:
        """(loss, accuracy)"""
        vector_to_parameters(w, self.net.parameters())
        scores = torch.cat([self.net(some) for some in A.split(1000)])
        return float(self.loss(scores, b)), float((scores.argmax(1) == b).double().mean())


def fednag(task: Task, tau: int, gamma: float, batch: int, steps: int, watch: bool) -> tuple[Tensor, dict[str, int]]:
    n = len(task.parts)
    w, v = task.start.repeat(n, 1), torch.zeros(n, len(task.start))
    first: dict[str, int] = {}
    for t in range(1, steps + 1):
        for i, rows in enumerate(task.parts):
            g = task.grad(w[i], rows, batch)
            v[i] = gamma * v[i] - ETA * g
            w[i] = w[i] + gamma * v[i] - ETA * g
        if t % tau == 0:
            w[:], v[:] = w.mean(0), v.mean(0)
        if watch and len(first) < 2 and t % 5 == 0:
            loss, accuracy = task.look(w.mean(0), *(part[:1000] for part in task.test))
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
    parser.add_argument("--model", choices=("linear", "logistic", "cnn", "vgg16_eighth"), default="logistic")
    parser.add_argument("--data", choices=("mnist", "cifar10", "cifar100"), default="mnist")
    for name, default in {"workers": 4, "batch": 64, "one": 64, "steps": 1000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tau", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--gamma", type=float, default=0.9)
    parser.add_argument("--only", nargs="+", default=["cNAG", "FedNAG", "cSGD", "FedMom", "FedAvg"])
    parser.add_argument("--watch", action="store_true", help="look at FedNAG's mean model every five iterations")
    asked = parser.parse_args()
    for seed, tau, method in product(asked.seeds, asked.tau, asked.only):
        one, watch = method in ("cNAG", "cSGD"), asked.watch and method == "FedNAG"
        t, batch = Task(asked.data, asked.model, 1 if one else asked.workers, seed), asked.one if one else asked.batch
        first: dict[str, int] = {}
        if method in ("cNAG", "FedNAG"):
            w, first = fednag(t, tau, asked.gamma, batch, asked.steps, watch)
        else:
            w = fedavg(t, tau, batch, asked.steps, asked.gamma if method == "FedMom" else 0.0)
        train, test = t.look(w, t.A[::30], t.b[::30]), t.look(w, *t.test)
        print(
            f"seed {seed}, tau = {tau}, {method}: loss {train[0]:.4f}, of the test data {test[0]:.4f}, "
            f"accuracy {train[1]:.4f} and {test[1]:.4f}",
            *(f"{k} at {n}" for k, n in first.items()),
            sep=", ",
            flush=True,
        )


if __name__ == "__main__":
    main()
