"""Numbers in few bytes, and how many bytes that takes before anything is written.

Whole numbers >= 0 travel as one header byte and then in the shorter of two codes:

    fixed   every number in the same `width` bits, which both ends know                     header FIXED
    Rice    g as g >> r in unary, all of them, then the r low bits of each (Rice 1979)      header r

A set of indices below d is the sequence of its gaps. That covers the usual choices: fixed gaps take the ceil(log2 d)
bits of fixed indices (never more than 4 bytes each), and Rice gaps with r = 0 are the bitmap of the set, cut off after
its last one.

Sizes are computed for all clients at once: `values` has their numbers one after another, count[i] of them of client i.
Readers return what they read and the bytes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError

FIXED = 255
Bytes = np.ndarray  # of uint8


def width(largest: int) -> int:
    """Bits of a number in 0..largest."""
    return int(largest).bit_length()


def whole_bytes(bits: Any) -> Any:
    """Bytes that hold so many bits; a number or an array."""
    return -(-bits // 8)


# ------------------------------------------------------------------------------------------------- tensors, as they are


def rows(part: Tensor) -> list[bytes]:
    """The memory of each row."""
    return [row.tobytes() for row in part.contiguous().cpu().numpy()]


def join(*parts: Sequence[bytes]) -> list[bytes]:
    """The parts of each client, one behind the other."""
    return [b"".join(row) for row in zip(*parts, strict=True)]


def read_floats(buffer: Bytes, count: int, dtype: torch.dtype) -> tuple[Tensor, Bytes]:
    body, rest = take(buffer, count * dtype.itemsize)
    return torch.from_numpy(body.copy()).view(dtype), rest


def buffer(message: bytes) -> Bytes:
    return np.frombuffer(message, np.uint8)


def take(buffer: Bytes, nbytes: int) -> tuple[Bytes, Bytes]:
    """(the first bytes, the others)."""
    if len(buffer) < nbytes:
        raise RunError(f"a compressed message ends {nbytes - len(buffer)} bytes early")
    return buffer[:nbytes], buffer[nbytes:]


# ----------------------------------------------------------------------------------- whole numbers >= 0, index sets


def sizes(values: np.ndarray, count: np.ndarray, width: int) -> np.ndarray:
    """Bytes of what `write` makes for each client, (c,)."""
    return _plan(values, count, width)[1]


def write(values: np.ndarray, width: int) -> bytes:
    """The numbers of one client, in the shorter code."""
    header = int(_plan(values, np.array([len(values)]), width)[0][0])
    if header == FIXED:
        return bytes([FIXED]) + pack(values, width)
    return bytes([header]) + _unary(values >> header) + pack(values & ((1 << header) - 1), header)


def read(buffer: Bytes, count: int, width: int) -> tuple[np.ndarray, Bytes]:
    header, buffer = take(buffer, 1)
    if header[0] == FIXED:
        return unpack(buffer, count, width)
    r = int(header[0])
    high, buffer = _read_unary(buffer, count)
    low, buffer = unpack(buffer, count, r)
    return (high << r) | low, buffer


def _plan(values: np.ndarray, count: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """For each client (header, bytes with the header). A good r is next to log2 of the mean, so three are tried."""
    middle = np.frexp(_sums(values, count) / np.maximum(count, 1))[1] - 1
    header, nbytes = np.full(count.shape, FIXED), 1 + whole_bytes(count * width)
    tried = range(max(0, middle.min() - 1), max(0, middle.max() + 1) + 1) if len(count) else ()
    for r in tried:
        rice = 1 + whole_bytes(count + _sums(values >> r, count)) + whole_bytes(count * r)
        better = (abs(r - np.maximum(middle, 0)) <= 1) & (rice < nbytes)
        header, nbytes = np.where(better, r, header), np.where(better, rice, nbytes)
    return header, nbytes


def gaps(flat: np.ndarray, count: np.ndarray, d: int) -> np.ndarray:
    """How many indices are left out before each one, client by client. flat: ascending positions in a (c, d) array."""
    gap = np.empty(len(flat), np.int32)
    np.subtract(flat[1:], flat[:-1] + 1, out=gap[1:], casting="unsafe")
    first = _starts(count)[count > 0]
    gap[first] = flat[first] % d
    return gap


def indices(gaps: np.ndarray) -> np.ndarray:
    """The indices of one client, from its gaps."""
    return np.cumsum(gaps + 1) - 1


# -------------------------------------------------------------- whole numbers in -largest..largest, many of them zero


def signed_sizes(values: np.ndarray, largest: int) -> np.ndarray:
    """Bytes of what `write_signed` makes of each row of (c, d)."""
    return np.minimum(*_signed_sizes(values, largest))


def write_signed(values: np.ndarray, largest: int) -> bytes:
    """A byte that says which, then sign and magnitude of all numbers, or of those that are not zero."""
    bits = width(largest)
    full, sparse = _signed_sizes(values[None], largest)
    if full <= sparse:
        return b"\0" + pack((values < 0) * (1 << bits) + np.abs(values), 1 + bits)
    index = np.flatnonzero(values)
    kept = values[index]
    where = write(gaps(index, np.array([len(index)]), len(values)), width(len(values) - 1))
    return b"\1" + len(index).to_bytes(4, "little") + where + pack_flags(kept < 0) + write(np.abs(kept) - 1, bits)


def read_signed(buffer: Bytes, d: int, largest: int) -> tuple[np.ndarray, Bytes]:
    bits, (sparse, buffer) = width(largest), take(buffer, 1)
    if not sparse[0]:
        code, buffer = unpack(buffer, d, 1 + bits)
        return np.where(code >> bits, -1, 1) * (code & ((1 << bits) - 1)), buffer
    count, buffer = take(buffer, 4)
    kept = int.from_bytes(count.tobytes(), "little")
    where, buffer = read(buffer, kept, width(d - 1))
    negative, buffer = unpack_flags(buffer, kept)
    magnitude, buffer = read(buffer, kept, bits)
    values = np.zeros(d, np.int64)
    values[indices(where)] = np.where(negative, -1, 1) * (magnitude + 1)
    return values, buffer


def _signed_sizes(values: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    (c, d), bits = values.shape, width(largest)
    count = np.count_nonzero(values, axis=1)
    where = sizes(gaps(np.flatnonzero(values), count, d), count, width(d - 1))
    magnitude = sizes(np.abs(values[values != 0]) - 1, count, bits)
    return np.full(c, 1 + whole_bytes(d * (1 + bits))), 5 + where + whole_bytes(count) + magnitude


# ---------------------------------------------------------------------------------------------------------------- bits


def pack(values: np.ndarray, width: int) -> bytes:
    """Numbers below 2^width, one after another in exactly `width` bits each."""
    size = _container(width)
    bits = np.unpackbits(values.astype(f">u{size}").view(np.uint8).reshape(-1, size), axis=1)
    return np.packbits(bits[:, 8 * size - width :]).tobytes()


def unpack(buffer: Bytes, count: int, width: int) -> tuple[np.ndarray, Bytes]:
    body, rest = take(buffer, whole_bytes(count * width))
    size = _container(width)
    bits = np.zeros((count, 8 * size), np.uint8)
    bits[:, 8 * size - width :] = np.unpackbits(body, count=count * width).reshape(count, width)
    return np.packbits(bits, axis=1).view(f">u{size}")[:, 0].astype(np.int64), rest


def pack_flags(flags: np.ndarray) -> bytes:
    """Truth values, a bit each."""
    return np.packbits(flags).tobytes()


def unpack_flags(buffer: Bytes, count: int) -> tuple[np.ndarray, Bytes]:
    body, rest = take(buffer, whole_bytes(count))
    return np.unpackbits(body, count=count).view(bool), rest


def _container(width: int) -> int:
    """Bytes of the smallest whole number type with so many bits."""
    return next(size for size in (1, 2, 4, 8) if 8 * size >= width)


def _unary(values: np.ndarray) -> bytes:
    """Each number as so many zeros and a one."""
    ends = np.cumsum(values + 1)
    bits = np.zeros(len(values) + int(values.sum()), np.uint8)
    bits[ends - 1] = 1
    return np.packbits(bits).tobytes()


def _read_unary(buffer: Bytes, count: int) -> tuple[np.ndarray, Bytes]:
    ones = np.flatnonzero(np.unpackbits(buffer))[:count]
    if len(ones) < count:
        raise RunError(f"a compressed message has only {len(ones)} of {count} numbers")
    end = whole_bytes(int(ones[-1]) + 1) if count else 0
    return np.diff(ones, prepend=-1) - 1, buffer[end:]


def _starts(count: np.ndarray) -> np.ndarray:
    """Where the numbers of each client start."""
    return np.cumsum(count) - count


def _sums(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The sum of each client's numbers, (c,)."""
    total, some = np.zeros(count.shape, np.int64), count > 0
    if some.any():
        total[some] = np.add.reduceat(values, _starts(count)[some], dtype=np.int64)
    return total
