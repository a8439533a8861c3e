"""The sums over samples that values and gradients of linear models are made of, and which way they are computed.

`fused.py` compiles one pass over the data with numba and is taken where that is installed (`pip install
"proxfed[fast]"`), on the CPU, for the losses it knows and where it is the faster way. Otherwise they are products of
torch: `products.py` for dense features, `sparse_products.py` for sparse ones. The ways agree to rounding error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from proxfed.compiled import numba_is_used
from proxfed.data.sparse import SparseRows
from proxfed.keyed_random import Ids
from proxfed.problems.losses import Huber, Logistic, OneHot, Poisson, Softmax, Squared

if TYPE_CHECKING:
    from proxfed.problems.linear import Linear

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


def passes_of(problem: Linear) -> Passes:
    """The way that suits the problem."""
    sparse = isinstance(problem.data.features, SparseRows)
    known = problem.device == "cpu" and type(problem.criterion) in FUSED
    if known and (sparse or problem.blocks[0].shape[0] <= FEW) and numba_is_used():
        from proxfed.problems.fused import Fused

        return Fused(problem)
    from proxfed.problems.products import Products
    from proxfed.problems.sparse_products import SparseProducts

    return SparseProducts() if sparse else Products()
