"""Conversion between torch and NumPy, and blocks of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.keyed_random import Key
from proxfed.machine import over_threads

Result = TypeVar("Result")

PARALLEL_FROM = 2**17
"""From this many numbers on, threads gain more than their wake-up costs."""

_BLOCK = 2**13  # columns; part of what a key means, as `uniforms` counts in blocks


def host(x: Tensor) -> np.ndarray:
    """Its numbers as a NumPy array: a view if x is in the CPU's memory."""
    return x.detach().cpu().contiguous().numpy()


def tensor(x: np.ndarray, like: Tensor) -> Tensor:
    """The same numbers as a tensor, on the device of `like`."""
    return torch.from_numpy(x).to(like.device)


def column_blocks(d: int) -> Iterator[slice]:
    """The columns in blocks, so that temporaries of elementwise computations stay in the cache."""
    return (slice(start, min(start + _BLOCK, d)) for start in range(0, d, _BLOCK))


def over_rows(work: Callable[[slice], Result], c: int, d: int) -> list[Result]:
    """work(rows) for all rows of (c, d): on all cores if there is enough work, else at once."""
    if c * d < PARALLEL_FROM:
        return [work(slice(0, c))]
    return over_threads(lambda rows: work(slice(rows[0], rows[-1] + 1)), range(c)) if c else []


def uniforms(key: Key, columns: slice) -> np.ndarray:
    """Uniform numbers in [0, 1), one per client and column."""
    return keyed_random.uniforms(keyed_random.fold(key, columns.start // _BLOCK), columns.stop - columns.start)
