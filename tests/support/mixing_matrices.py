"""What mixing matrices are held against."""

from __future__ import annotations

import numpy as np


def norm(A):
    return np.linalg.norm(A, 2)


def J(n):
    return np.full((n, n), 1 / n)


def same(a, b):
    return a.n == b.n and all(np.array_equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


def edges(topology, t=0):
    _, row, col, _ = topology.W(t)
    return {(int(i), int(j)) for i, j in zip(col, row, strict=True) if i != j}  # (sender, receiver)
