"""Sums over dense samples as batched products of torch.

Activations are kept as (clients, outputs, samples), so that a layer and its gradient are one batched product each,
without transposes. Clients of equal size are computed together, without padding, in groups that fit in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed.keyed_random import Ids
from proxfed.problems.empirical_risk import Piece
from proxfed.problems.linear.passes import Passes, Sums

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear

GATHER = 1 << 20
"""Numbers of the minibatches gathered at a time: a few MB, which are still in the cache at their second use."""


class Products(Passes):
    def __init__(self) -> None:
        self._plans: dict[tuple[int, int], list[Piece]] = {}

    def full(self, p: Linear, ids: Ids, x: Tensor, values: bool = False, gradients: bool = False) -> Sums:
        c = len(ids)
        x = x.expand(c, -1)
        f = torch.empty(c if values else 0, dtype=p.dtype, device=p.device)
        G = torch.empty(c if gradients else 0, p.d, dtype=p.dtype, device=p.device)
        for where, A, b, v in self.groups(p, ids):
            s = scores(p, A, x[where])
            if values:
                loss = p.criterion.value(s, b) if v is None else p.criterion.weighted_value(s, b, v)
                f[where] = loss.mean(-1)
            if gradients and isinstance(where, slice):
                _gradient(p, s, A, b, v, x[where], G[where])
            elif gradients:
                g = G.new_empty(len(A), p.d)
                _gradient(p, s, A, b, v, x[where], g)
                G[where] = g
        if values:
            f += p.l2 / 2 * x.square().sum(-1)
        return Sums(f, G)

    def minibatch(self, p: Linear, rows: np.ndarray, x: Tensor) -> Tensor:
        c, batch = rows.shape
        x, out = x.expand(c, -1), torch.empty(c, p.d, dtype=p.dtype, device=p.device)
        index, width = torch.from_numpy(rows).to(p.device), p.A.shape[1]
        step = max(1, GATHER // (batch * width))
        for k in range(0, c, step):
            some = index[k : k + step]
            part, v = slice(k, k + step), None if p.v is None else p.v[some]
            A = p.A.index_select(0, some.reshape(-1)).view(-1, batch, width)
            _gradient(p, scores(p, A, x[part]), A, p.b[some], v, x[part], out[part])
        return out

    def groups(self, p: Linear, ids: Ids) -> Iterator[tuple[slice | np.ndarray, Tensor, Tensor, Tensor | None]]:
        """Clients grouped by size: (positions in ids, A (g, m, p), b and v (g, m))."""
        if not isinstance(ids, range):
            pieces = p.pieces(ids)
        else:
            key = (ids.start, ids.stop)
            pieces = self._plans[key] = self._plans.get(key) or p.pieces(ids)
        for piece in pieces:
            yield (
                piece.where,
                p.A[piece.rows].view(-1, piece.m, p.A.shape[1]),
                p.b[piece.rows].view(-1, piece.m),
                None if p.v is None else p.v[piece.rows].view(-1, piece.m),
            )


def scores(p: Linear, A: Tensor, x: Tensor) -> Tensor:
    """(c, outputs, samples) of samples A (c, samples, p) at x (c, d)."""
    weight = p.blocks[0]
    W = x[:, : weight.stop].view(-1, *weight.shape)
    if p.intercept:
        return torch.baddbmm(x[:, weight.stop :, None], W, A.mT)
    return torch.bmm(W, A.mT)


def _gradient(p: Linear, s: Tensor, A: Tensor, b: Tensor, v: Tensor | None, x: Tensor, out: Tensor) -> None:
    """Write the gradients (c, d) over samples A, b with weights v and scores s at x to `out`; s is overwritten."""
    pull(p, p.criterion.slope(s, b) if v is None else p.criterion.weighted_slope(s, b, v), A, x, out)


def pull(p: Linear, r: Tensor, A: Tensor, x: Tensor, out: Tensor) -> None:
    """Write the mean over samples of r times the scores' derivative in x, plus l2 x, to `out` (c, d)."""
    weight, m = p.blocks[0], A.shape[1]
    W, G = (v[:, : weight.stop].view(-1, *weight.shape) for v in (x, out))
    torch.baddbmm(W, r, A, beta=p.l2, alpha=1 / m, out=G)
    if p.intercept:
        out[:, weight.stop :] = p.l2 * x[:, weight.stop :] + r.mean(-1)
