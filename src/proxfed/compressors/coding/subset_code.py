"""The planes of a short vector as one large number, whose digits say which subset each plane is (Cover 1973).

That is as short as an adaptive code of the same bits, to the byte, and there is no table to send. The counts are its
lowest digits, in whole bits each: they are read first, and say how long it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import comb, prod

import numpy as np

from proxfed.compressors.coding import wire
from proxfed.compressors.coding.planes import MOST, Planes
from proxfed.compressors.coding.reader import Reader, check


def write(planes: Planes, width: int) -> bytes:
    """No level has more than `width` bits."""
    lengths = [len(planes.bits[0]), *planes.counts]
    high = (planes.high + 1).tolist()
    bits = [left.bit_length() - 1 for left in high]
    digits = [(ones, 1 << wire.width(n)) for n, ones in pairwise(lengths)]  # (digit, radix), the lowest first
    digits += [(length, 1 << wire.width(width)) for length in bits]
    digits += [
        (_rank(plane.tolist()), comb(n, ones)) for plane, (n, ones) in zip(planes.bits, pairwise(lengths), strict=False)
    ]
    digits += [(left - (1 << length), 1 << length) for left, length in zip(high, bits, strict=True)]
    signs = np.packbits(planes.negative, bitorder="little").tobytes()
    digits.append((int.from_bytes(signs, "little"), 1 << len(planes.negative)))
    number = 0
    for digit, radix in reversed(digits):
        number = number * radix + digit
    return number.to_bytes(_bytes_below(prod(radix for _, radix in digits)), "little")


def read(message: Reader, d: int, width: int) -> Planes:
    """From all that is left of the message."""
    body = message.rest
    check(len(body) <= (MOST + 2 * width) * (d + 8), f"it has {len(body)} bytes for {d} levels")
    number, bound = int.from_bytes(message.take(len(body)).tobytes(), "little"), 1

    def digit(radix: int) -> int:
        nonlocal number, bound
        bound *= radix
        number, value = divmod(number, radix)
        return value

    counts = [d]
    while len(counts) <= MOST and counts[-1]:
        counts.append(digit(1 << wire.width(counts[-1])))
        check(counts[-1] <= counts[-2], f"a plane of {counts[-2]} announces {counts[-1]} ones")
    lengths = [digit(1 << wire.width(width)) for _ in range(counts[-1])]
    bits = [np.array(_subset(digit(comb(n, ones)), n, ones)) for n, ones in pairwise(counts) if ones]
    high = [(1 << length) + digit(1 << length) - 1 for length in lengths]
    signs = np.frombuffer(digit(1 << counts[1]).to_bytes(wire.whole_bytes(counts[1]), "little"), np.uint8)
    check(number == 0 and len(body) == _bytes_below(bound), f"the number in {len(body)} bytes is none of such levels")
    negative = np.unpackbits(signs, count=counts[1], bitorder="little").view(bool)
    return Planes(bits, negative, np.array(high, np.int64))


def _rank(bits: Sequence[bool]) -> int:
    """The number of this subset of 0..n-1 among those of its size."""
    k = sum(bits)
    rank, c = 0, comb(len(bits) - 1, k)  # c: subsets of 0..p-1 with as many elements as are left
    for p in range(len(bits) - 1, 0, -1):
        if bits[p]:
            rank += c
            c, k = c * k // p, k - 1
        else:
            c = c * (p - k) // p
    return rank


def _subset(rank: int, n: int, k: int) -> list[bool]:
    """The inverse."""
    bits, c = [False] * n, comb(n - 1, k)
    for p in range(n - 1, 0, -1):
        if k and rank >= c:
            bits[p], rank = True, rank - c
            c, k = c * k // p, k - 1
        else:
            c = c * (p - k) // p
    bits[0] = k == 1
    return bits


def _bytes_below(bound: int) -> int:
    """Bytes that hold every number below the bound."""
    return int(wire.whole_bytes((bound - 1).bit_length()))
