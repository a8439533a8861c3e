"""The points of a search space to try: a grid for one setting, quasi-random points for several.

The coordinates of the k-th point of a Halton sequence are the mirrored digits of k: in base 2 for the first setting,
base 3 for the second, and so on. The sequence is deterministic, and further points fill the gaps between earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count as counting
from itertools import islice, product
from math import prod
from typing import Any

from proxfed.errors import require
from proxfed.tuning.space import Space

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)

Values = dict[str, Any]
"""A value for each key."""


def spread(spaces: Mapping[str, Space], count: int) -> list[Values]:
    """At most `count` different points: all of them, if there are no more."""
    keys = list(spaces)
    if len(keys) == 1:
        return [{keys[0]: value} for value in spaces[keys[0]].points(count)]
    few = size(spaces)
    if few is not None and few <= count:
        return [dict(zip(keys, values, strict=True)) for values in product(*(s.points(few) for s in spaces.values()))]
    require(len(keys) <= len(PRIMES), f"{len(keys)} settings of one algorithm are too many: at most {len(PRIMES)}")
    found: list[Values] = []
    for k in islice(counting(1), 100 * count):
        point = {key: spaces[key].at(mirrored(k, base)) for key, base in zip(keys, PRIMES, strict=False)}
        if point not in found:
            found.append(point)
        if len(found) == count:
            break
    return found


def size(spaces: Mapping[str, Space]) -> int | None:
    """The number of points; None: infinitely many."""
    sizes = [space.size for space in spaces.values()]
    return None if None in sizes else prod(s for s in sizes if s is not None)


def mirrored(k: int, base: int) -> float:
    """The radical inverse: the digits of k behind the point, the last one first."""
    value, place = 0.0, 1.0
    while k:
        place /= base
        k, digit = divmod(k, base)
        value += digit * place
    return value
