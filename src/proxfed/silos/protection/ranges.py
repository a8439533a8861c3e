"""The allowed range of every number of a job: from [ranges] of site.toml, or else from this file.

Names in a job are vetted by the registry, which imports nothing. Numbers are vetted here: a number outside its range is
refused, and so is one without a range. A method from another package needs its ranges in site.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

Range = tuple[float, float]


def _same(range_: Range, keys: str) -> dict[str, Range]:
    return dict.fromkeys(keys.split(), range_)


RANGES: dict[str, Range] = {
    **_same((1e-6, 100.0), "eta eta_l eta_g alpha s start inverse_penalty"),  # steps
    **_same((0.0, 100.0), "eta_w"),
    **_same((1, 1000), "K K_min Q T0 memory"),  # local steps and their memory
    **_same((1e-9, 1000.0), "tau"),
    **_same((0.0, 1.0), "beta beta1 beta2 theta decay averaging p gamma_x gamma_y fraction q2"),  # shares
    **_same((0.0, 1000.0), "a gamma rho mu mu_g chi lam curvature"),  # penalties and momenta
    **_same((0.0, 1e6), "l1 l2 weight weight_decay group_weights radius"),  # regularisers
    **_same((-1e6, 1e6), "low high"),
    **_same((0.1, 10.0), "class_weights"),  # a class with a much larger weight would dominate a gradient
    **_same((0.01, 1000.0), "delta"),  # of Huber's loss
    **_same((1e-3, 1e6), "clip"),
    **_same((1, 1e9), "k bucket bytes levels rank shape size m"),  # compressors, groups and cohorts
    **_same((1e-12, 1.0), "epsilon"),  # of Adam
    **_same((0, 1e6), "n rows cols degree root edges labels mix_offset"),
    **_same((-1.0, 1.0), "matrix matrices"),  # of a graph
    **_same((0, 2.0**53), "seed rounds"),  # rounds are bounded by limits.rounds
}


class Number(NamedTuple):
    """One number of a job."""

    where: str
    """'problem.l2'."""
    key: str
    """Its key in the table; for numbers in a list or mapping, the key of that."""
    value: float


def numbers(table: Any, where: str, key: str = "") -> Iterator[Number]:
    """All numbers of a table, with their positions."""
    if isinstance(table, Mapping):
        named = not key or "name" in table
        for inner, value in table.items():
            yield from numbers(value, f"{where}.{inner}", inner if named else key)
    elif isinstance(table, (list, tuple)):
        for value in table:
            yield from numbers(value, where, key)
    elif isinstance(table, (int, float)) and not isinstance(table, bool):
        yield Number(where, key, table)


def why_not(number: Number, own: Mapping[str, Range]) -> str:
    """What is wrong with a number; empty: nothing."""
    said = f"{number.where} = {number.value:g}"
    ends = own.get(number.key, RANGES.get(number.key))
    if ends is None:
        return f"{said}: this site has no range for {number.key!r} ([ranges] of its site.toml)"
    inside = isfinite(number.value) and ends[0] <= number.value <= ends[1]
    return "" if inside else f"{said} is not between {ends[0]:g} and {ends[1]:g}, as [ranges] of its site.toml says"
