"""Ten roles of Shakespeare fine-tune one Transformer: all of its parameters, or low-rank adapters only.

    PROXFED_DATA=... python examples/text/adapters.py [FOLDER]

torch's own TransformerEncoder, with its dropout, over an embedding of characters, predicts the next character. It first
learns the lines of other roles in one place. Then the ten roles that say most go on without showing their lines. The
run folder is FOLDER (default: runs/text-adapters); a run that was killed goes on from there, with the same bits.
"""

import bz2
import copy
import json
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import Federated, Neural, compare
from proxfed.algorithms import LocalAdam
from proxfed.data.directory import data_directory

LONG, CLIENTS, ROUNDS = 32, 10, 15
Pair = tuple[np.ndarray, np.ndarray]


class Reader(nn.Module):
    """Scores of the next character."""

    def __init__(self, letters: int, width: int = 96, heads: int = 4, inside: int = 384, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.randn(LONG, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, heads, inside, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, letters)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(text) + self.position)[:, -1])


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a product of rank r that is trained (LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.A = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))

    @property
    def weight(self) -> Tensor:  # torch's encoder layer asks for it
        return self.layer.weight + self.B @ self.A

    @property
    def bias(self) -> Tensor:
        return self.layer.bias

    def forward(self, v: Tensor) -> Tensor:
        return self.layer(v) + v @ self.A.T @ self.B.T


def adapted(network: nn.Module, rank: int) -> nn.Module:
    """Everything is frozen but the adapters of the feed-forward layers."""
    network = copy.deepcopy(network).requires_grad_(False)
    for layer in network.encoder.layers:
        layer.linear1, layer.linear2 = Adapted(layer.linear1, rank), Adapted(layer.linear2, rank)
    return network


def windows(lines: list[str], code: dict[str, int], count: int) -> Pair:
    """So many pieces of LONG characters, and the character after each."""
    text = np.array([code[c] for c in "".join(lines)])
    starts = np.arange(count) * (len(text) - LONG - 1) // count
    return text[starts[:, None] + np.arange(LONG)], text[starts + LONG]


def read() -> tuple[Federated, Pair]:
    """The ten roles with their own test lines, and the pile of the next thirty."""
    path = data_directory() / "shakespeare" / "shakespeare.json.bz2"
    found: dict[str, Any] = json.loads(bz2.decompress(path.read_bytes()))
    says = {role: sum(map(len, lines)) for role, lines in found["train"].items()}
    roles = sorted(says, key=lambda role: (-says[role], role))[: 4 * CLIENTS]
    code = {
        c: k for k, c in enumerate(sorted({c for part in found.values() for x in part.values() for c in "".join(x)}))
    }
    clients = {
        role: {part: windows(found[part][role], code, count) for part, count in (("train", 600), ("test", 100))}
        for role in roles[:CLIENTS]
    }
    pile = [windows(found["train"][role], code, 400) for role in roles[CLIENTS:]]
    pairs = np.concatenate([x for x, _ in pile]), np.concatenate([y for _, y in pile])
    return Federated.of(clients, classes=len(code), name="shakespeare"), pairs


def pretrained(network: nn.Module, pile: Pair, epochs: int = 2) -> nn.Module:
    x, y = map(torch.from_numpy, pile)
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
    return network


def main() -> None:
    out = sys.argv[1] if len(sys.argv) > 1 else "runs/text-adapters"
    torch.set_num_threads(1)  # small layers: more threads would wait for each other
    data, pile = read()
    torch.manual_seed(0)
    base = pretrained(Reader(int(data.classes or 0)), pile)
    print(f"{'trained':>10} {'numbers':>8} {'round':>5} {'kB up':>8} {'accuracy':>8} {'worst client':>12}")
    for name, network, eta in (("all", base, 1e-3), ("adapters", adapted(base, 1), 1e-2)):
        f = Neural(data, network, batch=20, clip=1.0)
        algorithm = LocalAdam(eta, 5)
        results = compare(f, {name: algorithm}, rounds=ROUNDS, every=5, name=name, out=f"{out}/{name}", progress=False)
        for row in results.rows:
            sent = row["bytes_up"] / CLIENTS / 1e3
            right = f"{row['accuracy']:8.3f} {row['accuracy_worst_client']:12.3f}"
            print(f"{name:>10} {f.d:8} {row['round']:5} {sent:8.1f} {right}", flush=True)


if __name__ == "__main__":
    main()
