"""A quantiser's message for a row: its step, its offset, and the levels.

A long row begins with three bytes of step and one of offset. A short row is one large number: eight to twelve bits for
usual steps, three to seven of offset, and the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors.arrays import host, tensor
from proxfed.compressors.coding import plane_code, urn_code, wire
from proxfed.compressors.coding.planes import MOST, Planes, put_together, take_apart
from proxfed.compressors.coding.reader import Reader, check, reading
from proxfed.compressors.step_search import LOWEST, MANTISSA, PARTS, SHORT, Quantised, offset_unit, step_bits, values
from proxfed.types import Compressor, Packed

EXPONENTS = 1 << 13
"""The number of exponents e of steps m 2^e, from -4096 on."""

USUAL, FIRST_USUAL = 64, -60
"""Usual exponents, their number and the first: steps of 2^-49 to 2^15."""


def zero(d: int) -> bytes:
    """The message of a zero row."""
    return bytes(1 if d <= SHORT else 3)


def not_finite(d: int) -> bytes:
    """The message of a row with an infinite number or NaN."""
    return bytes(2) if d <= SHORT else b"\xff" * 3


def write(q: Quantised, largest: int) -> list[bytes]:
    """The messages of finite non-zero rows; no level is above `largest`."""
    write, width = _short if q.level.shape[1] <= SHORT else _long, wire.width(largest)
    rows = zip(q.m.tolist(), q.e.tolist(), q.offset.tolist(), q.level, strict=True)
    return [write(*row, width) for row in rows]


def _short(m: int, e: int, offset: int, level: np.ndarray, width: int) -> bytes:
    d, to = len(level), urn_code.Writer()
    usual = 0 <= e - FIRST_USUAL < USUAL
    to.digit(int(usual), 2)
    to.digit(e - FIRST_USUAL if usual else e + EXPONENTS // 2, USUAL if usual else EXPONENTS)
    bits, unit = step_bits(d), offset_unit(d)
    to.digit((m >> MANTISSA - bits) - (1 << bits - 1), 1 << bits - 1)
    to.digit((offset - LOWEST) // unit, PARTS // unit)
    urn_code.write(to, take_apart(level), width)
    return to.message()


def _long(m: int, e: int, offset: int, level: np.ndarray, width: int) -> bytes:
    step = (e + EXPONENTS // 2) << MANTISSA - 1 | m - (1 << MANTISSA - 1)
    return step.to_bytes(3, "little") + bytes([offset - LOWEST]) + plane_code.write(take_apart(level), width)


def read(message: Reader, d: int, dtype: np.dtype, largest: int) -> np.ndarray | float:
    """The row (d,), or 0.0 or NaN if all of it is."""
    start = message.rest[: len(zero(d)) + 1].tobytes()
    for whole, value in ((zero(d), 0.0), (not_finite(d), np.nan)):
        if start[: len(whole)] == whole and (d > SHORT or len(message.rest) == len(whole)):
            message.take(len(whole))
            return value
    width, info = wire.width(largest), np.finfo(dtype)
    m, e, offset, planes = (_read_short if d <= SHORT else _read_long)(message, d, width)
    least = int(np.log2(float(info.smallest_subnormal))) - MANTISSA + 1
    check(least <= e <= info.maxexp - MANTISSA + 1, "the step is no number")
    level = put_together(planes, largest)
    return values(Quantised(np.array([m]), np.array([e]), np.array([offset]), level[None]), dtype)[0]


def _read_short(message: Reader, d: int, width: int) -> tuple[int, int, int, Planes]:
    digits = urn_code.Digits(message, (MOST + 2 * width) * (d + 8))
    usual = digits.digit(2) == 1
    e = digits.digit(USUAL) + FIRST_USUAL if usual else digits.digit(EXPONENTS) - EXPONENTS // 2
    check(usual or not 0 <= e - FIRST_USUAL < USUAL, "a usual exponent is written as one that is not")
    bits, unit = step_bits(d), offset_unit(d)
    m = (digits.digit(1 << bits - 1) + (1 << bits - 1)) << MANTISSA - bits
    offset = digits.digit(PARTS // unit) * unit + LOWEST
    return m, e, offset, urn_code.read(digits, d, width)


def _read_long(message: Reader, d: int, width: int) -> tuple[int, int, int, Planes]:
    step = int.from_bytes(message.take(3).tobytes(), "little")
    m, e = (step & (1 << MANTISSA - 1) - 1) + (1 << MANTISSA - 1), (step >> MANTISSA - 1) - EXPONENTS // 2
    return m, e, int(message.take(1)[0]) + LOWEST, plane_code.read(message, d, width)


def pack(messages: list[bytes], dense: np.ndarray, like: Tensor, compressor: Compressor) -> Packed:
    """Pack messages that are already encoded: their length is the only count."""
    length = np.array([len(message) for message in messages], np.int64)
    sent = np.zeros((len(messages), length.max(initial=0)), np.uint8)
    for row, message in zip(sent, messages, strict=True):
        row[: len(message)] = np.frombuffer(message, np.uint8)
    parts = {"message": tensor(sent, like), "length": tensor(length, like)}
    return Packed(parts, tensor(dense, like), int(length.sum()), int(length.sum()), compressor)


def unpack(packed: Packed) -> list[bytes]:
    """The messages that were packed."""
    rows, lengths = host(packed.parts["message"]), host(packed.parts["length"])
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def decode(messages: Sequence[bytes], d: int, dtype: Any, largest: int, most: float = inf) -> Tensor:
    """The rows (c, d) of these messages, each of at most so many bytes."""
    dense = np.empty((len(messages), d), torch.empty(0, dtype=dtype).numpy().dtype)
    for i, sent in enumerate(messages):
        with reading(i, sent) as message:
            check(len(sent) <= most, f"it has {len(sent)} bytes, more than {most}")
            dense[i] = read(message, d, dense.dtype, largest)
    return torch.from_numpy(dense)
