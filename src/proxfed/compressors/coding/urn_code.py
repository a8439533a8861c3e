"""A short message as one large number: an asymmetric numeral system (Duda 2009) without limits.

The bits of a plane are drawn from an urn, which starts with the shares of ones and zeros in the previous plane and
learns from every bit. So there are no counts and no table to send, and messages have the ideal length for these
probabilities, rounded up to bytes. The number is read from its lowest digit, so the first symbol to read is written
last. Every number is the code of exactly one message: reading must end at 0, and the last byte is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from proxfed.compressors.coding import wire
from proxfed.compressors.coding.planes import MOST, Planes
from proxfed.compressors.coding.reader import Reader, check

WEIGHT = 4
"""The weight of the previous plane, in bits of the current one."""


class Urn(NamedTuple):
    """The initial counts, and the increment per bit."""

    ones: int
    zeros: int
    more: int

    @classmethod
    def after(cls, ones: int, n: int) -> Urn:
        """The urn after a plane of n bits with so many ones."""
        return cls(WEIGHT * (ones + 1), WEIGHT * (n - ones + 1), n + 2)


FIRST = Urn(2, 1, 1)
"""The urn of the first plane."""


class Writer:
    """Digits, in the order in which they are read."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, int, int]] = []  # (start, size, total) of each symbol's interval

    def digit(self, value: int, radix: int) -> None:
        """A whole number below the radix, uniformly distributed."""
        self._parts.append((value, 1, radix))

    def bits(self, plane: Sequence[bool], urn: Urn) -> None:
        ones, zeros, more = urn
        for bit in plane:
            if bit:
                self._parts.append((zeros, ones, ones + zeros))
                ones += more
            else:
                self._parts.append((0, zeros, ones + zeros))
                zeros += more

    def message(self) -> bytes:
        number = 0
        for start, size, total in reversed(self._parts):
            number = number // size * total + start + number % size
        return number.to_bytes(int(wire.whole_bytes(number.bit_length())), "little")


class Digits:
    """The digits of a message, in order."""

    def __init__(self, message: Reader, most: int) -> None:
        body = message.take(len(message.rest))
        check(len(body) <= most, f"it has {len(body)} bytes, more than {most}")
        check(len(body) > 0 and body[-1] > 0, "the highest byte of the number is 0")
        self._number = int.from_bytes(body.tobytes(), "little")

    def digit(self, radix: int) -> int:
        self._number, value = divmod(self._number, radix)
        return value

    def bits(self, n: int, urn: Urn) -> list[bool]:
        (ones, zeros, more), number, out = urn, self._number, [False] * n
        for j in range(n):
            high, low = divmod(number, ones + zeros)
            if low < zeros:
                number = high * zeros + low
                zeros += more
            else:
                number, out[j] = high * ones + low - zeros, True
                ones += more
        self._number = number
        return out

    def end(self) -> None:
        check(self._number == 0, "the number goes on where the levels end")


def write(to: Writer, planes: Planes, width: int) -> None:
    """No level has more than `width` bits."""
    urn = FIRST
    for plane in [*planes.bits, np.zeros(planes.bits[-1].sum(), bool)][:MOST]:  # a plane without ones ends them
        to.bits(plane.tolist(), urn)
        urn = Urn.after(int(plane.sum()), len(plane))
    for left in (planes.high + 1).tolist():
        length = left.bit_length() - 1
        to.digit(length, width + 1)
        to.digit(left - (1 << length), 1 << length)
    signs = np.packbits(planes.negative, bitorder="little").tobytes()
    to.digit(int.from_bytes(signs, "little"), 1 << len(planes.negative))


def read(digits: Digits, d: int, width: int) -> Planes:
    bits: list[np.ndarray] = []
    n, urn = d, FIRST
    while len(bits) < MOST and any(plane := digits.bits(n, urn)):
        bits.append(np.array(plane))
        n, urn = sum(plane), Urn.after(sum(plane), n)
    high = []
    for _ in range(n if len(bits) == MOST else 0):
        length = digits.digit(width + 1)
        high.append((1 << length) + digits.digit(1 << length) - 1)
    nonzero = int(bits[0].sum()) if bits else 0
    signs = digits.digit(1 << nonzero).to_bytes(int(wire.whole_bytes(nonzero)), "little")
    digits.end()
    negative = np.unpackbits(np.frombuffer(signs, np.uint8), count=nonzero, bitorder="little").view(bool)
    return Planes(bits, negative, np.array(high, np.int64))
