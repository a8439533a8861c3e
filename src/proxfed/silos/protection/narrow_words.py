"""Masked words of 16, 24 or 32 bits: secure aggregation with fewer bytes.

    site i      q_i = floor(p_i m_i/s + u), u uniform on [0, 1), at most (2^(w-1) - 1)/n in size;    E s q_i = p_i m_i
    sent        q_i + masks, modulo 2^w: its low w bits
    sum         s sum_i q_i, exactly

The step s is a power of two that the coordinator sends with the server's message, which is public. A site accepts any:
if it is too small numbers saturate, if too large they are coarse, and neither reveals more about the rows. To choose
the next step, each site appends its largest number, and the coordinator reads the sum of these: an upper bound on the
numbers of all sites.
"""

from __future__ import annotations

from math import ceil, frexp, inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxfed.errors import RunError
from proxfed.silos.protection.masks import Words

FINEST, COARSEST = -200, 200
"""Exponents of steps."""
ROOM = 2.0
"""The largest number of a round, relative to the sum of all sites' largest numbers in the previous round."""


def cap(n: int, bits: int) -> int:
    """The largest number of a site with which sums of n do not wrap."""
    return (2 ** (bits - 1) - 1) // n


def exponent(together: float, n: int, bits: int) -> int:
    """The exponent of the step, after a round in which the largest numbers of all sites had this sum."""
    if not 0 < together < inf:
        return FINEST
    fraction, power = frexp(ROOM * together / cap(n, bits))
    return min(max(power - (fraction == 0.5), FINEST), COARSEST)


def quantise(values: NDArray[np.float64], step: float, n: int, bits: int, u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers of steps, rounded at random by u; numbers that are too large or not finite saturate."""
    most = cap(n, bits)
    return np.clip(np.nan_to_num(np.floor(values / step + u), nan=0.0), -most, most).astype(np.int64)


def with_largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Append the largest magnitude."""
    return np.append(values, np.abs(values).max(initial=0.0))


def to_bytes(words: Words, bits: int) -> Tensor:
    """The low bits of the words, as a row of bytes."""
    rows = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : ceil(bits / 8)]
    return torch.from_numpy(np.ascontiguousarray(rows).reshape(1, -1))


def from_bytes(row: Tensor, bits: int) -> Words:
    size = ceil(bits / 8)
    if row.dtype != torch.uint8 or row.numel() % size:
        raise RunError(f"masked messages are words of {bits} bits, not {row.numel()} of {row.dtype}")
    words = np.zeros((row.numel() // size, 8), np.uint8)
    words[:, :size] = row.numpy().reshape(-1, size)
    return words.view("<u8").reshape(-1).astype(np.uint64)


def signed(words: Words, bits: int) -> NDArray[np.int64]:
    """Words modulo 2^bits as numbers between -2^(bits-1) and 2^(bits-1)."""
    up = np.uint64(64 - bits)
    return (words << up).view(np.int64) >> np.int64(64 - bits)


def bound(broadcast: bytes, grain: int | None) -> bytes:
    """The broadcast and the step, on which masks depend, so that words of two steps never share one."""
    return broadcast if grain is None else broadcast + f" grain {grain}".encode()


def read_exponent(value: Any) -> int:
    """The coordinator's exponent, or RunError."""
    good = isinstance(value, int) and not isinstance(value, bool) and FINEST <= value <= COARSEST
    if not good:
        raise RunError(f"grain = {value!r:.40} is no whole number between {FINEST} and {COARSEST}")
    return int(value)
