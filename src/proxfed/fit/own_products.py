"""The sum over clusters of u u', which robust standard errors need; u is the score of a cluster's rows."""

from __future__ import annotations

import torch
from torch import Tensor

from proxfed.fit.oracle import Question
from proxfed.fit.own_rows import OwnRows


def row_by_row(slope: Tensor, A: Tensor, intercept: bool) -> Tensor:
    """(m, d) w l'(s) a of each row, from (outputs, m) slopes."""
    of_weights = (slope.mT[:, :, None] * A[:, None, :]).reshape(len(A), -1)
    return torch.cat([of_weights, slope.mT], 1) if intercept else of_weights


class Products:
    """Adds up u u' over clusters, from rows that arrive in chunks."""

    def __init__(self, own: OwnRows, question: Question, d: int) -> None:
        self.columns = question.columns
        k = d if self.columns is None else len(self.columns)
        self.place: Tensor | None = None
        self.total = torch.zeros(k, k, dtype=torch.float64)
        self.u = torch.zeros(0, k, dtype=torch.float64)
        if question.products != "row":
            one = torch.zeros(len(own.labels), dtype=torch.int64), 1
            self.place, count = one if question.products == "organisation" else own.cluster
            self.u = torch.zeros(count, k, dtype=torch.float64)

    def add(self, u: Tensor, rows: slice | Tensor) -> None:
        u = u if self.columns is None else u[:, self.columns]
        if self.place is None:
            self.total += u.mT @ u
        else:
            self.u.index_add_(0, self.place[rows], u)

    @property
    def matrix(self) -> Tensor:
        return self.total if self.place is None else self.u.mT @ self.u


def zeros(columns: Tensor | None, d: int) -> Tensor:
    """(k, k) zeros, for k chosen columns or all d."""
    k = d if columns is None else len(columns)
    return torch.zeros(k, k, dtype=torch.float64)
