"""The entries that are largest in magnitude, without sorting.

For long rows of which few entries are kept, a sample gives an estimate of the k-th largest. Entries below a cautious
threshold are dropped in one pass over all cores, and the selection among the rest is exact. With numba the pass and the
selection are compiled loops (kernels.py), else NumPy: they find the same entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from proxfed.machine import numba_is_used, over_threads

LONG, FEW = 2**17, 8
"""From this many entries on, small ones are dropped first if at most an eighth is kept."""

SAMPLE, CACHEFUL = 2**15, 2**18

Found = tuple[np.ndarray, np.ndarray]
"""Indices, ascending, and the numbers at these indices."""


def largest_entries(v: np.ndarray, k: int) -> Found:
    """(indices, values) of the k largest magnitudes in each row of v (c, d), ties by index: both (c, k)."""
    c, d = v.shape
    if d < LONG or k * FEW > d:
        flat = _select(_sizes(v), k)
        return flat - d * np.arange(c)[:, None], v.ravel()[flat]
    index, value = zip(*(_largest_of_long(row, k) for row in v), strict=True)
    return np.stack(index), np.stack(value)


def put(row: np.ndarray, index: np.ndarray, value: np.ndarray) -> None:
    """row[index] = value, without bounds checks."""
    if len(row) >= LONG and numba_is_used():
        from proxfed.compressors.coding import kernels

        word = _mask(row).dtype
        kernels.put(row.view(word), index, value.view(word))
    else:
        row[index] = value


def _largest_of_long(row: np.ndarray, k: int) -> Found:
    """The same for a long row; if the threshold was too high, all entries are compared."""
    sample = _sizes(row[:: len(row) // SAMPLE])
    rank = k * len(sample) / len(row)
    rank = min(len(sample), int(rank + 5 * math.sqrt(rank) + 5))
    guess = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    most = 2 * rank * len(row) // len(sample) + CACHEFUL
    parts = over_threads(lambda blocks: _at_least(row, blocks, guess, most), range(0, len(row), CACHEFUL))
    index, value = map(np.concatenate, zip(*parts, strict=True))
    if len(index) < k:
        index = _select(_sizes(row[None]), k)[0]
        return index, row[index]
    if numba_is_used():
        from proxfed.compressors.coding import kernels

        kernels.keep_largest(value.view(guess.dtype), _mask(row), guess, k, index)
        return index[:k], value[:k]
    chosen = _select(_sizes(value[None]), k)[0]
    return index[chosen], value[chosen]


def _at_least(row: np.ndarray, blocks: Sequence[int], guess: Any, most: int) -> Found:
    """The entries of these blocks that are at least as large as `guess`; slower if there are more than `most`."""
    if numba_is_used():
        from proxfed.compressors.coding import kernels

        start, stop = blocks[0], min(blocks[-1] + CACHEFUL, len(row))
        index, value = np.empty(most, np.int64), np.empty(most, row.dtype)
        word = row[start:stop].view(guess.dtype)
        count = kernels.collect(word, _mask(row), guess, start, index, value.view(guess.dtype))
        if count >= 0:
            return index[:count], value[:count]
    found, size, large = [], np.empty(CACHEFUL, guess.dtype), np.empty(CACHEFUL, bool)
    for start in blocks:
        block = row[start : start + CACHEFUL]
        m = len(block)
        _sizes(block, size[:m])
        np.greater_equal(size[:m], guess, out=large[:m])
        found.append(np.flatnonzero(large[:m]) + start)
    index = np.concatenate(found)
    return index, row[index]


def _sizes(v: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Magnitudes as whole numbers: the bits of a float without its sign have the same order. NumPy selects on them
    several times faster than torch.topk, and even NaN is ordered (above infinity)."""
    mask = _mask(v)
    return np.bitwise_and(v.view(mask.dtype), mask, out=out)


def _mask(v: np.ndarray) -> Any:
    """All bits of such numbers except the sign."""
    return np.dtype(f"u{v.itemsize}").type(2 ** (8 * v.itemsize - 1) - 1)


def _select(size: np.ndarray, k: int) -> np.ndarray:
    """The positions in (c, m) of the k largest of each row, ascending, ties by index: (c, k)."""
    c, m = size.shape
    least = np.partition(size, m - k, axis=1)[:, m - k]
    flat = np.flatnonzero(size >= least[:, None])
    if len(flat) > c * k:  # ties with the k-th in some row: keep the first ones
        row = flat // m
        tie = size.ravel()[flat] == least[row]
        ties, found = np.bincount(row[tie], minlength=c), np.bincount(row, minlength=c)
        rank = np.cumsum(tie) - (np.cumsum(ties) - ties)[row]
        flat = flat[~tie | (rank <= (k - found + ties)[row])]
    return flat.reshape(c, k)
