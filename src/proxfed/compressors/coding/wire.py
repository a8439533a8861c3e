"""Compact codes of numbers, and their sizes in bytes, which are known before encoding.

Whole numbers >= 0 are sent as one header byte and then in the shorter of two codes:

    fixed   every number in the same `width` bits, which both ends know                     header FIXED
    Rice    g as g >> r in unary, all of them, then the r low bits of each (Rice 1979)      header r

A set of indices below d is coded as its gaps. That covers the usual choices: fixed gaps take the ceil(log2 d) bits of
fixed indices (never more than 4 bytes each), and Rice gaps with r = 0 are the bitmap of the set, cut off after its last
one.

Sizes are computed for all clients at once: `values` has their numbers in order, count[i] of client i.
Reading checks the numbers: a message with values out of range, or not in canonical form, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from proxfed.compressors.coding.reader import Reader, check
from proxfed.machine import numba_is_used

FIXED = 255

MANY = 2**15
"""From this many numbers on, compiled loops (kernels.py) read them, if numba is installed: loading it takes time."""


def width(largest: int) -> int:
    """Bits of a number in 0..largest."""
    return int(largest).bit_length()


def whole_bytes(bits: Any) -> Any:
    """The number of bytes for these bits; a number or an array."""
    return -(-bits // 8)


# ------------------------------------------------------------------------------------------------- uncoded tensors


def rows(part: Tensor) -> list[bytes]:
    """The memory of each row."""
    return [row.tobytes() for row in part.contiguous().cpu().numpy()]


def join(*parts: Sequence[bytes]) -> list[bytes]:
    """The concatenated parts of each client."""
    return [b"".join(row) for row in zip(*parts, strict=True)]


# ----------------------------------------------------------------------------------- whole numbers >= 0, index sets


def sizes(values: np.ndarray, count: np.ndarray, width: int) -> np.ndarray:
    """The length of `write`'s result for each client, (c,)."""
    return _plan(values, count, width)[1]


def write(values: np.ndarray, width: int) -> bytes:
    """The numbers of one client, in the shorter code."""
    header = int(_plan(values, np.array([len(values)]), width)[0][0])
    if header == FIXED:
        return bytes([FIXED]) + pack(values, width)
    return bytes([header]) + _unary(values >> header) + pack(values & ((1 << header) - 1), header)


def read(message: Reader, count: int, width: int) -> np.ndarray:
    """Read `count` numbers below 2^width."""
    r = int(message.take(1)[0])
    if r == FIXED:
        values = unpack(message, count, width)
    else:
        check(r < width, f"{r} is no header of numbers with {width} bits")
        high = _read_unary(message, count, whole_bytes(count * width))
        check(int(high.max(initial=0)) >> (width - r) == 0, f"a number has more than {width} bits")
        values = _append(high, message.packed(count * r), r)
    check(r == _plan(values, np.array([count]), width)[0][0], "the numbers are not in their shortest code")
    return values


def _plan(values: np.ndarray, count: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(header, bytes including the header) per client. The best r is close to log2 of the mean, so three are tried."""
    middle = np.frexp(_sums(values, count) / np.maximum(count, 1))[1] - 1
    header, nbytes = np.full(count.shape, FIXED), 1 + whole_bytes(count * width)
    tried = range(max(0, middle.min() - 1), max(0, middle.max() + 1) + 1) if len(count) else ()
    for r in tried:
        rice = 1 + whole_bytes(count + _sums(values, count, r)) + whole_bytes(count * r)
        better = (abs(r - np.maximum(middle, 0)) <= 1) & (rice < nbytes)
        header, nbytes = np.where(better, r, header), np.where(better, rice, nbytes)
    return header, nbytes


def gaps(flat: np.ndarray, count: np.ndarray, d: int) -> np.ndarray:
    """The number of skipped indices before each one, client by client. flat: ascending positions in a (c, d) array."""
    gap = np.empty(len(flat), np.int32)
    np.subtract(flat[1:], flat[:-1] + 1, out=gap[1:], casting="unsafe")
    first = _starts(count)[count > 0]
    gap[first] = flat[first] % d
    return gap


def read_indices(message: Reader, count: int, d: int) -> np.ndarray:
    """The indices of one client, ascending and below d, from their gaps."""
    index = read(message, count, width(d - 1)).cumsum()
    index += np.arange(count)
    check(count == 0 or index[-1] < d, f"an index is not below {d}")
    return index


# -------------------------------------------------------------- whole numbers in -largest..largest, many of them zero


def signed_sizes(values: np.ndarray, largest: int) -> np.ndarray:
    """The length of `write_signed`'s result for each row of (c, d)."""
    return np.minimum(*_signed_sizes(values, largest))


def write_signed(values: np.ndarray, largest: int) -> bytes:
    """A header byte, then sign and magnitude of all numbers, or of the non-zero ones."""
    bits = width(largest)
    full, sparse = _signed_sizes(values[None], largest)
    if full <= sparse:
        return b"\0" + pack((values < 0) * (1 << bits) + np.abs(values), 1 + bits)
    index = np.flatnonzero(values)
    kept = values[index]
    where = write(gaps(index, np.array([len(index)]), len(values)), width(len(values) - 1))
    return b"\1" + len(index).to_bytes(4, "little") + where + pack_flags(kept < 0) + write(np.abs(kept) - 1, bits)


def read_signed(message: Reader, d: int, largest: int) -> np.ndarray:
    """The (d,) numbers that `write_signed` wrote."""
    bits, sparse = width(largest), int(message.take(1)[0])
    check(sparse <= 1, f"{sparse} is no header of signed numbers")
    if not sparse:
        code = unpack(message, d, 1 + bits)
        negative, magnitude = code >> bits, code & ((1 << bits) - 1)
        check(magnitude.max() <= largest, f"a level is above {largest}")
        check(bool(magnitude[negative > 0].all()), "a level is 0 and has a sign")
        return _in_the_shorter_form(np.where(negative, -1, 1) * magnitude, largest, 0)
    kept = int.from_bytes(message.take(4).tobytes(), "little")
    check(kept <= d, f"it announces {kept} of {d} numbers")
    index, negative = read_indices(message, kept, d), unpack_flags(message, kept)
    magnitude = read(message, kept, bits) + 1
    check(kept == 0 or magnitude.max() <= largest, f"a level is above {largest}")
    values = np.zeros(d, np.int64)
    values[index] = np.where(negative, -1, 1) * magnitude
    return _in_the_shorter_form(values, largest, 1)


def _in_the_shorter_form(values: np.ndarray, largest: int, form: int) -> np.ndarray:
    full, sparse = _signed_sizes(values[None], largest)
    check(form == int(full[0] > sparse[0]), "the levels are not in their shorter form")
    return values


def _signed_sizes(values: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    (c, d), bits = values.shape, width(largest)
    count = np.count_nonzero(values, axis=1)
    where = sizes(gaps(np.flatnonzero(values), count, d), count, width(d - 1))
    magnitude = sizes(np.abs(values[values != 0]) - 1, count, bits)
    return np.full(c, 1 + whole_bytes(d * (1 + bits))), 5 + where + whole_bytes(count) + magnitude


# ---------------------------------------------------------------------------------------------------------------- bits


def pack(values: np.ndarray, width: int) -> bytes:
    """Numbers below 2^width, one after another in exactly `width` bits each, the highest first.

    Eight numbers take `width` bytes, so that the same few shifts encode all groups of eight at once.
    """
    groups = -(-len(values) // 8)
    filled = np.zeros(8 * groups, _word(width))
    filled[: len(values)] = values
    eight = np.ascontiguousarray(filled.reshape(groups, 8).T)
    out = np.zeros((groups, width), np.uint8)
    for byte in range(width):
        for j in range(8 * byte // width, (8 * byte + 7) // width + 1):
            shift = 8 * (byte + 1) - (j + 1) * width
            part = eight[j] << shift if shift >= 0 else eight[j] >> -shift
            out[:, byte] |= part.astype(np.uint8)
    return out.tobytes()[: whole_bytes(len(values) * width)]


def unpack(message: Reader, count: int, width: int) -> np.ndarray:
    """Read `count` numbers of `width` bits."""
    body = message.packed(count * width)
    return _append(np.zeros(count, np.int64), body, width)


def _append(high: np.ndarray, body: np.ndarray, width: int) -> np.ndarray:
    """The numbers, each followed by its next `width` bits; `high` is overwritten."""
    if width == 0:
        return high
    count = len(high)
    if loops := _loops(count):
        loops.append_bits(loops.words(body), width, high)
        return high
    groups = -(-count // 8)
    data = np.zeros((groups, width), np.uint8)
    data.ravel()[: len(body)] = body
    out, mask = np.zeros((groups, 8), np.int64), (1 << width) - 1
    for j in range(8):
        first, last = j * width // 8, ((j + 1) * width - 1) // 8
        number = data[:, first].astype(_word(width))
        for byte in range(first + 1, last + 1):
            number <<= 8
            number |= data[:, byte]
        number >>= 8 * (last + 1) - (j + 1) * width
        number &= mask
        out[:, j] = number
    high <<= width
    high |= out.ravel()[:count]
    return high


def pack_flags(flags: np.ndarray) -> bytes:
    """Booleans, one bit each."""
    return np.packbits(flags).tobytes()


def unpack_flags(message: Reader, count: int) -> np.ndarray:
    """Read `count` booleans."""
    return message.bits(count).view(bool)


def _word(width: int) -> Any:
    """An integer type for numbers of so many bits plus the other bits of their first and last bytes."""
    return np.uint32 if width <= 18 else np.uint64


def _unary(values: np.ndarray) -> bytes:
    """Each number as so many zeros and a one."""
    ends = np.cumsum(values + 1)
    bits = np.zeros(len(values) + int(values.sum()), np.uint8)
    bits[ends - 1] = 1
    return np.packbits(bits).tobytes()


def _read_unary(message: Reader, count: int, most: int) -> np.ndarray:
    """Unary numbers of at most `most` bytes in total; longer ones would use the fixed code."""
    body, size = message.rest[:most], whole_bytes(3 * count) + 8  # usually two bits each
    if loops := _loops(count):
        high = np.empty(min(count, 8 * len(body)), np.int64)
        found, bits = loops.unary(loops.words(body), high)
    else:
        while True:
            ones = np.flatnonzero(np.unpackbits(body[:size]).view(bool))[:count]
            if len(ones) == count or size >= len(body):
                break
            size *= 2
        found, bits, high = len(ones), int(ones[-1]) + 1 if len(ones) else 0, np.diff(ones, prepend=-1) - 1
    check(found == count, f"it has {found} of {count} numbers")
    message.packed(bits)
    return high


def _loops(count: int) -> Any:
    """The compiled loops if they are worthwhile, else None."""
    if count < MANY or not numba_is_used():
        return None
    from proxfed.compressors.coding import kernels

    return kernels


def _starts(count: np.ndarray) -> np.ndarray:
    """The position of each client's first number."""
    return np.cumsum(count) - count


def _sums(values: np.ndarray, count: np.ndarray, r: int = 0) -> np.ndarray:
    """The sum of each client's numbers, each >> r, (c,)."""
    total, some = np.zeros(count.shape, np.int64), count > 0
    if loops := _loops(len(values)):
        loops.sums(values, count, r, total)
    elif some.any():
        total[some] = np.add.reduceat(values >> r, _starts(count)[some], dtype=np.int64)
    return total
