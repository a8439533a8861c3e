"""Compressors that keep some of the entries as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.compressors import wire
from proxfed.compressors.arrays import host, over_rows, tensor
from proxfed.compressors.message import reading
from proxfed.errors import at_least_one, require, up_to_one
from proxfed.keyed_random import Key
from proxfed.threads import over_threads
from proxfed.types import Packed

LONG, FEW = 2**17, 8
"""From this many entries on, of which at most an eighth is kept, what is surely small is left out first."""

SAMPLE, CACHEFUL = 2**15, 2**18


@dataclass(frozen=True)
class TopK:
    """Keeps the k entries that are largest in magnitude; among equal ones those with the smallest index.

    q^2 = 1 - k/d, reached when all |v_j| are equal. The papers count 4 bytes for an index and one number for its value.
    """

    unbiased: ClassVar[bool] = False
    fraction: float | None = None
    """The part of the entries that is kept, in (0, 1]: k = max(1, floor(fraction * d))."""
    k: int | None = None
    """Or their number."""

    def __post_init__(self) -> None:
        _check_kept(self)

    def contraction(self, d: int) -> float:
        return 1 - _kept(self, d) / d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, (c, d), k = host(v), v.shape, _kept(self, v.shape[1])
        index, value, dense = np.empty((c, k), np.int32), np.empty((c, k), x.dtype), np.zeros(x.shape, x.dtype)

        def keep(rows: slice) -> int:
            """What is kept of these rows; the bytes that it takes."""
            flat, count = largest_entries(x[rows], k), np.full(len(x[rows]), k)
            value[rows] = x[rows].ravel()[flat]
            dense[rows].ravel()[flat] = value[rows]
            index[rows] = flat % d
            return int(wire.sizes(wire.gaps(flat.ravel(), count, d), count, wire.width(d - 1)).sum())

        best = sum(over_rows(keep, c, d)) + c * k * v.itemsize
        parts = {"index": tensor(index, v), "value": tensor(value, v)}
        return Packed(parts, tensor(dense, v), c * k * (4 + v.itemsize), best, self)

    def encode(self, packed: Packed) -> list[bytes]:
        index, d = host(packed.parts["index"]), packed.dense.shape[1]
        gaps = (wire.gaps(row, np.array([len(row)]), d) for row in index)
        return wire.join([wire.write(row, wire.width(d - 1)) for row in gaps], wire.rows(packed.parts["value"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        c, k = len(messages), _kept(self, d)
        dense = np.zeros((c, d), torch.empty(0, dtype=dtype).numpy().dtype)

        def read(rows: slice) -> None:
            for i in range(c)[rows]:
                with reading(i, messages[i]) as message:
                    index = wire.read_indices(message, k, d)
                    dense[i][index] = message.floats(k, dtype).numpy()

        over_rows(read, c, d)
        return torch.from_numpy(dense)


@dataclass(frozen=True)
class RandK:
    """Keeps k entries chosen at random: q^2 = 1 - k/d. Unbiased: times d/k, omega = d/k - 1.

    The choice is a function of the key, so a message is the key (8 bytes) and k numbers.
    """

    fraction: float | None = None
    """The part of the entries that is kept, in (0, 1]: k = max(1, floor(fraction * d))."""
    k: int | None = None
    """Or their number."""
    unbiased: bool = False
    """Multiply by d/k."""

    def __post_init__(self) -> None:
        _check_kept(self)

    def omega(self, d: int) -> float:
        return d / _kept(self, d) - 1

    def contraction(self, d: int) -> float:
        return self.omega(d) if self.unbiased else 1 - _kept(self, d) / d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        (c, d), k = v.shape, _kept(self, v.shape[1])
        flat = _subset(key, k, d) + d * np.arange(c)[:, None]
        value, dense = _keep(host(v), flat, d / k if self.unbiased else 1.0)
        parts = {"seed": tensor(key.copy().view(np.int64)[:, None], v), "value": tensor(value, v)}
        nbytes = key.nbytes + value.nbytes
        return Packed(parts, tensor(dense, v), nbytes, nbytes, self)

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(wire.rows(packed.parts["seed"]), wire.rows(packed.parts["value"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        c, k = len(messages), _kept(self, d)
        key, value = np.empty(c, np.uint64), torch.empty(c, k, dtype=dtype)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                key[i] = message.take(8).view(np.uint64)[0]
                value[i] = message.floats(k, dtype)
        return torch.zeros(c, d, dtype=dtype).scatter_(1, torch.from_numpy(_subset(key, k, d)), value)


def _check_kept(owner: Any) -> None:
    name, fraction, k = type(owner).__name__, owner.fraction, owner.k
    require((fraction is None) != (k is None), f"{name}: fraction = {fraction!r}, k = {k!r}; exactly one must be given")
    if k is not None:
        at_least_one(owner, "k")
    else:
        up_to_one(owner, "fraction")


def _kept(owner: Any, d: int) -> int:
    """How many of d entries a TopK or RandK keeps."""
    # 0.29 * 100 is a little less than 29 in floating point, and means 29
    k = max(1, math.floor(owner.fraction * d * (1 + 1e-12))) if owner.k is None else owner.k
    require(k <= d, f"{type(owner).__name__}: k = {k} must be at most the number of entries, d = {d}")
    return k


def largest_entries(v: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest magnitudes of each row are, of equal ones the first: positions in v, ascending, (c, k)."""
    c, d = v.shape
    if d < LONG or k * FEW > d:
        return _select(_sizes(v), k)
    found = [_largest_of_long(row, k) for row in v]
    return np.stack(found) + d * np.arange(c)[:, None]


def _largest_of_long(row: np.ndarray, k: int) -> np.ndarray:
    """The same for one long row, of which few are kept.

    A sample says about how large the k-th is; what is smaller than a cautious guess is left out, a cacheful at a time,
    and the choice among the rest is exact. If the guess was not cautious enough, all are looked at.
    """
    sample = _sizes(row[:: len(row) // SAMPLE])
    rank = k * len(sample) / len(row)
    rank = min(len(sample), int(rank + 5 * math.sqrt(rank) + 5))
    guess = np.partition(sample, len(sample) - rank)[len(sample) - rank]

    def candidates(blocks: Sequence[slice]) -> list[tuple[np.ndarray, np.ndarray]]:
        found, size, large = [], np.empty(CACHEFUL, guess.dtype), np.empty(CACHEFUL, bool)
        for block in blocks:
            count = len(row[block])
            _sizes(row[block], size[:count])
            np.greater_equal(size[:count], guess, out=large[:count])
            place = np.flatnonzero(large[:count])
            found.append((place + block.start, size[place]))
        return found

    blocks = [slice(start, start + CACHEFUL) for start in range(0, len(row), CACHEFUL)]
    parts = [part for several in over_threads(candidates, blocks) for part in several]
    place, size = (np.concatenate(some) for some in zip(*parts, strict=True))
    if len(place) < k:
        return _select(_sizes(row[None]), k)[0]
    return place[_select(size[None], k)[0]]


def _sizes(v: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Magnitudes as whole numbers: without its sign bit a float is one, in the same order, on which NumPy selects
    several times faster than torch.topk, and in which even NaN has a place (above infinity)."""
    word = np.dtype(f"u{v.itemsize}")
    return np.bitwise_and(v.view(word), word.type(2 ** (8 * v.itemsize - 1) - 1), out=out)


def _select(size: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest of each row are, of equal ones the first: positions in (c, m), ascending, (c, k)."""
    c, m = size.shape
    least = np.partition(size, m - k, axis=1)[:, m - k]
    flat = np.flatnonzero(size >= least[:, None])
    if len(flat) > c * k:  # more than k in some row are as large as its k-th: keep the first of those that equal it
        row = flat // m
        tie = size.ravel()[flat] == least[row]
        ties, found = np.bincount(row[tie], minlength=c), np.bincount(row, minlength=c)
        rank = np.cumsum(tie) - (np.cumsum(ties) - ties)[row]
        flat = flat[~tie | (rank <= (k - found + ties)[row])]
    return flat.reshape(c, k)


@np.errstate(over="ignore")
def _keep(v: np.ndarray, flat: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at these positions, times a factor, and v with nothing but them."""
    value, dense = v.ravel()[flat], np.zeros_like(v)
    value *= factor
    dense.ravel()[flat] = value
    return value, dense


def _subset(key: Key, k: int, d: int) -> np.ndarray:
    """k different ones of 0..d-1 for each client, every choice equally likely: (c, k).

    They are the first k different numbers in a stream of uniform ones; for k > d/2 it is those left out that are drawn.
    """
    c = len(key)
    if 2 * k > d:
        mask = np.ones((c, d), bool)
        np.put_along_axis(mask, _subset(key, d - k, d), False, axis=1)
        return np.nonzero(mask)[1].reshape(c, k)
    count = k + k * k // d + 4  # nearly always enough: about k^2 / 2d of them have been there before
    while True:
        number = (keyed_random.uniforms(key, count) * d).astype(np.int64)
        tagged = np.sort((number << 32) | np.arange(count), axis=1)  # by number, then by place in the stream
        fresh = np.empty(number.shape, bool)
        np.put_along_axis(fresh, tagged & (2**32 - 1), np.diff(tagged >> 32, prepend=-1) > 0, axis=1)
        seen = np.cumsum(fresh, axis=1)
        if (seen[:, -1] >= k).all():
            return number[fresh & (seen <= k)].reshape(c, k)
        count *= 2
