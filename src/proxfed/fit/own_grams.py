"""Gram matrices of an organisation's rows, for squared losses and Huber's."""

from __future__ import annotations

import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.oracle import ALL, Gram, Part
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.losses import Huber, OneHot, Squared


def grams(own: OwnRows, factors: Tensor | None = None) -> list[Gram]:
    """One for each fold, of squared losses."""
    known = isinstance(own.loss, (Squared, OneHot, Huber))
    require(known, f"loss = {type(own.loss).__name__}: only squared losses and Huber's have Gram matrices")
    folds = [Part(k, held_out=True) for k in range(own.folds)] if own.fold is not None else [ALL]
    return [_gram(own, part, own.weights(factors)) for part in folds]


def _gram(own: OwnRows, part: Part, w: Tensor) -> Gram:
    p, q = own.width, own.outputs
    k = p + own.intercept
    matrix, products = (torch.zeros(n, k, dtype=torch.float64) for n in (k, q))
    weight = square = 0.0
    for rows, A in own.chunks(part, q):
        v, b = w[rows], own.b[rows]
        Y = torch.nn.functional.one_hot(b, q).double() if own.loss.classes else b[:, None]
        Y = Y if own.shift is None else Y - own.shift[rows, None]
        root_A = A * v.sqrt()[:, None]
        matrix[:p, :p] += root_A.mT @ root_A
        products[:, :p] += (Y * v[:, None]).mT @ A
        weight += float(v.sum())
        square += float(v @ Y.square().sum(1))
        if own.intercept:
            matrix[:p, p] += v @ A
            products[:, p] += v @ Y
    if own.intercept:
        matrix[p, :p] = matrix[:p, p]
        matrix[p, p] = weight
    return Gram(weight, square, products, matrix)
