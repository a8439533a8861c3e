"""Keyed, shuffled epochs: a client's minibatch is a function of seed, client, round and draw alone.

A client with m samples has nb = ceil(m / batch) batches per epoch. Draw k of a round is batch k mod nb of epoch
k // nb. Each epoch has its own permutation; its last batch has the remaining samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from proxfed import keyed_random
from proxfed.keyed_random import Key


def batches(m: int, batch: int, alone: bool = True) -> int:
    """The number of batches of m samples; unless `alone`, a single last sample joins the batch before."""
    joins = not alone and m > batch and m % batch == 1
    return m // batch if joins else -(-m // batch)


def cut(m: int, batch: int, k: int, count: int) -> slice:
    """Batch k of `count`; the last one has the remaining samples."""
    return slice(k * batch, m if k == count - 1 else (k + 1) * batch)


def cuts(m: int, batch: int, alone: bool = True) -> list[slice]:
    """All batches of m samples, in order."""
    count = batches(m, batch, alone)
    return [cut(m, batch, k, count) for k in range(count)]


@dataclass(frozen=True, eq=False)
class Epochs:
    """The epochs of some clients in one round."""

    key: Key
    """(c,)"""
    first: np.ndarray
    """(c,): the index of each client's first sample."""
    sizes: np.ndarray
    """(c,): each client's number of samples."""
    batch: int
    alone: bool
    """Whether a batch of a single sample is allowed."""
    _orders: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    """A cache of each client's latest epoch and its order: the next draw is mostly from the same epoch."""

    def __call__(self, draw: int) -> list[np.ndarray]:
        """Each client's minibatch, as row numbers of the data."""
        return [self.minibatch(i, draw) for i in range(len(self.sizes))]

    def lengths(self, draw: int) -> list[int]:
        """The size of each client's minibatch."""
        return [where.stop - where.start for _, where in (self._find(i, draw) for i in range(len(self.sizes)))]

    def minibatch(self, i: int, draw: int) -> np.ndarray:
        epoch, where = self._find(i, draw)
        if i not in self._orders or self._orders[i][0] != epoch:
            words = keyed_random.words(keyed_random.fold(self.key[i : i + 1], epoch), int(self.sizes[i]))[0]
            self._orders[i] = epoch, self.first[i] + words.argsort(kind="stable")
        return self._orders[i][1][where]

    def _find(self, i: int, draw: int) -> tuple[int, slice]:
        """The epoch of a draw, and its slice of that epoch."""
        m = int(self.sizes[i])
        count = batches(m, self.batch, self.alone)
        epoch, k = divmod(draw, count)
        return epoch, cut(m, self.batch, k, count)
