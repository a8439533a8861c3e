"""Mixing rates: psi = |W - J|_2 of any rounds, of a W with Fourier eigenvectors, and of random groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from proxfed.keyed_random import generator
from proxfed.topologies.mixing import dense
from proxfed.types import Mixing

DENSE = 1500  # up to this n, |W - J|_2 is a dense singular value


def psi(*rounds: Mixing) -> float:
    """|W_k ... W_1 - J|_2 of the given rounds; of a single one, psi of W.

    A dense singular value up to n = 1500; beyond, Lanczos on the non-zero entries.
    """
    n = rounds[0].n
    if n <= DENSE:
        product = np.eye(n)
        for mixing in rounds:
            product = dense(mixing) @ product
        return _above_rounding(float(np.linalg.norm(product - 1 / n, 2)), n)

    def squared(x: np.ndarray) -> np.ndarray:
        """(A'A) x with A = W_k ... W_1 - J, for x that sums to zero."""
        for _, row, col, weight in rounds:
            x = np.bincount(row, weight * x[col], n)
        x = x - x.mean()
        for _, row, col, weight in reversed(rounds):
            x = np.bincount(col, weight * x[row], n)
        return x - x.mean()

    return math.sqrt(max(0.0, largest_eigenvalue(squared, n)))


def largest_eigenvalue(apply: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """The largest eigenvalue of a symmetric positive semi-definite map of vectors that sum to zero, by Lanczos without
    reorthogonalisation (lost orthogonality only repeats eigenvalues already found). The tridiagonal matrix is evaluated
    each time its size has doubled: that squares the error, so an unchanged value has converged."""
    q = generator(0, "lanczos").standard_normal(n)
    q -= q.mean()
    q /= np.linalg.norm(q)
    before = np.zeros(n)
    alpha: list[float] = []  # the diagonal
    beta = [0.0]  # beta[1:]: beside the diagonal
    size, value = 32, -1.0
    while True:
        while len(alpha) < size:
            v = apply(q) - beta[-1] * before
            alpha.append(float(q @ v))
            v -= alpha[-1] * q
            beta.append(float(np.linalg.norm(v)))
            if beta[-1] < 1e-13:
                return _largest_of_tridiagonal(alpha, beta)
            before, q = q, v / beta[-1]
        last, value = value, _largest_of_tridiagonal(alpha, beta)
        if not value - last > 1e-11:  # also if it is NaN
            return value
        size *= 2


def _largest_of_tridiagonal(alpha: Sequence[float], beta: Sequence[float]) -> float:
    """The largest eigenvalue by bisection: x is above all eigenvalues iff all pivots of T - xI are negative."""

    def above(x: float) -> bool:
        pivot = -1.0
        for a, b in zip(alpha, beta, strict=False):
            pivot = a - x - b * b / pivot
            if pivot >= 0:
                return False
        return True

    low, high = max(alpha), max(alpha) + 2 * max(beta)
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if above(middle) else (middle, high)
    return high


def psi_by_fourier(mixing: Mixing, *shape: int) -> float:
    """psi of a translation-invariant W on a ring (n,) or torus (rows, cols): a normal matrix, whose eigenvalues are the
    Fourier transform of any column."""
    first = mixing.col == 0
    column = np.zeros(mixing.n)
    column[mixing.row[first]] = mixing.weight[first]
    eigenvalues = np.fft.fftn(column.reshape(shape)).ravel()
    return _above_rounding(float(np.abs(eigenvalues[1:]).max(initial=0.0)), mixing.n)


def _above_rounding(psi: float, n: int) -> float:
    """psi, or 0 if it is only rounding error: theories have other step sizes for W = J than for any psi > 0."""
    return psi if psi > n * np.finfo(float).eps else 0.0


def gap_of_partition(n: int, groups: int) -> float:
    """1 - sqrt(E|WX - JX|^2 / |X - JX|^2) when W averages over a random partition into this many groups: W is a
    projection with trace `groups`, and in expectation all directions orthogonal to 1 are equivalent."""
    return 1 - math.sqrt((groups - 1) / max(n - 1, 1))
