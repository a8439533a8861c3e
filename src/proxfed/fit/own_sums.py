"""Sums over one organisation's rows, at points: the value of the loss and its derivatives.

    value     sum w l(s)            gradient  sum w l'(s) a            Hessian  sum w l''(s) a a'
    products  sum over clusters of u u', u being the sum of w l'(s) a over the rows of a cluster

s = a'x + offset; a are the features of a row, and 1 for an intercept that all organisations share. Products are what
standard errors need that do not trust the model. A survival time has no loss of its own: its u is Lin and Wei's score
residual (problems/linear/cox.py).

An intercept of the organisation's own never leaves it. At every point it is where the loss is least, and it is
eliminated as a block, which gives the derivatives of the profile likelihood (a: that of the intercept, b: all others):

    gradient  g_b        Hessian  H_bb - H_ba H_ab / H_aa        u_b - H_ba u_a / H_aa

For rows that a fold holds out, the intercept is that of the organisation's other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from proxfed.errors import require
from proxfed.fit.oracle import Question, Sums
from proxfed.fit.own_profile import profiled_sums
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.own_separate import separate
from proxfed.fit.own_survival import survival_sums


def answer(
    own: OwnRows, questions: Sequence[Question], factors: Tensor | None = None, own_intercepts: bool = False
) -> list[Sums]:
    """One for each; `factors`: (classes,) by which rows count more."""
    d = own.outputs * own.width if own_intercepts else own.d
    answers: list[Sums | None] = [None] * len(questions)
    for part in dict.fromkeys(q.part for q in questions):
        for order in (0, 1):  # a question for values alone need not wait for gradients
            where = [i for i, q in enumerate(questions) if q.part == part and min(q.order, 1) == order]
            asked = [questions[i] for i in where]
            for q in asked:
                require(q.x.shape == (d,), f"x has shape {tuple(q.x.shape)}, but d = {d}")
                require(not q.products or (q.order == 2 and not part.held_out), "products go with Hessians alone")
            if not own.loss.separate:
                found = survival_sums(own, asked, part)
            elif own_intercepts:
                found = profiled_sums(own, asked, part, order, factors)
            else:
                found = separate(own, asked, part, order, factors, own.intercept)
            for i, each in zip(where, found, strict=True):
                answers[i] = each
    return [each for each in answers if each is not None]
