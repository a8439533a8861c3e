"""X <- W X for rows X, in the way that suits W."""

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
"""(rows, spare) -> mixed rows; spare rows, which nobody needs any more, are overwritten where that saves memory."""


def rows_times(row: np.ndarray, col: np.ndarray, weight: np.ndarray, rows: int, cols: int, like: Tensor) -> Operator:
    """The map (cols, d) -> (rows, d) of a matrix given by its entries, sorted by row."""
    if len(weight) >= tuning.DENSE_FROM * rows * cols:
        W = like.new_zeros(rows, cols)
        W[torch.from_numpy(row), torch.from_numpy(col)] = torch.tensor(weight, dtype=like.dtype, device=like.device)
        return _columns(lambda x: W @ x)
    return gathered(row, col, weight, rows, like)


def gathered(row: np.ndarray, col: np.ndarray, weight: np.ndarray, rows: int, like: Tensor) -> Operator:
    """The same as a weighted sum of gathered rows in one pass: as fast as copying x, where a sparse product takes twice
    as long. What becomes of a row does not depend on the other ones."""
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
    """W = J: every row becomes the mean of all, so that nobody needs to see a neighbour's row."""
    return len(W.weight) == W.n**2 and bool(np.ptp(W.weight) == 0)


def edges(W: Mixing, ids: range) -> int:
    """Directed edges that begin at the clients `ids`: each carries a row of theirs whenever the network mixes."""
    here = (W.col >= ids.start) & (W.col < ids.stop)
    return int(np.count_nonzero(here & (W.row != W.col)))
