"""The sums over samples that values and gradients of linear models are made of, whichever way they are computed.

`fused.py` compiles one pass over the data with numba; `products.py` has products of torch for dense features,
`sparse_products.py` for sparse ones. `Linear.passes` chooses. The ways agree to rounding error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from proxfed.keyed_random import Ids
from proxfed.problems.losses import Huber, Logistic, OneHot, Poisson, Softmax, Squared

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear

FUSED = (Squared, Huber, Poisson, Logistic, Softmax, OneHot)
"""The losses that kernels.py knows, in the order of their numbers there."""

FEW = 20
"""Outputs up to which the compiled pass over dense features is the faster way; from there on, matrix products are."""


class Sums(NamedTuple):
    """What was asked for; the rest is empty."""

    values: Tensor
    """f_i(x), (c,)."""
    gradients: Tensor
    """(c, d)"""


class Passes(ABC):
    """Values and gradients of a problem p, at x (c, d), or (d,) for a point that all share.

    p is handed over with each call: a problem keeps its passes, and if they kept it as well, the samples of a cohort
    would live until the garbage collector meets the pair.
    """

    @abstractmethod
    def full(self, p: Linear, ids: Ids, x: Tensor, values: bool = False, gradients: bool = False) -> Sums:
        """Over all samples of these clients."""

    @abstractmethod
    def minibatch(self, p: Linear, rows: np.ndarray, x: Tensor) -> Tensor:
        """Gradients over samples rows[i], (c, batch), of each client."""

    def descend(self, p: Linear, rows: np.ndarray, y: Tensor, eta: float) -> None:
        """y <- y - eta times such a gradient at y, (c, d), for each of rows (steps, c, batch)."""
        for some in rows:
            y.sub_(self.minibatch(p, some, y), alpha=eta)
