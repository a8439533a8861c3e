"""The interface of sums over samples: values and gradients of linear models, by any of three implementations.

`fused.py` compiles one pass over the data with numba; `products.py` uses torch products for dense features,
`sparse_products.py` for sparse ones. `Linear.passes` chooses. They agree to rounding error.
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
"""The losses that kernels.py supports, in the order of their numbers there."""

FEW = 20
"""Up to this many outputs the compiled pass over dense features is faster; beyond, matrix products are."""


class Sums(NamedTuple):
    """The requested sums; the others are empty."""

    values: Tensor
    """f_i(x), (c,)."""
    gradients: Tensor
    """(c, d)"""


class Passes(ABC):
    """Values and gradients of a problem p, at x (c, d), or (d,) for a point that all share.

    p is an argument of each call: a problem keeps its passes, and a reference back would keep the samples of a cohort
    in memory until the garbage collector finds the cycle.
    """

    @abstractmethod
    def full(self, p: Linear, ids: Ids, x: Tensor, values: bool = False, gradients: bool = False) -> Sums:
        """Sums over all samples of these clients."""

    @abstractmethod
    def minibatch(self, p: Linear, rows: np.ndarray, x: Tensor) -> Tensor:
        """Gradients over samples rows[i], (c, batch), of each client."""

    def descend(self, p: Linear, rows: np.ndarray, y: Tensor, eta: float) -> None:
        """y <- y - eta times the minibatch gradient at y, (c, d), for each of rows (steps, c, batch)."""
        for some in rows:
            y.sub_(self.minibatch(p, some, y), alpha=eta)
