"""Compressors that keep some of the entries exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.compressors.arrays import host, over_rows, tensor
from proxfed.compressors.coding import wire
from proxfed.compressors.coding.reader import reading
from proxfed.compressors.largest import largest_entries, put
from proxfed.errors import at_least_one, require, up_to_one
from proxfed.keyed_random import Key
from proxfed.types import Packed


@dataclass(frozen=True)
class TopK:
    """Keeps the k entries of largest magnitude; ties are broken by the smallest index.

    q^2 = 1 - k/d, attained when all |v_j| are equal. The papers count 4 bytes per index and one number per value.
    """

    unbiased: ClassVar[bool] = False
    fraction: float | None = None
    """The fraction of entries to keep, in (0, 1]: k = max(1, floor(fraction * d))."""
    k: int | None = None
    """k, instead of a fraction."""

    def __post_init__(self) -> None:
        _check_kept(self)

    def contraction(self, d: int) -> float:
        return 1 - _kept(self, d) / d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, (c, d), k = host(v), v.shape, _kept(self, v.shape[1])
        index, value, dense = np.empty((c, k), np.int32), np.empty((c, k), x.dtype), np.zeros(x.shape, x.dtype)

        def keep(rows: slice) -> int:
            """Compress these rows; returns the bytes of their messages."""
            index[rows], value[rows] = largest_entries(x[rows], k)
            flat, count = index[rows] + d * np.arange(len(x[rows]))[:, None], np.full(len(x[rows]), k)
            put(dense[rows].ravel(), flat.ravel(), value[rows].ravel())
            return int(wire.sizes(wire.gaps(flat.ravel(), count, d), count, wire.width(d - 1)).sum())

        best = sum(over_rows(keep, c, d)) + c * k * v.itemsize
        parts = {"index": tensor(index, v), "value": tensor(value, v)}
        return Packed(parts, tensor(dense, v), c * k * (4 + v.itemsize), best, self)

    def encode(self, packed: Packed) -> list[bytes]:
        index, d = host(packed.parts["index"]), packed.dense.shape[1]
        gaps = (wire.gaps(row, np.array([len(row)]), d) for row in index)
        return wire.join([wire.write(row, wire.width(d - 1)) for row in gaps], wire.rows(packed.parts["value"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        c = len(messages)
        dense = np.zeros((c, d), torch.empty(0, dtype=dtype).numpy().dtype)

        def read(rows: slice) -> None:
            for i in range(c)[rows]:
                put(dense[i], *self._read(i, messages[i], d, dtype))

        over_rows(read, c, d)
        return torch.from_numpy(dense)

    def entries(self, messages: Sequence[bytes], d: int, dtype: Any) -> tuple[Tensor, Tensor]:
        shape = len(messages), _kept(self, d)
        index, value = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=dtype)

        def read(rows: slice) -> None:
            for i in range(shape[0])[rows]:
                index.numpy()[i], value.numpy()[i] = self._read(i, messages[i], d, dtype)

        over_rows(read, *shape)
        return index, value

    def _read(self, client: int, sent: bytes, d: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """The indices of a message, ascending, and its values."""
        k = _kept(self, d)
        with reading(client, sent) as message:
            return wire.read_indices(message, k, d), message.floats(k, dtype).numpy()


@dataclass(frozen=True)
class RandK:
    """Keeps k random entries: q^2 = 1 - k/d. The unbiased form multiplies by d/k: omega = d/k - 1.

    The choice is a function of the key, so a message is the key (8 bytes) and k numbers.
    """

    fraction: float | None = None
    """The fraction of entries to keep, in (0, 1]: k = max(1, floor(fraction * d))."""
    k: int | None = None
    """k, instead of a fraction."""
    unbiased: bool = False
    """Whether to multiply by d/k, which makes it unbiased."""

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
        return torch.zeros(len(messages), d, dtype=dtype).scatter_(1, *self.entries(messages, d, dtype))

    def entries(self, messages: Sequence[bytes], d: int, dtype: Any) -> tuple[Tensor, Tensor]:
        c, k = len(messages), _kept(self, d)
        key, value = np.empty(c, np.uint64), torch.empty(c, k, dtype=dtype)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                key[i] = message.take(8).view(np.uint64)[0]
                value[i] = message.floats(k, dtype)
        return torch.from_numpy(_subset(key, k, d)), value


def _check_kept(owner: Any) -> None:
    name, fraction, k = type(owner).__name__, owner.fraction, owner.k
    require((fraction is None) != (k is None), f"{name}: fraction = {fraction!r}, k = {k!r}; exactly one must be given")
    if k is not None:
        at_least_one(owner, "k")
    else:
        up_to_one(owner, "fraction")


def _kept(owner: Any, d: int) -> int:
    """The number of entries that a TopK or RandK keeps of d."""
    # 0.29 * 100 is a little less than 29 in floating point, and means 29
    k = max(1, math.floor(owner.fraction * d * (1 + 1e-12))) if owner.k is None else owner.k
    require(k <= d, f"{type(owner).__name__}: k = {k} must be at most the number of entries, d = {d}")
    return k


@np.errstate(over="ignore")
def _keep(v: np.ndarray, flat: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers at these positions times a factor, v with all others set to 0)."""
    value, dense = v.ravel()[flat], np.zeros_like(v)
    value *= factor
    dense.ravel()[flat] = value
    return value, dense


def _subset(key: Key, k: int, d: int) -> np.ndarray:
    """A uniformly random subset of size k of 0..d-1 for each client: (c, k).

    It consists of the first k distinct numbers in a uniform stream; for k > d/2 the complement is drawn instead.
    """
    c = len(key)
    if 2 * k > d:
        mask = np.ones((c, d), bool)
        np.put_along_axis(mask, _subset(key, d - k, d), False, axis=1)
        return np.nonzero(mask)[1].reshape(c, k)
    count = k + k * k // d + 4  # nearly always enough: about k^2 / 2d of them are repeats
    while True:
        number = (keyed_random.uniforms(key, count) * d).astype(np.int64)
        tagged = np.sort((number << 32) | np.arange(count), axis=1)  # by number, then by place in the stream
        fresh = np.empty(number.shape, bool)
        np.put_along_axis(fresh, tagged & (2**32 - 1), np.diff(tagged >> 32, prepend=-1) > 0, axis=1)
        seen = np.cumsum(fresh, axis=1)
        if (seen[:, -1] >= k).all():
            return number[fresh & (seen <= k)].reshape(c, k)
        count *= 2
