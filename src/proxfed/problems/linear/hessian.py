"""Hessians of linear models as maps: they read the data once per point, and once per product.

H_i V = sum_j w_ij A_ij' loss''(A_ij x, b_ij) A_ij V / sum_j w_ij + l2 V
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import require
from proxfed.keyed_random import Ids
from proxfed.problems.linear.products import Products, pull, scores
from proxfed.problems.linear.sparse_products import Entries

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear


def hessian(p: Linear, ids: Ids, x: Tensor) -> Callable[[Tensor], Tensor]:
    """V (c, d) -> (c, d): the Hessians of these clients at x, (c, d) or (d,)."""
    loss = p.criterion
    require(loss.twice_differentiable, f"{type(loss).__name__} has no second derivative everywhere")
    return (_sparse if isinstance(p.samples, SparseRows) else _dense)(p, ids, x.expand(len(ids), -1))


def _dense(p: Linear, ids: Ids, x: Tensor) -> Callable[[Tensor], Tensor]:
    parts = [(at, A, p.criterion.bend(scores(p, A, x[at]), b, v)) for at, A, b, v in Products().groups(p, ids)]

    def times(V: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for at, A, bend in parts:
            part = out.new_empty(len(A), p.d)
            pull(p, bend(scores(p, A, V[at])), A, V[at], part)
            out[at] = part
        return out

    return times


def _sparse(p: Linear, ids: Ids, x: Tensor) -> Callable[[Tensor], Tensor]:
    who, weight = np.asarray(ids, np.int64), p.blocks[0]
    sizes = p.sizes[who]
    rows = np.repeat(p.offsets[who] - sizes.cumsum() + sizes, sizes) + np.arange(sizes.sum())
    assert isinstance(p.samples, SparseRows)
    c, client = len(sizes), np.repeat(np.arange(len(sizes)), sizes)
    m, owner = torch.from_numpy(sizes).to(p.weights), torch.from_numpy(client).to(p.device)
    b, v = p.b[rows], None if p.v is None else p.v[rows]
    entries = Entries(p.samples[rows], client, p.weights)

    def scores_of(V: Tensor) -> Tensor:
        s = entries.scores(V[:, : weight.stop].reshape(c, *weight.shape))
        return s + V[:, weight.stop :].mT[:, owner] if p.intercept else s

    s = scores_of(x)
    ends = [0, len(rows)] if p.criterion.separate else [0, *sizes.cumsum().tolist()]
    some = [slice(a, b) for a, b in pairwise(ends)]
    bends = [p.criterion.bend(s[None, :, at], b[None, at], None if v is None else v[None, at]) for at in some]

    def times(V: Tensor) -> Tensor:
        t = scores_of(V)
        r = torch.cat([bend(t[None, :, at])[0] for at, bend in zip(some, bends, strict=True)], 1)
        out = V.new_zeros(c, p.d)
        out[:, : weight.stop] = entries.gradients(r, c).reshape(c, weight.stop)
        if p.intercept:
            out[:, weight.stop :] = out.new_zeros(c, len(r)).index_add_(0, owner, r.mT)
        return out.div_(m[:, None]).add_(V, alpha=p.l2)

    return times
