"""Checks of mixing matrices and of connectedness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxfed.errors import InputError, require, whole
from proxfed.topologies.spectrum import psi
from proxfed.types import Mixing, Topology

TOLERANCE = 1e-9  # of row and column sums


def check(
    what: Mixing | Topology,
    *,
    columns: bool = True,
    connected: bool = True,
    symmetric: bool = False,
    contracts: bool = False,
) -> None:
    """Raise InputError unless W has no negative entry and its rows sum to one, and

    columns     its columns sum to one (the average of the clients is preserved)
    connected   every client reaches every other, directly or not, over a period; if rounds are random, the
                disagreement shrinks in expectation
    symmetric   W = W'
    contracts   psi < 1 over a period: also no eigenvalue -1
    """
    gap: Callable[[], float]
    if isinstance(what, Mixing):
        rounds, drawn, gap = [what], False, lambda: 1 - psi(what)
    else:
        rounds, drawn, gap = [what.W(t) for t in range(what.period or 1)], what.period is None, what.spectral_gap
    n = rounds[0].n
    for _, row, col, weight in rounds:
        if len(negative := np.flatnonzero(weight < 0)):
            k = negative[0]
            raise InputError(f"W: the entry ({row[k]}, {col[k]}) is {weight[k]:.6g}, but no entry may be negative")
        for name, index in [("row", row), ("column", col)][: 1 + columns]:
            total = np.bincount(index, weight, n)
            if len(off := np.flatnonzero(~(np.abs(total - 1) <= TOLERANCE))):
                raise InputError(f"W: {name} {off[0]} sums to {total[off[0]]:.12g}, not to 1")
        if symmetric:
            place, where = np.unique(np.append(row * n + col, col * n + row), return_inverse=True)
            difference = np.bincount(where, np.append(weight, -weight))
            if len(off := np.flatnonzero(np.abs(difference) > TOLERANCE)):
                i, j = divmod(place[off[0]], n)
                raise InputError(f"W: the entries ({i}, {j}) and ({j}, {i}) differ, but W must be symmetric")
    if connected and not drawn:
        union = np.concatenate([m.row for m in rounds]), np.concatenate([m.col for m in rounds])
        lost = unreached(n, *union)
        require(lost is None, f"W: client {lost} cannot be reached from client 0, but the graph must be connected")
    if contracts or (connected and drawn):
        require(
            gap() > 1e-12,
            "W: some disagreement does not shrink (psi = 1, for instance an eigenvalue -1); lazy weights (I + W)/2 "
            "solve this on a connected graph",
        )


def unreached(n: int, i: np.ndarray, j: np.ndarray) -> int | None:
    """The first client without a path to client 0, if there is one.

    Each component is labelled by its smallest member; while an edge joins two labels, the larger becomes the smaller.
    """
    name = np.arange(n)
    while (name[i] != name[j]).any():
        low = np.minimum(name[i], name[j])
        np.minimum.at(name, name[i], low)
        np.minimum.at(name, name[j], low)
        while (name[name] != name).any():
            name = name[name]
    lost = np.flatnonzero(name != name[0])
    return int(lost[0]) if len(lost) else None


def whole_seed(owner: Any) -> None:
    require(whole(owner.seed), f"{type(owner).__name__}: seed = {owner.seed!r} must be a whole number")
