"""DFedADMM on MNIST in plain PyTorch, with only the reader and the partition of proxfed: which dual is ahead there?

python benchmarks/plain_dfedadmm.py [--rounds 20] [--clients 20] [--samples 10000] [--batch 20] [--group 4] [--seeds 0]

Algorithm 1 of its paper with the dual of the round before in the message (old), or with that of eq. (5) (new), each
without and with SAM: Dir(0.3), 25 local steps, 1/lambda = 0.1, groups drawn anew every round. The defaults are the
quick form of dfedadmm/dual; --clients 100 --samples 60000 --batch 128 --group 10 is the paper's scale. Prints the
accuracy of the mean model on the test data; results/dfedadmm/dual.causes.toml says what came out.
"""

from __future__ import annotations

import argparse
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from proxfed.data import read
from proxfed.data.partitions import DirichletByClient

WIDTHS, K, ETA, DECAY, LAMBDA, RHO, CLIP = (784, 200, 200, 10), 25, 0.1, 0.998, 10.0, 0.1, 10.0


def layers(x: Tensor) -> list[Tensor]:
    """Weights (n, in, out) and biases (n, 1, out) of n models, which are the rows of x."""
    shapes = [shape for i, o in pairwise(WIDTHS) for shape in ((i, o), (1, o))]
    parts = x.split([a * b for a, b in shapes], 1)
    return [part.view(len(x), *shape) for part, shape in zip(parts, shapes, strict=True)]


def scores(x: Tensor, A: Tensor) -> Tensor:
    """(n, batch, 10), of samples (n, batch, 784)"""
    W1, b1, W2, b2, W3, b3 = layers(x)
    return torch.relu(torch.relu(A @ W1 + b1) @ W2 + b2) @ W3 + b3


def gradient(x: Tensor, A: Tensor, b: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    loss = cross_entropy(scores(x, A).flatten(0, 1), b.flatten(), reduction="sum") / b.shape[1]
    (g,) = torch.autograd.grad(loss, x)
    return g * (CLIP / g.norm(dim=1, keepdim=True)).clamp_max(1)


def begin(rng: torch.Generator) -> Tensor:
    """As torch.nn.Linear begins: uniform within 1 / sqrt(inputs)."""
    pieces = []
    for i, o in pairwise(WIDTHS):
        pieces += [(torch.rand(size, generator=rng) * 2 - 1) / i**0.5 for size in (i * o, o)]
    return torch.cat(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rounds": 20, "clients": 20, "samples": 10_000, "batch": 20, "group": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    data, n = read("mnist", limit=asked.samples), asked.clients
    assert data.test is not None
    A, test_A = (torch.tensor(pixels).flatten(1) / 255 for pixels in (data.features, data.test[0]))
    std, mean = torch.std_mean(A)
    A, test_A = (A - mean) / std, (test_A - mean) / std
    b, test_b = torch.tensor(data.labels).long(), torch.tensor(data.test[1]).long()
    parts = DirichletByClient(n, 0.3)(data.labels)
    for seed, dual, rho in product(asked.seeds, ("old", "new"), (0.0, RHO)):
        rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        x = begin(draw).repeat(n, 1)
        g, found = torch.zeros_like(x), []
        for t in range(asked.rounds):
            y, eta = x, ETA * DECAY**t
            for _ in range(K):
                rows = np.stack([rng.choice(part, asked.batch, replace=False) for part in parts])
                slope = gradient(y, A[rows], b[rows])
                if rho:
                    slope = gradient(y + rho * slope / slope.norm(dim=1, keepdim=True), A[rows], b[rows])
                y = y - eta * (slope - g + (y - x) / LAMBDA)
            before, g = g, g - (y - x) / LAMBDA
            z = y - LAMBDA * (before if dual == "old" else g)
            order = torch.as_tensor(rng.permutation(n))
            x = torch.empty_like(z)
            for some in order.split(asked.group):
                x[some] = z[some].mean(0)
            hits = scores(x.mean(0, keepdim=True), test_A[None])[0].argmax(1) == test_b
            found.append(f"{hits.double().mean():.4f}")
        print(f"seed {seed}, {dual} dual{', SAM' if rho else ''}:", *found, flush=True)


if __name__ == "__main__":
    main()
