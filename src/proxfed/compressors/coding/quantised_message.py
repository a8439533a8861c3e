"""What a quantiser sends for a row: three bytes of step, one of offset, and the levels."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors.arrays import host, tensor
from proxfed.compressors.coding import plane_code, subset_code, wire
from proxfed.compressors.coding.planes import put_together, take_apart
from proxfed.compressors.coding.reader import Reader, check, reading
from proxfed.compressors.step_search import LOWEST, Quantised, values
from proxfed.types import Compressor, Packed

ZERO, NOT_FINITE = bytes(3), b"\xff" * 3
"""The whole message of a row without a step."""


def write(q: Quantised, largest: int) -> list[bytes]:
    """The messages of rows that are finite and not zero; no level is above `largest`."""
    width, code = wire.width(largest), _code(q.level.shape[1])
    heads = [
        (((int(e) + 4096) << 11) | (int(m) - 2048)).to_bytes(3, "little") + bytes([int(offset) - LOWEST])
        for m, e, offset in zip(q.m, q.e, q.offset, strict=True)
    ]
    return [head + code.write(take_apart(level), width) for head, level in zip(heads, q.level, strict=True)]


def read(message: Reader, d: int, dtype: np.dtype, largest: int) -> np.ndarray | float:
    """The row (d,), or 0.0 or NaN if all of it is."""
    step = message.take(3).tobytes()
    if step in (ZERO, NOT_FINITE):
        return 0.0 if step == ZERO else np.nan
    number, info = int.from_bytes(step, "little"), np.finfo(dtype)
    m, e = 2048 + (number & 2047), (number >> 11) - 4096
    least = int(np.log2(float(info.smallest_subnormal))) - 11
    check(least <= e <= info.maxexp - 11, "the step is no number")
    offset = int(message.take(1)[0]) + LOWEST
    level = put_together(_code(d).read(message, d, wire.width(largest)), largest)
    return values(Quantised(np.array([m]), np.array([e]), np.array([offset]), level[None]), dtype)[0]


def pack(messages: list[bytes], dense: np.ndarray, like: Tensor, compressor: Compressor) -> Packed:
    """Messages that are written already: their length is the only way to count them."""
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


def _code(d: int) -> Any:
    """How planes are written; from about this length on the coders are as short, and faster."""
    return subset_code if d <= 2048 else plane_code
