"""What a fit asks of organisations: sums over their rows, at points. It never sees a row.

A fit asks all organisations at once, and their answers are added up: by arrays where the tables lie here, by a carrier
between organisations. The penalty, its weight and the solver stay with the one who asks, so that a whole path is one
job. Points are coefficients on the prepared scale, (d,), as the problem's own x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Part(NamedTuple):
    """Which rows of every organisation are meant."""

    fold: int | None = None
    """None: all rows that are fitted to. Otherwise a fold, as every organisation has fixed its own once and for all."""
    held_out: bool = False
    """The rows of the fold itself; False: those of all other folds."""


ALL = Part()


class Question(NamedTuple):
    """The loss of the rows of a part at x, and its derivatives up to an order."""

    x: Tensor
    """(d,)"""
    part: Part = ALL
    order: int = 1
    """0: values; 1: gradients as well; 2: Hessians as well."""


class Sums(NamedTuple):
    """Over the rows of all organisations, each with its own weight: sum w l(x), and its derivatives."""

    value: float
    gradient: Tensor | None = None
    """(d,)"""
    hessian: Tensor | None = None
    """(d, d)"""


class Gram(NamedTuple):
    """All that squared loss needs to know of the rows of a fold: with A the rows (features, and 1 for an intercept)."""

    weight: float
    """sum w"""
    square: float
    """sum w y^2"""
    products: Tensor
    """(d,) A' W y"""
    matrix: Tensor
    """(d, d) A' W A"""


class Organisations(Protocol):
    """All organisations of a fit. Every call is one exchange with all of them."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def weights(self, parts: Sequence[Part]) -> list[float]:
        """What the rows of these parts weigh, added up."""

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        """One answer for each question; many go in one exchange."""

    def grams(self) -> list[Gram]:
        """One for each fold, of squared loss; what the folds add up to is that of all rows."""
