"""DEPOSITUM on MNIST in plain PyTorch, with only the reader and the partition of proxfed: do clients drift there, too?

python benchmarks/plain_depositum.py [--clients 10] [--graph ring|complete|star] [--T0 20] [--option I|II]
    [--iterations 200] [--batch 64] [--alpha 0.05] [--seeds 0 1 2]

Algorithm 1 line by line, with the paper's network, Dir(1) and MCP, as in its Figs. 5 and 6. Prints, for the mean of the
clients' models, the loss and the accuracy on the test data, and how far the clients lie apart, (1/n) sum_i |x_i - mean
x|^2, after every fifth of the iterations. results/depositum/fig5.causes.toml and fig6.causes.toml say what came out.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from proxfed.data import read
from proxfed.data.partitions import DirichletByClass

BETA, GAMMA, WEIGHT, THETA = 0.5, 0.5, 1e-4, 10.0


def weights(graph: str, n: int) -> Tensor:
    """1 / (1 + the larger degree) for each edge; what is left of a row stays with its client."""
    W = torch.zeros(n, n)
    for i in range(n):
        for j in {"ring": [(i + 1) % n], "complete": range(i + 1, n), "star": [0]}[graph]:
            if i != j:
                W[i, j] = W[j, i] = {"ring": 1 / 3, "complete": 1 / n, "star": 1 / n}[graph]
    return W + torch.diag(1 - W.sum(1))


def prox(v: Tensor, step: float) -> Tensor:
    """Of MCP: shrunk by step * weight and blown up again, until from theta * weight on nothing is changed."""
    shrunk = v.sign() * (v.abs() - step * WEIGHT).clamp_min(0) / (1 - step / THETA)
    return torch.where(v.abs() > THETA * WEIGHT, v, shrunk)


def run(asked: argparse.Namespace, seed: int) -> None:
    data, n, alpha = read("mnist"), asked.clients, asked.alpha
    assert data.test is not None
    (A, b), (test_A, test_b) = (
        (torch.tensor(pixels).view(-1, 1, 28, 28) / 255, torch.tensor(labels).long())
        for pixels, labels in ((data.features, data.labels), data.test)
    )
    parts, W = DirichletByClass(n, 1.0)(data.labels), weights(asked.graph, n)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = nn.Sequential(
        nn.ZeroPad2d(2), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip

    def gradients(x: Tensor) -> Tensor:
        found = []
        for model, rows in zip(x, parts, strict=True):
            vector_to_parameters(model, net.parameters())
            some = rng.choice(rows, asked.batch)
            loss = cross_entropy(net(A[some]), b[some])
            found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]))
        return torch.stack(found)

    x = parameters_to_vector(net.parameters()).detach().repeat(n, 1)
    y, g, mu = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for t in range(asked.iterations + 1):
        mu = GAMMA * mu + (1 - GAMMA) * y
        nu = mu if asked.option == "I" else GAMMA * mu + (1 - GAMMA) * y
        mixing = W if t > 0 and t % asked.T0 == 0 else torch.eye(n)
        x = mixing @ prox(x - alpha * nu, alpha)
        before, g = g, gradients(x)
        y = mixing @ (y + BETA * (g - before))
        if t > 0 and t % (asked.iterations // 5) == 0:
            vector_to_parameters(x.mean(0), net.parameters())
            with torch.no_grad():
                scores = torch.cat([net(some) for some in test_A.split(1000)])
            apart = (x - x.mean(0)).square().sum(1).mean()
            print(
                f"{asked.graph} of {n}, OPTION {asked.option}, T0 = {asked.T0}, seed {seed}, iteration {t}: "
                f"loss {cross_entropy(scores, test_b):.4f}, "
                f"accuracy {(scores.argmax(1) == test_b).double().mean():.4f}, apart {apart:.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=("ring", "complete", "star"), default="ring")
    parser.add_argument("--option", choices=("I", "II"), default="I")
    for name, default in {"clients": 10, "T0": 20, "iterations": 200, "batch": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    for seed in asked.seeds:
        run(asked, seed)


if __name__ == "__main__":
    main()
