"""Extreme eigenvalues of Gram matrices, from whichever side is smaller: A'A, or AA' where there are fewer rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Extremes(NamedTuple):
    """The largest and the smallest eigenvalue, each (...)."""

    largest: Tensor
    smallest: Tensor


def extremes(A: Tensor, m: int = 1) -> Extremes:
    """Of A'A / m, for A (..., rows, columns): with fewer rows than columns the smallest is 0."""
    wide = A.shape[-2] < A.shape[-1]
    values = torch.linalg.eigvalsh((A @ A.mT if wide else A.mT @ A) / m)
    return Extremes(values[..., -1], torch.zeros_like(values[..., 0]) if wide else values[..., 0])
