"""A linear model with differential privacy for every row: noisy sums of products, one message of each site.

    row         z = (a/R, 1, y/B),     |a| cut to R and |y| to B, so that |z|^2 <= 3
    site sends  M_i = sum_rows z z' + 3 sigma E_i,     E_i symmetric, N(0, 1) on and N(0, 1/2) beside its diagonal
    model       min_w  (w' (S + lambda I) w/2 - b' w)/N + h,     S, b and N parts of M = sum_i M_i

With or without a row, sum z z' differs by |z|^2 <= 3 in the Frobenius norm, in which 3 sigma E_i is an isotropic
Gaussian of deviation 3 sigma. So a site's one message is a Gaussian mechanism with mu = 1/sigma for each of its rows,
whoever reads it: `row_epsilon`. The bounds R and B must not be taken from the data. The model follows from the messages
and costs nothing more, whatever penalties are tried on it.

The noise of n sites has the spectral norm 3 sigma sqrt(2 n (d + 1)), about. Directions of S below that are noise:
lambda lifts the least eigenvalue to it, as AdaSSP does (Wang 2018). `hopeless` says when all of them are: each
coefficient then follows from its own column alone.

Labels -1 and +1 make it a classifier: -s/2 + s^2/8, s = y w'a, bounds the logistic loss, up to a constant, and its sums
are the same ones.

References: C. Dwork, K. Talwar, A. Thakurta, L. Zhang, "Analyze Gauss", STOC 2014; Y.-X. Wang, "Revisiting
differentially private linear regression", UAI 2018, arXiv:1803.02596.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxfed.engine.noise import GRID, gaussian_epsilon
from proxfed.errors import require
from proxfed.problems.fista import fista
from proxfed.regularisers import Zero
from proxfed.types import Regulariser

Matrix = NDArray[np.float64]
SENSITIVITY = 3.0
"""The largest |z|^2."""


@dataclass(frozen=True)
class Bounds:
    """What rows are cut to, agreed on before anybody looks at them."""

    row: float
    """R: the largest norm of the features of a row."""
    label: float = 1.0
    """B: the largest size of a label."""

    def __post_init__(self) -> None:
        for name in ("row", "label"):
            value = getattr(self, name)
            require(0 < value < float("inf"), f"{name} = {value!r} must be a number > 0")


def sums(A: Matrix, y: Matrix, bounds: Bounds, noise: float, rng: np.random.Generator) -> Matrix:
    """What a site sends of its rows (N, d) and labels (N,): (d + 2, d + 2), with its noise.

    Parameters
    ----------
    A, y
        Features and labels; what is not finite counts as 0.
    bounds
        What rows are cut to.
    noise
        sigma.
    rng
        A generator that nobody else can know, seeded by the operating system for instance.
    """
    M = products(A, y, bounds)
    return noisy(M, noise, rng.standard_normal(M.shape))


def products(A: Matrix, y: Matrix, bounds: Bounds) -> Matrix:
    """(d + 2, d + 2) sum z z', without noise."""
    A, y = np.nan_to_num(A, posinf=0.0, neginf=0.0), np.nan_to_num(y, posinf=0.0, neginf=0.0)
    size = np.linalg.norm(A, axis=1, keepdims=True)
    a = A / np.maximum(size, bounds.row)
    z = np.column_stack([a, np.ones(len(a)), np.clip(y / bounds.label, -1, 1)])
    return np.asarray(z.T @ z)


def noisy(M: Matrix, noise: float, G: Matrix) -> Matrix:
    """M with its noise, made of standard normal G of the same shape, and rounded to a grid far finer than that."""
    require(noise > 0, f"noise = {noise!r} must be a number > 0")
    E = (G + G.T) / 2  # N(0, 1) on the diagonal, N(0, 1/2) beside it
    grid = 2.0 ** floor(log2(SENSITIVITY * noise)) * GRID
    return np.asarray(np.rint((M + SENSITIVITY * noise * E) / grid) * grid)


def row_epsilon(noise: float, delta: float = 1e-5, messages: int = 1) -> float:
    """Epsilon of each row of a site that has sent so many messages."""
    return gaussian_epsilon(sqrt(messages) / noise, delta)


def noise_for(epsilon: float, delta: float = 1e-5) -> float:
    """The least noise with which one message keeps to epsilon."""
    require(epsilon > 0, f"epsilon = {epsilon!r} must be a number > 0")
    low, high = 1e-6, 1.0
    while row_epsilon(high, delta) > epsilon:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if row_epsilon(middle, delta) > epsilon else (low, middle)
    return high


def spectral(noise: float, sites: int, columns: int) -> float:
    """About the norm of the noise that all sites together put on the sums of products of features and intercept."""
    return SENSITIVITY * noise * sqrt(2 * sites * (columns + 1))


def hopeless(rows: int, columns: int, sites: int, noise: float) -> str:
    """Why the coefficients of such a model cannot be read; empty: they can.

    The features' sums of products have the trace N at most, and so a mean eigenvalue of N/d.
    """
    loud, least = spectral(noise, sites, columns), rows / columns
    if loud < least:
        return ""
    needed = int(loud * columns) + 1
    return (
        f"noise = {noise:.3g} of {sites} sites is {loud / least:.3g} times as large as what {rows:,} rows say of "
        f"{columns} columns: correlations between columns are lost, so each coefficient follows from its own column "
        f"alone and is too small; it takes at least {needed:,} rows, fewer columns or sites, or a larger epsilon"
    )


@dataclass(frozen=True)
class PrivateFit:
    """A model from noisy sums."""

    weights: Tensor
    """Of the features, in their units."""
    intercept: float
    rows: float
    """N, as the noisy sums have it."""
    lifted: float
    """lambda: what was added to the eigenvalues."""


def private_fit(messages: Sequence[Matrix], bounds: Bounds, noise: float, h: Regulariser | None = None) -> PrivateFit:
    """The linear model of what sites have sent; `noise` as they all had it.

    Parameters
    ----------
    messages
        What `sums` gave at each site; their sum alone is enough, if `noise` is sqrt(sites) times as large.
    bounds, noise
        As the sites had them.
    h
        A penalty on features divided by bounds.row and labels by bounds.label; the intercept bears it too. None: none.
    """
    require(len(messages) > 0, "there is no message to fit to")
    M = np.sum(messages, axis=0)
    d = len(M) - 2
    require(d >= 1 and M.shape == (d + 2, d + 2), f"a message is a square of d + 2 columns, not {M.shape}")
    S, b, N = (M + M.T)[:-1, :-1] / 2, M[:-1, -1], max(float(M[d, d]), 1.0)
    lifted = max(0.0, spectral(noise, len(messages), d) - float(np.linalg.eigvalsh(S)[0]))
    S = S + lifted * np.eye(d + 1)
    if h is None or isinstance(h, Zero):
        w = torch.from_numpy(np.linalg.solve(S, b))
    else:
        Q, q = torch.from_numpy(S / N), torch.from_numpy(b / N)
        L = float(torch.linalg.eigvalsh(Q)[-1])
        w = fista(lambda x: Q @ x - q, h, L, torch.zeros(d + 1, dtype=torch.float64), 1e-10)
    w = w * bounds.label
    return PrivateFit(w[:-1] / bounds.row, float(w[-1]), N, lifted)
