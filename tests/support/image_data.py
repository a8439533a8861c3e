"""A few clients with small images, for networks."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import Federated
from proxfed.problems.neural.neural import Neural

RAGGED = (7, 12, 12, 5)
CLASSES = 4


@cache
def images(sizes: tuple[int, ...] = RAGGED, channels: int = 1, side: int = 8, test: int = 9) -> Federated:
    """Clients whose images are of different brightness, with classes at random."""
    rng = np.random.default_rng(0)

    def client(m: int) -> tuple[np.ndarray, np.ndarray]:
        top = rng.integers(40, 256)
        return rng.integers(0, top, (m, channels, side, side)).astype(np.uint8), rng.integers(0, CLASSES, m)

    holders = [client(m) for m in sizes]
    return Federated.from_clients(holders, client(test) if test else None, CLASSES, "images")


def point(p: Neural, seed: int = 0) -> Tensor:
    """A row for each client, all different, near the start."""
    x = p.initial(seed)
    noise = torch.randn(p.n, p.d, dtype=p.dtype, generator=torch.Generator().manual_seed(seed))
    return x + 0.01 * noise


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Row by row, relative to the norm."""
    return bool(((a - b).norm(dim=-1) <= tolerance * b.norm(dim=-1)).all())


def normed(channels: int, side: int, classes: int) -> nn.Module:
    """The smallest network with batch norm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))
