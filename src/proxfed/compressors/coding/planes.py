"""Levels of a quantiser, whole numbers of either sign, as planes of bits.

The first plane says which levels are not 0, the next which of these are above 1 in size, and so on. Ones are rare in
some planes and zeros in others, whatever the levels are like; how many there are is all that the codes of the planes
ask for: urn_code.py for short vectors, plane_code.py for long ones. Both are in whole numbers alone, so that bits
are the same on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proxfed.compressors.coding.reader import check

MOST = 15
"""Planes. What is left of larger levels is a number of its own."""


class Planes(NamedTuple):
    """Levels as planes of bits, their signs, and what is left of large ones."""

    bits: list[np.ndarray]
    """Truth values; each plane is as long as the one before it has ones, and has at least one."""
    negative: np.ndarray
    """The signs of the levels that are not 0."""
    high: np.ndarray
    """What is left, a number >= 0 for each one in plane 15; if there are fewer planes, nothing is."""

    @property
    def counts(self) -> list[int]:
        """How many ones each plane has, with a 0 for the first plane that would have none."""
        counts = [int(np.count_nonzero(plane)) for plane in self.bits]
        return counts if len(counts) == MOST else [*counts, 0]


def take_apart(level: np.ndarray) -> Planes:
    """Levels (d,)."""
    # By places and not by masks, which are several times slower: whether a bit is one cannot be guessed.
    size = level.take(np.flatnonzero(first := level != 0))
    negative, size = size < 0, np.abs(size) - 1
    bits = [first]
    while len(bits) < MOST and (plane := size > 0).any():
        bits.append(plane)
        size = size.take(np.flatnonzero(plane)) - 1
    return Planes(bits, negative, size if len(bits) == MOST else size[:0])


def put_together(planes: Planes, largest: int) -> np.ndarray:
    """The levels (d,), not all 0, of size at most `largest`."""
    check(len(planes.bits) > 0, "the levels are all 0")
    level = planes.bits[0].astype(np.int32)
    nonzero = place = np.flatnonzero(planes.bits[0])
    for size, plane in enumerate(planes.bits[1:], start=2):
        place = place.take(np.flatnonzero(plane))
        level[place] = size
    top = len(planes.bits) + int(planes.high.max(initial=0))
    check(top <= largest, f"a level is above {largest}")
    if len(planes.bits) == MOST:
        level[place] += planes.high.astype(np.int32)
    below = nonzero.take(np.flatnonzero(planes.negative))
    level[below] = -level[below]
    return level
