"""Vectors at which regularisers and compressors are looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from proxfed.keyed_random import generator

D = 12
"""Numbers of a vector: groups of 2, 3, 4 and 6 fit."""


def normal(seed: int, rows: int) -> Tensor:
    return torch.from_numpy(generator(seed, "conformance").standard_normal((rows, D)))


def square(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def first(broken: Tensor) -> int | None:
    """The first row of which something is true."""
    rows = broken.nonzero()
    return int(rows[0, 0]) if len(rows) else None
