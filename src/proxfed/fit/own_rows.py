"""The rows of one organisation as a fit sees them: what they weigh, and which of them a part has.

Here they lie in one process, between organisations with the holder of the table. The sums over them (own_sums.py) are
the same, so that a model is the same wherever the tables lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import require
from proxfed.fit.oracle import Part, Size
from proxfed.problems.losses import Logistic, Loss

AT_A_TIME = 1 << 20
"""Numbers that a pass over the rows has in hand at once."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of one organisation, all in float64."""

    features: Features
    """(m, p), prepared."""
    labels: np.ndarray
    """(m,) as the loss takes them."""
    loss: Loss
    intercept: bool = True
    classes: int | None = None
    """How many there are over all organisations, if labels are 0, 1, ...; None: they are numbers, times, or -1 and
    +1."""
    sample_weights: np.ndarray | None = None
    """(m,); None: every row counts 1."""
    folds: int = 0
    """How many there are over all organisations; 0: none."""
    fold: np.ndarray | None = None
    """(m,) that of each row; an organisation that is left out as a whole has all rows in its own."""
    share: float | None = None
    """What all its rows weigh together, if not what they are: 1 where every organisation counts the same."""
    offset: np.ndarray | None = None
    """(m,) added to every score, such as the logarithm of the exposure; None: nothing."""
    clusters: np.ndarray | None = None
    """(m,) rows with the same value depend on each other, as those of one patient; None: there is no such column."""
    fewest: int = 1
    """Rows that a cell of a count has, if it has any."""

    @cached_property
    def outputs(self) -> int:
        """Scores of a row."""
        return int(self.classes or 0) if self.loss.classes else 1

    @cached_property
    def width(self) -> int:
        """Features."""
        return int(self.features.shape[1])

    @cached_property
    def d(self) -> int:
        """Length of x."""
        return self.outputs * (self.width + self.intercept)

    # ---- rows, by fold -----------------------------------------------------------------------------------------

    @cached_property
    def _order(self) -> np.ndarray | slice:
        """Rows by fold, so that a part is one slice or two."""
        return slice(None) if self.fold is None else np.argsort(self.fold, kind="stable")

    @cached_property
    def A(self) -> Features:
        """(m, p)"""
        features = self.features if isinstance(self._order, slice) else self.features[self._order]
        return features if isinstance(features, SparseRows) else np.ascontiguousarray(features, np.float64)

    @cached_property
    def b(self) -> Tensor:
        """(m,) labels."""
        kind = torch.int64 if self.loss.classes else torch.float64
        return torch.tensor(np.asarray(self.labels)[self._order], dtype=kind)

    @cached_property
    def shift(self) -> Tensor | None:
        """(m,) what is added to every score."""
        if self.offset is None:
            return None
        return torch.from_numpy(np.ascontiguousarray(np.asarray(self.offset, np.float64)[self._order]))

    @cached_property
    def cluster(self) -> tuple[Tensor, int]:
        """((m,) the number of each row's cluster, how many there are)."""
        require(self.clusters is not None, "errors = 'cluster' needs target.cluster, the column that names them")
        names, place = np.unique(np.asarray(self.clusters), return_inverse=True)
        return torch.from_numpy(place[self._order].astype(np.int64)), len(names)

    @cached_property
    def kind(self) -> Tensor:
        """(m,) the class of each row, by number."""
        if self.classes is not None:
            return self.b.long()
        if isinstance(self.loss, Logistic):
            return (self.b > 0).long()
        return torch.zeros(len(self.b), dtype=torch.int64) if self.loss.separate else (~self.b.signbit()).long()

    @property
    def kinds(self) -> int:
        """How many classes there are."""
        if self.classes is not None:
            return self.classes
        return 1 if self.loss.separate and not isinstance(self.loss, Logistic) else 2

    @cached_property
    def w(self) -> Tensor:
        """(m,) what each row weighs, before class weights."""
        m = len(self.labels)
        own = np.ones(m) if self.sample_weights is None else np.asarray(self.sample_weights, np.float64)
        if self.share is not None:
            own = own * (self.share / own.sum())
        return torch.from_numpy(np.ascontiguousarray(own[self._order]))

    def weights(self, factors: Tensor | None) -> Tensor:
        """(m,) with (classes,) by which the rows of each count more."""
        return self.w if factors is None else self.w * factors[self.kind]

    @cached_property
    def _ends(self) -> np.ndarray:
        """(folds + 1,) where the rows of each fold begin, and the last one's end."""
        if self.fold is None:
            return np.array([0, len(self.labels)])
        return np.concatenate(([0], np.bincount(self.fold, minlength=self.folds).cumsum()))

    def slices(self, part: Part) -> list[slice]:
        """Which rows it has."""
        m = len(self.labels)
        if part.fold is None:
            return [slice(0, m)]
        known = self.fold is not None and 0 <= part.fold < self.folds
        require(known, f"fold = {part.fold} must be one of the {self.folds} that there are")
        a, b = (int(v) for v in self._ends[part.fold : part.fold + 2])
        return [slice(a, b)] if part.held_out else [slice(0, a), slice(b, m)]

    def rows(self, part: Part) -> int:
        """How many there are."""
        return sum(s.stop - s.start for s in self.slices(part))

    def chunks(self, part: Part, width: int) -> Iterator[tuple[slice, Tensor]]:
        """(which rows, their features), some at a time; `width`: further numbers for each row."""
        step = max(64, AT_A_TIME // max(1, width + self.width))
        for whole in self.slices(part):
            for start in range(whole.start, whole.stop, step):
                some = slice(start, min(start + step, whole.stop))
                yield some, dense(self.A[some])

    # ---- how many there are ------------------------------------------------------------------------------------

    def counts(self) -> Tensor:
        """(folds, classes) as `Organisations.counts` has them."""
        lines = [
            torch.bincount(self.kind[a:b], self.w[a:b], self.kinds)
            for a, b in zip(self._ends[:-1], self._ends[1:], strict=True)
        ]
        return torch.stack(lines)

    def size(self, factors: Tensor | None = None) -> Size:
        """As `Organisations.size` has it."""
        clusters = 0 if self.clusters is None else self.cluster[1]
        each = torch.bincount(self.kind, minlength=self.kinds).double()
        least = float(self.weights(factors) @ self.loss.least(self.b)) if self.loss.separate else 0.0
        return Size(each, float(clusters), least)


def rows_apart(features: Features) -> list[int]:
    """Of each feature: how many rows differ from the value that most rows have, such as those of a rare category."""
    columns = dense(features).numpy().T
    return [len(column) - int(np.unique(column, return_counts=True)[1].max()) for column in columns]


def dense(A: Features) -> Tensor:
    """Features as a tensor."""
    return torch.from_numpy(A.toarray().astype(np.float64) if isinstance(A, SparseRows) else A)


def own_rows(
    data: Federated,
    loss: Loss,
    *,
    intercept: bool,
    uniform: bool = False,
    folds: int = 0,
    fold: np.ndarray | None = None,
) -> tuple[OwnRows, ...]:
    """Of every organisation of some data; `fold` is that of each row."""
    return tuple(
        OwnRows(
            data.features[a:b],
            data.labels[a:b],
            loss,
            intercept,
            data.classes,
            None if data.sample_weights is None else data.sample_weights[a:b],
            folds,
            None if fold is None else fold[a:b],
            1.0 if uniform else None,
        )
        for a, b in zip(data.offsets, data.offsets[1:], strict=False)
    )
