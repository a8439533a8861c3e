"""The code of a long vector's planes, as bytes whose probabilities follow from the counts, for rans.py.

A plane with few ones, or few zeros, is coded as the gaps between them instead. Messages have the counts, the remainders
of large levels, gaps, signs, and the coders' output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from proxfed.compressors.coding import rans, wire
from proxfed.compressors.coding.planes import MOST, Planes
from proxfed.compressors.coding.reader import Reader, check

_FEW = 32
"""If fewer than a 32nd are ones, gaps are as short, and faster."""


def write(planes: Planes, width: int) -> bytes:
    """No level has more than `width` bits."""
    model = _Model.of(planes.counts, len(planes.bits[0]))
    signs, coded = wire.pack_flags(planes.negative), b""
    if model.coded:
        symbols = np.concatenate([np.packbits(planes.bits[k]) for k in model.coded])
        split = 2 * model.lanes
        coded = rans.write(symbols, model.kinds, model.tables, signs[:split].ljust(split, b"\0"))
        signs = signs[split:]
    gaps = [_write_gaps(planes.bits[k], planes.counts[k]) for k in model.gaps]
    high = [wire.write(planes.high, width)] if len(planes.high) else []
    return b"".join([*map(_write_count, planes.counts), *high, *gaps, signs, coded])


def read(message: Reader, d: int, width: int) -> Planes:
    """Read the planes from the rest of the message."""
    counts = [d]
    while len(counts) <= MOST and counts[-1] > 0:
        counts.append(_read_count(message, counts[-1]))
    model, nonzero = _Model.of(counts[1:], d), counts[1]
    high = wire.read(message, counts[-1], width) if counts[-1] else np.empty(0, np.int64)
    bits = {k: _read_gaps(message, counts[k + 1], counts[k]) for k in model.gaps}
    signs = message.take(max(0, wire.whole_bytes(nonzero) - 2 * model.lanes)).tobytes()
    if model.coded:
        symbols, payload = rans.read(message.take(len(message.rest)), model.kinds, model.tables, model.lanes)
        coded, signs = Reader(symbols.tobytes()), payload + signs
        bits |= {k: coded.bits(counts[k]).view(bool) for k in model.coded}
    for k, plane in bits.items():
        check(np.count_nonzero(plane) == counts[k + 1], f"a plane has not the {counts[k + 1]} ones that it announces")
    rest = Reader(signs)
    negative = wire.unpack_flags(rest, nonzero)
    check(not rest.rest.any(), "the bytes that fill up the signs are not 0")
    return Planes([bits[k] for k in sorted(bits)], negative, high)


class _Model(NamedTuple):
    """The quantities that follow from the counts."""

    gaps: list[int]  # planes with few ones, or few zeros
    coded: list[int]  # the others
    kinds: np.ndarray  # for every byte of the coded planes, the index of its plane
    tables: np.ndarray  # (coded planes, 256): the frequencies of their bytes
    lanes: int  # the number of coders

    @classmethod
    def of(cls, counts: Sequence[int], d: int) -> _Model:
        planes = [(ones, n) for ones, n in zip(counts, [d, *counts], strict=False) if ones]
        few = [min(ones, n - ones) * _FEW < n for ones, n in planes]
        coded = [plane for plane, small in zip(planes, few, strict=True) if not small]
        kinds = np.repeat(np.arange(len(coded)), [wire.whole_bytes(n) for _, n in coded])
        tables = np.array([_frequencies(ones, n) for ones, n in coded])
        rarer = [(min(ones, n - ones), n) for ones, n in coded]
        length = sum(m * (n // m).bit_length() for m, n in rarer)  # approximate bits; a coder costs eight
        gaps = [k for k, small in enumerate(few) if small]
        return cls(
            gaps, [k for k, small in enumerate(few) if not small], kinds, tables, max(1, length // 800) if coded else 0
        )


_ONES = np.array([byte.bit_count() for byte in range(256)])


def _frequencies(ones: int, n: int) -> np.ndarray:
    """Frequencies of the 256 bytes in 2^15, if each bit is one with probability ones / n; none is 0."""
    each = [max(1, (ones**j * (n - ones) ** (8 - j) << rans.PRECISION) // n**8) for j in range(9)]
    table = np.array(each)[_ONES]
    table[0 if 2 * ones < n else 255] += 2**rans.PRECISION - table.sum()
    return table


def _write_gaps(plane: np.ndarray, ones: int) -> bytes:
    index = np.flatnonzero(plane if 2 * ones < len(plane) else ~plane)
    return wire.write(wire.gaps(index, np.array([len(index)]), len(plane)), wire.width(len(plane) - 1))


def _read_gaps(message: Reader, ones: int, n: int) -> np.ndarray:
    rare = 2 * ones < n
    plane = np.full(n, not rare)
    plane[wire.read_indices(message, ones if rare else n - ones, n)] = rare
    return plane


def _write_count(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the last byte is below 128."""
    out = []
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _read_count(message: Reader, most: int) -> int:
    number, shift = 0, 0
    while (byte := int(message.take(1)[0])) >= 128:
        number |= (byte & 127) << shift
        shift += 7
        check(shift <= wire.width(most), f"a count is above {most}")
    number |= byte << shift
    check(number <= most and (byte > 0 or shift == 0), f"a count is not one of 0..{most}")
    return number
