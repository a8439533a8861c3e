"""X <- W X for rows X, by the fastest method for W."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from proxfed.engine import tuning
from proxfed.machine import map_parallel
from proxfed.types import Mixing

Operator = Callable[[Tensor, bool], Tensor]
"""(rows, spare) -> mixed rows; spare rows, which are no longer needed, may be overwritten to save memory."""


def rows_times(row: np.ndarray, col: np.ndarray, weight: np.ndarray, rows: int, cols: int, like: Tensor) -> Operator:
    """The map (cols, d) -> (rows, d) of a matrix given by its entries, sorted by row."""
    if len(weight) >= tuning.DENSE_FROM * rows * cols:
        W = like.new_zeros(rows, cols)
        W[torch.from_numpy(row), torch.from_numpy(col)] = torch.tensor(weight, dtype=like.dtype, device=like.device)
        return _columns(lambda x: W @ x)
    return gathered(row, col, weight, rows, like)


def gathered(row: np.ndarray, col: np.ndarray, weight: np.ndarray, rows: int, like: Tensor) -> Operator:
    """The same as a weighted sum of gathered rows in one pass: as fast as copying x; a sparse product takes twice as
    long. Each row is computed independently of the others."""
    w = torch.tensor(weight, dtype=like.dtype, device=like.device)
    index = torch.tensor(col, device=like.device)
    start = torch.tensor(np.searchsorted(row, np.arange(rows)), device=like.device)
    return _columns(lambda x: embedding_bag(index, x, start, mode="sum", per_sample_weights=w))


def _columns(times: Callable[[Tensor], Tensor]) -> Operator:
    """A product that overwrites spare rows, some columns at a time."""

    def apply(x: Tensor, spare: bool) -> Tensor:
        if not spare:
            return times(x)

        def some(columns: slice) -> None:
            x[:, columns] = times(x[:, columns].contiguous())

        width = max(1, tuning.MIX_BLOCK // len(x))
        map_parallel(some, [slice(k, k + width) for k in range(0, x.shape[1], width)])
        return x

    return apply


def is_average(W: Mixing) -> bool:
    """Whether W = J: every row becomes the mean of all, so that no single row has to be sent."""
    return len(W.weight) == W.n**2 and bool(np.ptp(W.weight) == 0)


def edges(W: Mixing, ids: range) -> int:
    """The number of directed edges that begin at the clients `ids`: each carries one row per `mix`."""
    here = (W.col >= ids.start) & (W.col < ids.stop)
    return int(np.count_nonzero(here & (W.row != W.col)))
