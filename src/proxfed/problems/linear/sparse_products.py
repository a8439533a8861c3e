"""Sums over sparse samples by torch, a few operations per non-zero entry."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed.data.sparse_rows import SparseRows
from proxfed.keyed_random import Ids
from proxfed.problems.linear.passes import Passes, Sums

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear


class Entries:
    """Samples (N, p) of several clients as their non-zero entries."""

    def __init__(self, A: SparseRows, owner: np.ndarray, like: Tensor) -> None:
        row = A.row_of
        self.N, self.p = A.shape
        self.values = torch.from_numpy(A.values).to(like)
        self.column = torch.from_numpy(A.indices).to(like.device, torch.int64)
        self.row = torch.from_numpy(row).to(like.device)
        self.client = torch.from_numpy(owner[row]).to(like.device)

    def scores(self, W: Tensor) -> Tensor:
        """The scores (outputs, N) for weights W (c, outputs, p)."""
        out = W.new_zeros(W.shape[1], self.N)
        for s, w in zip(out, W.unbind(1), strict=True):
            s.index_add_(0, self.row, self.values * w[self.client, self.column])
        return out

    def gradients(self, r: Tensor, c: int) -> Tensor:
        """The gradients (c, outputs, p) for slopes r (outputs, N)."""
        out = r.new_zeros(len(r), c * self.p)
        for g, slope in zip(out, r, strict=True):
            g.index_add_(0, self.client * self.p + self.column, self.values * slope[self.row])
        return out.view(len(r), c, self.p).transpose(0, 1)


class SparseProducts(Passes):
    def full(self, p: Linear, ids: Ids, x: Tensor, values: bool = False, gradients: bool = False) -> Sums:
        who = np.asarray(ids, np.int64)
        sizes = p.sizes[who]
        first = np.repeat(p.offsets[who] - sizes.cumsum() + sizes, sizes)
        return self._sums(p, first + np.arange(sizes.sum()), sizes, x, values, gradients)

    def minibatch(self, p: Linear, rows: np.ndarray, x: Tensor) -> Tensor:
        return self._sums(p, rows.reshape(-1), np.full(len(rows), rows.shape[1]), x, False, True).gradients

    def _sums(self, p: Linear, rows: np.ndarray, sizes: np.ndarray, x: Tensor, values: bool, gradients: bool) -> Sums:
        c, weight = len(sizes), p.blocks[0]
        assert isinstance(p.samples, SparseRows)
        x, client = x.expand(c, -1), np.repeat(np.arange(c), sizes)
        m, owner = torch.from_numpy(sizes).to(p.weights), torch.from_numpy(client).to(p.device)
        b, v = p.b[rows], None if p.v is None else p.v[rows]
        entries = Entries(p.samples[rows], client, p.weights)
        s = entries.scores(x[:, : weight.stop].view(c, *weight.shape))
        if p.intercept:
            s += x[:, weight.stop :].mT[:, owner]
        together = [slice(0, len(rows))]
        if not p.criterion.separate:
            together = [slice(a, b) for a, b in pairwise([0, *sizes.cumsum().tolist()])]
        f, G = x.new_zeros(c if values else 0), x.new_zeros(c if gradients else 0, p.d)
        loss, r = p.criterion, torch.empty_like(s)
        each = s.new_empty(s.shape[1])
        for some in together:
            given = s[None, :, some], b[None, some]
            if values:
                each[some] = loss.value(*given)[0] if v is None else loss.weighted_value(*given, v[None, some])[0]
            if gradients:
                r[:, some] = loss.slope(*given)[0] if v is None else loss.weighted_slope(*given, v[None, some])[0]
        if values:
            f = f.index_add_(0, owner, each) / m + p.l2 / 2 * x.square().sum(-1)
        if gradients:
            G[:, : weight.stop] = entries.gradients(r, c).reshape(c, weight.stop)
            G[:, weight.stop :] = G.new_zeros(c, len(r)).index_add_(0, owner, r.mT) if p.intercept else 0
            G = G.div_(m[:, None]).add_(x, alpha=p.l2)
        return Sums(f, G)
