"""Federated fine-tuning that switches off whole attention heads and neurons of a Transformer.

    python examples/sparse_fine_tuning.py [SEEDS]

A small Transformer learns the digits 0 to 4 in one place. Five clients, who hold all ten digits, then fine-tune it with
a group lasso on what leaves each head (its columns of the output projection) and each neuron (its column of the second
feed-forward matrix). A group that is zero contributes nothing: the head or neuron can be cut out of the network.
FedAvg takes a subgradient of the penalty and averages, and its model has no zeros. FedComposite takes the prox step at
the server, so its model has them exactly.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import FedAvg, FedComposite, Federated, GroupLasso, Neural, Zero, load, run
from proxfed.data import PARTITIONS
from proxfed.regularisers import OnBlocks
from proxfed.types import Problem

WIDTH, HEADS, NEURONS, LAYERS = 16, 4, 32, 2


class Reader(nn.Module):
    """The eight rows of an image, read as a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.position = nn.Parameter(torch.randn(8, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, NEURONS, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(images.flatten(1).view(-1, 8, 8)) + self.position).mean(1))


def pretrained(data: Federated, seed: int, steps: int = 300) -> nn.Module:
    """Trained on the digits 0 to 4 by Adam, in one place."""
    torch.manual_seed(seed)
    network, known = Reader(), np.flatnonzero(data.labels < 5)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(steps):
        rows = known[(np.arange(32) * 7 + step * 32) % len(known)]
        scores = network(torch.from_numpy(data.features[rows]).float())
        loss = nn.functional.cross_entropy(scores, torch.from_numpy(data.labels[rows]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def columns(shape: tuple[int, ...], together: int) -> tuple[int, ...]:
    """The group of each entry of a matrix: neighbouring columns, so many of them, are one."""
    return tuple((np.arange(shape[0] * shape[1]) % shape[1] // together).tolist())


def penalty(f: Neural, head: float, neuron: float) -> OnBlocks:
    """A group lasso on the columns of every head and of every neuron."""
    heads, neurons = (WIDTH, WIDTH), (WIDTH, NEURONS)
    return OnBlocks.named(
        f.blocks,
        {
            "*.self_attn.out_proj.weight": GroupLasso(head, labels=columns(heads, WIDTH // HEADS)),
            "*.linear2.weight": GroupLasso(neuron, labels=columns(neurons, 1)),
        },
    )


def alive(f: Neural, x: Tensor) -> tuple[int, int]:
    """(heads, neurons) that still contribute something."""
    layers = f.module(x).encoder.layers
    heads = [layer.self_attn.out_proj.weight.view(WIDTH, HEADS, -1).abs().sum((0, 2)) for layer in layers]
    neurons = [layer.linear2.weight.abs().sum(0) for layer in layers]
    return sum(int((h > 0).sum()) for h in heads), sum(int((n > 0).sum()) for n in neurons)


def tuned(data: Federated, seed: int) -> None:
    f = Neural(data, pretrained(data, seed), batch=16, clip=5.0)
    h, start = penalty(f, head=0.03, neuron=0.01), f.initial(seed)
    print(f"{seed:4} {'before':24} {alive(f, start)} {f.evaluate(start)['accuracy']:6.3f}")
    for name, algorithm, penalised in (
        ("without a penalty", FedComposite(eta=0.1, tau=5), Zero()),
        ("FedAvg", FedAvg(eta=0.1, K=5), h),
        ("FedComposite", FedComposite(eta=0.1, tau=5), h),
    ):
        x = run(Problem(f, penalised), algorithm, rounds=30, every=30, seed=seed, progress=False).model
        print(f"{seed:4} {name:24} {alive(f, x)} {f.evaluate(x)['accuracy']:6.3f}", flush=True)


torch.set_num_threads(1)  # small layers: more threads would wait for each other
digits = load("digits", PARTITIONS["dirichlet_by_class"](num_partitions=5, alpha=1.0))
print("seed  what                  (heads, neurons) accuracy")
for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    tuned(digits, seed)
