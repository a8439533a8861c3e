"""Masked words of 16, 24 or 32 bits: secrecy and few bytes together.

    site i      q_i = floor(p_i m_i/s + u), u uniform on [0, 1), at most (2^(w-1) - 1)/n in size;    E s q_i = p_i m_i
    sent        q_i + masks, modulo 2^w: its low w bits
    sum         s sum_i q_i, exactly

The step s is a power of two that the coordinator says with the server's message, which is public. A site takes any:
one that is too small makes numbers saturate and one that is too large makes them coarse, and neither tells more of the
rows. So that the next step fits, each site appends its largest number, of which the coordinator reads the sum as well:
no number of any site is larger than that.
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
"""How many times more than all largest numbers of the last round together a number may be."""


def cap(n: int, bits: int) -> int:
    """The largest number of a site: sums of n do not wrap."""
    return (2 ** (bits - 1) - 1) // n


def exponent(together: float, n: int, bits: int) -> int:
    """Of the step, after a round in which the largest numbers of all sites had this sum."""
    if not 0 < together < inf:
        return FINEST
    fraction, power = frexp(ROOM * together / cap(n, bits))
    return min(max(power - (fraction == 0.5), FINEST), COARSEST)


def quantise(values: NDArray[np.float64], step: float, n: int, bits: int, u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers of steps, rounded at random by u; what is not finite or too large saturates."""
    most = cap(n, bits)
    return np.clip(np.nan_to_num(np.floor(values / step + u), nan=0.0), -most, most).astype(np.int64)


def with_largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Behind them the largest in size."""
    return np.append(values, np.abs(values).max(initial=0.0))


def to_bytes(words: Words, bits: int) -> Tensor:
    """Their low bits, as a row of bytes."""
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
    """What masks depend on: words of two steps never share one."""
    return broadcast if grain is None else broadcast + f" grain {grain}".encode()


def read_exponent(value: Any) -> int:
    """What the coordinator said, or RunError."""
    good = isinstance(value, int) and not isinstance(value, bool) and FINEST <= value <= COARSEST
    if not good:
        raise RunError(f"grain = {value!r:.40} is no whole number between {FINEST} and {COARSEST}")
    return int(value)
