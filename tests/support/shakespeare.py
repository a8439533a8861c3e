"""Ten speaking roles of Shakespeare as clients who predict the next character; run as a program, a run to be killed."""

from __future__ import annotations

import bz2
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import FedAvg, Federated, Neural, compare
from proxfed.harness.results import Results

LONG, CLIENTS, SAMPLES = 12, 10, 20


def file() -> Path:
    return Path(os.environ.get("PROXFED_DATA", "")) / "shakespeare" / "shakespeare.json.bz2"


def data() -> Federated:
    """Windows of LONG characters and the one that follows, of the roles that say most; their own test snippets."""
    found = json.loads(bz2.decompress(file().read_bytes()))
    says = {role: sum(map(len, lines)) for role, lines in found["train"].items()}
    roles = sorted(says, key=lambda role: (-says[role], role))[:CLIENTS]
    letters = sorted({c for role in roles for part in ("train", "test") for line in found[part][role] for c in line})
    code = {c: k for k, c in enumerate(letters)}

    def windows(lines: list[str], count: int) -> tuple[Any, Any]:
        text = np.array([code[c] for c in "".join(lines)])
        starts = np.arange(count) * (len(text) - LONG - 1) // count
        return text[starts[:, None] + np.arange(LONG)], text[starts + LONG]

    clients = {
        role: {"train": windows(found["train"][role], SAMPLES), "test": windows(found["test"][role], 5)}
        for role in roles
    }
    return Federated.of(clients, classes=len(letters), name="shakespeare")


class Transformer(nn.Module):
    """torch's own encoder, with its dropout, over an embedding of characters."""

    def __init__(self, letters: int, width: int = 16, heads: int = 2, inside: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.randn(LONG, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, heads, inside, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(tokens) + self.position)[:, -1])


def problem(**sizes: int) -> Neural:
    held = data()
    torch.manual_seed(0)
    return Neural(held, Transformer(int(held.classes or 0), **sizes), batch=10, clip=1.0)


def compared(out: Path) -> Results:
    return compare(problem(), {"FedAvg": FedAvg(0.3, 2)}, rounds=6, name="text", out=out, progress=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    compared(Path(sys.argv[1]))
