"""A quantiser with a bound on the message length and the smallest possible error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from proxfed.compressors.arrays import host
from proxfed.compressors.coding import quantised_message, wire
from proxfed.compressors.largest import largest_entries
from proxfed.compressors.step_search import LEAST, ROUNDING, SHORT, largest_level, lost, quantise, sizes, with_step
from proxfed.errors import at_least_one, require
from proxfed.keyed_random import Key
from proxfed.types import Packed

_PART = 0.25
"""The share of the largest entries' energy that may be lost if only these are sent."""

_SAMPLE = 2**14

Sent = bytes  # an alias, because the setting `bytes` shadows the type


@dataclass(frozen=True)
class ByteBudgetQuantiser:
    """Like `ErrorBoundedQuantiser`, with the shortest step whose message has at most `bytes` bytes.

    The error then depends on v. For some v, such as a flat one, every step sends all entries or none; if that loses
    more, only the k largest entries are sent, losing at most a quarter of their energy, with k such that they always
    fit. So q^2 = 1 - 3k / 4d for all v; for most vectors the error is far smaller.
    """

    unbiased: ClassVar[bool] = False
    bytes: int
    """The largest length of a message."""

    def __post_init__(self) -> None:
        at_least_one(self, "bytes")

    def contraction(self, d: int) -> float:
        return 1 - (1 - _PART) * self._kept(d) / d

    def _kept(self, d: int) -> int:
        """The number of entries that always fit: each takes an index, a sign, and its part of the levels."""
        head, each = (8 * 32 if d <= SHORT else 8 * 96), wire.width(d) + 14
        k = min(d, (8 * self.bytes - head) // each)
        least = -(-(head + each) // 8)
        require(k >= 1, f"ByteBudgetQuantiser: bytes = {self.bytes} must be at least {least} for d = {d} numbers")
        return k

    def __call__(self, v: Tensor, key: Key) -> Packed:
        x = host(v)
        self._kept(x.shape[1])
        messages, dense = [], np.zeros_like(x)
        for i in range(len(x)):
            row = x[i : i + 1]
            if not np.isfinite(row).all():
                message, dense[i] = quantised_message.not_finite(x.shape[1]), np.nan
            elif not row.any():
                message = quantised_message.zero(x.shape[1])
            else:
                message, dense[i : i + 1] = self._shortest_step(row)
            messages.append(message)
        return quantised_message.pack(messages, dense, v, self)

    def _shortest_step(self, x: np.ndarray) -> tuple[Sent, np.ndarray]:
        """For one row: a step that just fits, searched from a guess on a sample; or the largest entries, if the step
        loses more than their bound."""
        d, (a, unit) = x.shape[1], sizes(x)
        best, error = None, (1 - 1e-9) * self.contraction(d) * lost(x, np.zeros_like(x), unit)[0]
        low, high = _range(x, a, unit)  # logarithms of a step that is too short and of one that is long enough
        tried = guess = self._guess(a[0], low, high)
        for turn in range(8):
            q, dense = with_step(x, a, unit, np.array([2**tried]))
            message = quantised_message.write(q, largest_level(d, LEAST))[0]
            fits, now = len(message) <= self.bytes, lost(x, dense, unit)[0]
            if fits and now < error:
                best, error = (message, dense), now
            if (fits and len(message) >= 0.98 * self.bytes) or high - low < 0.01:
                break
            low, high = (low, tried) if fits else (tried, high)
            tried = guess + (-1 if fits else 1) * 2.0 ** (turn - 6)  # next to the guess; if that is past a known one:
            tried = tried if low < tried < high else (low + high) / 2
        return self._largest_only(x) if best is None else best

    def _guess(self, a: np.ndarray, low: float, high: float) -> float:
        """The logarithm of a step that should just fit."""
        sample = a[:: -(-len(a) // _SAMPLE)]
        for _ in range(14):
            middle = (low + high) / 2
            fits = _bits(sample, 2**middle) * (len(a) / len(sample)) <= 8 * (self.bytes - 10)
            low, high = (low, middle) if fits else (middle, high)
        return high

    def _largest_only(self, x: np.ndarray) -> tuple[Sent, np.ndarray]:
        """The k largest entries of a row."""
        d = x.shape[1]
        index = largest_entries(x, self._kept(d))[0][0]
        index = index[x[0, index] != 0]
        q, values = quantise(x[:, index], _PART)
        level, dense = np.zeros((1, d), np.int32), np.zeros_like(x)
        level[:, index], dense[:, index] = q.level, values
        return quantised_message.write(q._replace(level=level), largest_level(d, LEAST))[0], dense

    def encode(self, packed: Packed) -> list[Sent]:
        return quantised_message.unpack(packed)

    def decode(self, messages: Sequence[Sent], d: int, dtype: Any) -> Tensor:
        return quantised_message.decode(messages, d, dtype, largest_level(d, LEAST), self.bytes)


def _range(x: np.ndarray, a: np.ndarray, unit: np.ndarray) -> tuple[float, float]:
    """Logarithms of the shortest useful step, and of the longest that leaves a non-zero entry."""
    whole = lost(x, np.zeros_like(x), unit)[0]
    return float(np.log2(np.sqrt(LEAST * whole / x.shape[1]) / (1 - ROUNDING))), float(np.log2(a.max() / 0.601))


def _bits(a: np.ndarray, s: float) -> float:
    """An estimate of the bits of the levels of these sizes."""
    level = np.minimum(np.floor(a / s + ROUNDING), 16).astype(np.int64)
    n = np.cumsum(np.bincount(level, minlength=17)[::-1])[::-1].astype(np.float64)  # n[k]: how many are at least k
    p = np.divide(n[1:], n[:-1], out=np.zeros(16), where=n[:-1] > 0)
    q = np.clip(np.stack([p, 1 - p]), 1e-300, 1)
    return float((n[:-1] * -(q * np.log2(q)).sum(0)).sum() + n[1] + 10 * n[16])
