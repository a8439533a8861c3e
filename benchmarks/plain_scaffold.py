"""SCAFFOLD on MNIST in plain PyTorch, without anything of proxfed but its reader: does the step diverge there, too?

python benchmarks/plain_scaffold.py [--eta 0.1] [--batch 64] [--K 10] [--rounds 65] [--by-size] [--wide]

Ten clients with Dirichlet(0.5) shares of each class, as in FedCEF's Figs. 3 and 4; results/fedcef/mnist.md says what
came out.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from proxfed.data import read

CLIENTS = 10


def shares(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Of each class a Dirichlet(0.5) share for each client, drawn again until all have a hundred samples."""
    while True:
        rows: list[list[int]] = [[] for _ in range(CLIENTS)]
        for c in range(10):
            members = np.flatnonzero(labels == c)
            rng.shuffle(members)
            ends = (np.cumsum(rng.dirichlet([0.5] * CLIENTS)) * len(members)).astype(int)[:-1]
            for mine, some in zip(rows, np.split(members, ends), strict=True):
                mine.extend(some)
        if min(map(len, rows)) >= 100:
            return [np.array(mine) for mine in rows]


def network(wide: bool) -> nn.Sequential:
    """3 x 3 convolutions and FC 128, or 5 x 5 ones and FC 350: 0.42M and 0.41M parameters."""
    side, padding, inside, width = (5, 0, 1024, 350) if wide else (3, 1, 3136, 128)
    return nn.Sequential(
        nn.Conv2d(1, 32, side, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, side, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"eta": 0.1, "batch": 64, "K": 10, "rounds": 65}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--by-size", action="store_true", help="weigh clients by their data")
    parser.add_argument("--wide", action="store_true", help="the other network")
    asked = parser.parse_args()

    data = read("mnist")
    assert data.test is not None
    (A, b), (test_A, test_b) = (
        (torch.tensor(images).view(-1, 1, 28, 28) / 255, torch.tensor(labels))
        for images, labels in ((data.features, data.labels), data.test)
    )
    batches = list(zip(test_A.split(1000), test_b.split(1000), strict=True))
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    rows = shares(data.labels, rng)
    weights = [len(mine) / len(b) if asked.by_size else 1 / CLIENTS for mine in rows]
    net = network(asked.wide)
    x = parameters_to_vector(net.parameters()).detach()
    c, c_i = torch.zeros_like(x), torch.zeros(CLIENTS, len(x))

    def grad(at: Tensor, batch: np.ndarray) -> Tensor:
        vector_to_parameters(at, net.parameters())
        loss = nn.functional.cross_entropy(net(A[batch]), b[batch])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])

    for t in range(1, asked.rounds + 1):
        mean, means = torch.zeros_like(x), torch.zeros_like(c_i)
        for i, mine in enumerate(rows):
            y = x.clone()
            for _ in range(asked.K):
                g = grad(y, rng.choice(mine, asked.batch))
                means[i] += g / asked.K
                y -= asked.eta * (g - c_i[i] + c)
            mean += weights[i] * y
        x, c_i = mean, means
        c = sum(weight * own for weight, own in zip(weights, c_i, strict=True))
        vector_to_parameters(x, net.parameters())
        with torch.no_grad():
            hits = sum((net(some).argmax(1) == y).sum() for some, y in batches)
        print(f"round {t}: accuracy {hits / len(test_b):.4f}", flush=True)
        if not x.isfinite().all():
            print("diverged")
            break


if __name__ == "__main__":
    main()
