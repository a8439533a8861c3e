"""Levels of a quantiser, signed whole numbers, as bit planes.

The first plane marks the levels that are not 0, the next those of these above 1 in size, and so on. Some planes have
few ones and others few zeros, whatever the levels; the codes of the planes depend only on these counts: urn_code.py for
short vectors, plane_code.py for long ones. Both use whole numbers only, so that bits are the same on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proxfed.compressors.coding.reader import check

MOST = 15
"""The maximum number of planes; remainders of larger levels are separate numbers."""


class Planes(NamedTuple):
    """Levels as bit planes, their signs, and the remainders of large ones."""

    bits: list[np.ndarray]
    """Booleans; the length of each plane is the number of ones in the previous one, at least one."""
    negative: np.ndarray
    """The signs of the levels that are not 0."""
    high: np.ndarray
    """The remainders, a number >= 0 for each one in plane 15; empty if there are fewer planes."""

    @property
    def counts(self) -> list[int]:
        """The number of ones in each plane, with a 0 for the first plane that would have none."""
        counts = [int(np.count_nonzero(plane)) for plane in self.bits]
        return counts if len(counts) == MOST else [*counts, 0]


def take_apart(level: np.ndarray) -> Planes:
    """Levels (d,)."""
    # By indices, because masks are several times slower: their branches are unpredictable.
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
