"""How much of a sum a single row makes up: a site tells no sum that one row dominates."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxfed.fit.oracle import ALL, Question
from proxfed.fit.own_profile import own_intercept
from proxfed.fit.own_rows import OwnRows


def dominance(own: OwnRows, question: Question) -> float:
    """The largest share of one row in sum_i w_i e^(score), for losses that grow as e^(score).

    With products, it is at least the share of one row or cluster in the sum of squares.
    """
    scores = [torch.zeros(0, dtype=torch.float64)]
    for rows, A in own.chunks(question.part, 1):
        shift = 0.0 if own.shift is None else own.shift[rows]
        scores.append(A @ question.x[: own.width] + shift + own.w[rows].log())
    share = torch.cat(scores).softmax(0)
    if not len(share):
        return 0.0
    most = float(share.max())
    if question.products == "cluster":
        place, count = own.cluster
        share = torch.zeros(count, dtype=torch.float64).index_add(0, place, share)
    squares = share.square()
    return max(most, float(squares.max() / squares.sum())) if question.products in ("row", "cluster") else most


def leverage(own: OwnRows, x: Tensor, factors: Tensor | None = None) -> float:
    """The largest share of one row in the curvature of the loss at the organisation's own intercept.

    If it is near 1, this row alone determines the intercept.
    """
    a = own_intercept(own, x, factors=factors)
    if not np.isfinite(a):
        return 0.0
    s = torch.cat([A @ x for _, A in own.chunks(ALL, 1)]) + a
    s = s if own.shift is None else s + own.shift
    curvature = own.loss.second(s[None, None], own.b[None])[0, 0, 0] * own.weights(factors)
    total = float(curvature.sum())
    return float(curvature.max()) / total if total > 0 else 1.0
