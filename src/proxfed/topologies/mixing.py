"""Mixing matrices as non-zero entries: from edges and weight rules, from shifts, from groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proxfed.types import Mixing

Pairs = tuple[np.ndarray, np.ndarray]

WEIGHTS = ("metropolis", "lazy", "max_degree")


def dense(mixing: Mixing) -> np.ndarray:
    """W as an (n, n) array."""
    W = np.zeros((mixing.n, mixing.n))
    W[mixing.row, mixing.col] = mixing.weight
    return W


def lazy(mixing: Mixing) -> Mixing:
    """(I + W)/2."""
    n, row, col, weight = mixing
    own = row == col
    zero = np.setdiff1d(np.arange(n), row[own])  # on the diagonal of W
    at = np.searchsorted(row * n + col, zero * (n + 1))
    half = np.insert((weight + own) / 2, at, 0.5)
    return Mixing(n, np.insert(row, at, zero), np.insert(col, at, zero), half)


def weigh(n: int, pairs: Pairs, weights: str) -> Mixing:
    """W of an undirected graph by one of WEIGHTS; duplicate pairs, in either direction, and loops are ignored."""
    i, j = pairs
    code = np.sort(np.concatenate([i * n + j, j * n + i, np.arange(n) * (n + 1)]))
    code = code[np.append(True, code[1:] != code[:-1])]  # many times faster than np.unique
    row, col = code // n, code % n
    own = row == col
    degree = np.bincount(row) - 1
    share = 1 / (1 + degree)
    w = np.full(len(row), share.min()) if weights == "max_degree" else np.minimum(share[row], share[col])
    w[own] = share  # plus the remainder of the edges: a sum without cancellation, so that J is exact
    w[own] += np.bincount(row, share[row] - w)
    return lazy(Mixing(n, row, col, w)) if weights == "lazy" else Mixing(n, row, col, w)


def circulant(n: int, shifts: Sequence[int]) -> Mixing:
    """Client i sends to i + s for each of the distinct shifts s; uniform weights."""
    col = np.sort((np.arange(n)[:, None] - np.asarray(shifts)) % n, axis=1)
    return Mixing(n, np.repeat(np.arange(n), len(shifts)), col.ravel(), np.full(col.size, 1 / len(shifts)))


def partition(n: int, groups: np.ndarray) -> Mixing:
    """Every group averages. A row lists one group and is padded with n, which is no client."""
    groups = np.sort(groups, axis=1)
    group, place = np.nonzero(groups < n)
    group_of = np.empty(n, np.int64)
    group_of[groups[group, place]] = group
    mates = groups[group_of]
    there = mates < n
    count = there.sum(axis=1)
    return Mixing(n, np.repeat(np.arange(n), count), mates[there], np.repeat(1 / count, count))
