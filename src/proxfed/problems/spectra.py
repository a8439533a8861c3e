"""Extreme eigenvalues of Gram matrices, from whichever side is smaller: A'A, or AA' where there are fewer rows."""

from __future__ import annotations

from collections.abc import Callable
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


def lanczos(times: Callable[[Tensor], Tensor], start: Tensor, tolerance: float = 1e-10, steps: int = 200) -> Tensor:
    """(c,): the largest eigenvalue of each of c positive semi-definite matrices, which `times` multiplies rows with.

    Found from rows `start`, (c, d), that are not orthogonal to what is looked for; what the iteration may still be
    wrong by is added.
    """
    q, before = start / start.norm(dim=-1, keepdim=True), torch.zeros_like(start)
    beta = torch.zeros(len(q), dtype=q.dtype)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for k in range(1, steps + 1):
        w = times(q) - beta[:, None] * before
        diagonal.append((w * q).sum(-1))
        w = w - diagonal[-1][:, None] * q
        beta = w.norm(dim=-1)
        T = torch.diag_embed(torch.stack(diagonal, -1))
        if beside:
            T = T + torch.diag_embed(torch.stack(beside, -1), 1) + torch.diag_embed(torch.stack(beside, -1), -1)
        values, vectors = torch.linalg.eigh(T)
        wrong = beta * vectors[:, -1, -1].abs()
        if bool((wrong <= tolerance * values[:, -1]).all()) or k == start.shape[-1]:
            break
        beside.append(beta)
        before, q = q, w / beta.clamp_min(torch.finfo(w.dtype).tiny)[:, None]
    return values[:, -1] + wrong
