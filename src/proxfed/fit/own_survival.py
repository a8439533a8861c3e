"""Sums over an organisation's rows for Cox's partial likelihood, in which rows are compared with each other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxfed.fit.oracle import ALL, Part, Question, Sums
from proxfed.fit.own_products import Products, zeros
from proxfed.fit.own_rows import OwnRows, dense
from proxfed.problems.linear.cox import Cox, by_time


def survival_sums(own: OwnRows, asked: list[Question], part: Part) -> list[Sums]:
    """The sums of held-out rows are those of all rows minus those of the rows that the fold is fitted to."""
    if part.fold is None or not part.held_out:
        return [_at_risk(own, q, part) for q in asked]
    every = [_at_risk(own, q, ALL) for q in asked]
    without = [_at_risk(own, q, Part(part.fold)) for q in asked]
    return [_less(a, b) for a, b in zip(every, without, strict=True)]


def _at_risk(own: OwnRows, question: Question, part: Part) -> Sums:
    assert isinstance(own.loss, Cox)
    rows = np.concatenate([np.arange(s.start, s.stop) for s in own.slices(part)])
    order = rows[by_time(own.b[rows].numpy(), np.array([0, len(rows)]))]
    m, w = len(order), own.w[order]
    total = float(w.sum())
    x, columns = question.x, question.columns
    if m == 0 or not total > 0:
        second = zeros(columns, own.d) if question.order > 1 else None
        third = zeros(columns, own.d) if question.products else None
        return Sums(0.0, torch.zeros(own.d, dtype=torch.float64) if question.order > 0 else None, second, third)
    A = dense(own.A[order])
    s, b, v = A @ x, own.b[order], w * (m / total)
    s = s if own.shift is None else s + own.shift[order]
    scale = total / m
    value = scale * float(own.loss.weighted_value(s[None, None], b[None], v[None]).sum())
    if question.order == 0:
        return Sums(value)
    gradient = scale * (own.loss.weighted_slope(s[None, None], b[None], v[None])[0, 0] @ A)
    if question.order == 1:
        return Sums(value, gradient)
    hessian = scale * own.loss.hessian(s, b, v, A if columns is None else A[:, columns])
    if not question.products:
        return Sums(value, gradient, hessian)
    products = Products(own, question, own.d)
    products.add(scale * own.loss.residuals(s, b, v, A), torch.from_numpy(order))
    return Sums(value, gradient, hessian, products.matrix)


def _less(a: Sums, b: Sums) -> Sums:
    def less(one: Tensor | None, two: Tensor | None) -> Tensor | None:
        return None if one is None or two is None else one - two

    return Sums(a.value - b.value, less(a.gradient, b.gradient), less(a.hessian, b.hessian))
