"""Answers to the questions of a fit as flat vectors, which add up over sites, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from proxfed.fit.oracle import Gram, Question, Sums, numbers
from proxfed.silos.wire.fit_questions import check

BINS = 100
"""The number of bins of predicted probabilities, from 0 to 1."""


def flat_sums(answers: Sequence[Sums]) -> Tensor:
    """All numbers of these answers; of each symmetric matrix only the upper half."""
    parts: list[Tensor] = []
    for a in answers:
        parts.append(torch.tensor([a.value], dtype=torch.float64))
        parts += [] if a.gradient is None else [a.gradient]
        parts += [half(matrix) for matrix in (a.hessian, a.products) if matrix is not None]
    return torch.cat(parts)


def unflat_sums(numbers_: Tensor, questions: Sequence[Question]) -> list[Sums]:
    """The answers to these questions, from all their numbers."""
    found, at = [], 0
    for q in questions:
        d, size = len(q.x), numbers(q)
        own, at = numbers_[at : at + size], at + size
        k = d if q.columns is None else len(q.columns)
        matrices = [whole(each, k) for each in own[1 + d :].split(max(1, k * (k + 1) // 2))] if q.order > 1 else []
        found.append(Sums(float(own[0]), own[1 : 1 + d] if q.order > 0 else None, *matrices))
    check(at == len(numbers_), f"{len(numbers_)} numbers came, and {at} answer these questions")
    return found


def flat_grams(grams: Sequence[Gram]) -> Tensor:
    parts = []
    for g in grams:
        both = torch.tensor([g.weight, g.square], dtype=torch.float64)
        parts += [both, g.products.flatten(), half(g.matrix)]
    return torch.cat(parts)


def unflat_grams(numbers_: Tensor, folds: int, outputs: int, k: int) -> list[Gram]:
    size = 2 + outputs * k + k * (k + 1) // 2
    check(len(numbers_) == folds * size, f"{len(numbers_)} numbers came, and {folds} Gram matrices are {folds * size}")
    found = []
    for own in numbers_.split(size):
        weight, square = own[:2].tolist()
        products = own[2 : 2 + outputs * k].view(outputs, k)
        found.append(Gram(weight, square, products, whole(own[2 + outputs * k :], k)))
    return found


def half(matrix: Tensor) -> Tensor:
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns]


def whole(half: Tensor, d: int) -> Tensor:
    matrix = torch.zeros(d, d, dtype=torch.float64)
    rows, columns = np.triu_indices(d)
    matrix[rows, columns] = half
    return matrix + torch.triu(matrix, 1).mT
