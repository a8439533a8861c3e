"""Messages that a server reads one by one, because their mean is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors.arrays import host
from proxfed.compressors.coding import quantised_message
from proxfed.compressors.coding.reader import Reader, check, reading
from proxfed.compressors.error_bounded import ErrorBoundedQuantiser
from proxfed.compressors.identity import Identity
from proxfed.compressors.step_search import LEAST, largest_level
from proxfed.errors import require
from proxfed.keyed_random import Key
from proxfed.types import Packed

SMALLEST, LARGEST = 2.0**-39.75, 2.0**23.75
"""The range of non-zero sizes in a byte, in quarters of an octave."""

EIGHTHS = 64
"""A byte holds factors from 2^-8 to 2^(63/8), in eighths of an octave, and a sign."""


@dataclass(frozen=True)
class QuantisedRows(ErrorBoundedQuantiser):
    """An ErrorBoundedQuantiser whose messages the server reads one by one."""

    beside: ClassVar[int] = 0


@dataclass(frozen=True)
class DenseRows(Identity):
    """Rows (size, a, v) of uncompressed numbers."""

    beside: ClassVar[int] = 2


@dataclass(frozen=True)
class CurvaturePieces:
    """Rows (size, a, v): the size of a matrix, in one byte; and, if a is not 0, a piece a v v' of it.

    The piece is one byte for a and the message of an ErrorBoundedQuantiser for v. Sizes are rounded up to quarters of
    an octave, and a to the nearest eighth of one; the results of `size_code`, `factor_code` and the quantiser are sent
    exactly.
    """

    beside: ClassVar[int] = 2
    unbiased: ClassVar[bool] = False
    q2: float = LEAST
    """The smallest bound on the relative squared error of v."""

    def __post_init__(self) -> None:
        self._vectors  # noqa: B018  refuses a q2 that is out of range

    @property
    def _vectors(self) -> ErrorBoundedQuantiser:
        return ErrorBoundedQuantiser(self.q2)

    def contraction(self, d: int) -> float:
        """1, so not contractive: if v is short, the rounding of sizes and factors exceeds any q2 < 1."""
        return 1.0

    def __call__(self, v: Tensor, key: Key) -> Packed:
        require(v.shape[1] > 2, f"CurvaturePieces: rows of {v.shape[1]} numbers have no room for a piece")
        size, a = size_code(host(v[:, 0])), factor_code(host(v[:, 1]))
        return self.pack(size, a, self._vectors(v[:, 2:], key))

    def pack(self, size: np.ndarray, a: np.ndarray, v: Packed) -> Packed:
        """From the codes of sizes and factors, (c,), and vectors that are packed already; those of a = 0 stay away."""
        dense, messages = host(v.dense), quantised_message.unpack(v)
        rows = np.zeros((len(dense), 2 + dense.shape[1]), dense.dtype)
        rows[:, 0], rows[:, 1], there = size_of(size), factor_of(a), a > 0
        rows[there, 2:] = dense[there]
        codes = zip(size.tolist(), a.tolist(), messages, strict=True)
        sent = [bytes([s]) + (bytes([f]) + message if f else b"") for s, f, message in codes]
        return quantised_message.pack(sent, rows, v.dense, self)

    def encode(self, packed: Packed) -> list[bytes]:
        return quantised_message.unpack(packed)

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        check(d > 2, f"rows of {d} numbers have no room for a piece")
        rows, largest = (
            np.zeros((len(messages), d), torch.empty(0, dtype=dtype).numpy().dtype),
            largest_level(d - 2, self.q2),
        )
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                rows[i] = self._row(message, d, rows.dtype, largest)
        return torch.from_numpy(rows)

    def _row(self, message: Reader, d: int, dtype: np.dtype, largest: int) -> np.ndarray:
        row, size = np.zeros(d, dtype), message.take(1)
        row[0] = size_of(size)[0]
        if len(message.rest):
            a = message.take(1)
            check(int(a[0]) > 0, "a piece has no factor")
            row[1] = factor_of(a)[0]
            row[2:] = quantised_message.read(message, d - 2, dtype, largest)
        return row


def size_code(size: np.ndarray) -> np.ndarray:
    """The next larger size with a code, and 0 for 0; clipped to the range."""
    with np.errstate(divide="ignore"):
        quarters = np.ceil(4 * np.log2(np.maximum(size.astype(np.float64), 0)))
    return np.where(size > 0, np.clip(quarters + 160, 1, 255), 0).astype(np.uint8)


def size_of(code: np.ndarray) -> np.ndarray:
    return np.where(code > 0, np.exp2((code.astype(np.float64) - 160) / 4), 0.0)


def factor_code(a: np.ndarray) -> np.ndarray:
    """The nearest factor with a code, and 0 for 0; clipped to the range."""
    with np.errstate(divide="ignore"):
        eighths = np.rint(8 * np.log2(np.abs(a.astype(np.float64))))
    return np.where(a != 0, 128 * (a < 0) + np.clip(eighths + EIGHTHS, 1, 127), 0).astype(np.uint8)


def factor_of(code: np.ndarray) -> np.ndarray:
    size = np.exp2(((code & 127).astype(np.float64) - EIGHTHS) / 8)
    return np.where(code > 0, np.where(code > 127, -size, size), 0.0)
