"""What a job says of a fit: the loss, and how rows are held out. The penalty and its weights stay with who asks.

    hello, summary      as in every job with tables: the preparation follows (table_rows.py)
    job                 fit = {loss, intercept, folds, by}
    query counts        what the rows of every fold and class weigh
    query sums          many points at once: the loss of all rows or of a part, gradients, Hessians
    query grams         of squared loss: products of columns, fold by fold
    query private       noisy sums of products, instead of all others (fit/private_tables.py)
    query histogram     of two classes: how many held-out rows have which score
    query judged        measures of a model on this site's held-out rows, if the site tells them
    model               the model that came out, which every site keeps and signs

Sums are added up over all sites, under masks: whoever asks reads nothing of one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from proxfed.errors import RunError
from proxfed.fit.oracle import Gram, Part, Question, Sums, numbers
from proxfed.fit.private_tables import Private
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import find_loss
from proxfed.registry import Table
from proxfed.silos.wire.message import Head, Letter, pack, unpack
from proxfed.validation import STRICT

MOST_QUESTIONS, MOST_FOLDS = 4096, 64
"""Of one letter, and of a job: no more organisations can be left out."""

BINS = 100
"""Of predicted probabilities, from 0 to 1."""

FORM, ASKED = "(.)", "(..)"
"""Of the numbers of an answer; of the points of a letter, and of the columns of Hessians."""

LossName = Literal["logistic", "cross_entropy", "one_hot", "squared", "huber", "poisson", "cox"]


class Criterion(BaseModel):
    """The loss by its name, and what is a setting of it."""

    model_config = STRICT

    name: LossName
    delta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of Huber's."""
    ties: Literal["breslow", "efron"] | None = None
    """Of Cox's."""


class FitTable(BaseModel):
    """The table `fit` of a job."""

    model_config = STRICT

    loss: Criterion
    intercept: bool
    folds: int = Field(ge=0, le=MOST_FOLDS)
    """How many; 0: nothing is held out."""
    private: Private | None = None
    """One question is answered, with noise, and no other."""
    by: Literal["rows", "organisation"]
    """What a fold is: rows of every site, as each has divided them, or all rows of one site."""

    @property
    def criterion(self) -> Loss:
        return find_loss(self.loss.model_dump(exclude_none=True))


def read_fit(table: Table | None) -> FitTable:
    """RunError if it is none."""
    try:
        return FitTable.model_validate(table)
    except ValidationError as e:
        first = e.errors()[0]
        raise RunError(f"the job's fit: {'.'.join(map(str, first['loc']))}: {first['msg']:.100}") from None


# ---- questions -------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a letter asks for."""

    questions: list[Question]
    factors: Tensor | None
    """(classes,) by which rows count more."""


def write_sums(run: str, questions: Sequence[Question], factors: Tensor | None) -> Letter:
    """Every point travels once, and every choice of columns."""
    points: dict[bytes, int] = {}
    choices: dict[tuple[int, ...], int] = {}
    asked = []
    for q in questions:
        at = points.setdefault(_bytes(q.x), len(points))
        which = -1 if q.columns is None else choices.setdefault(tuple(q.columns.tolist()), len(choices))
        asked.append([at, -1 if q.part.fold is None else q.part.fold, int(q.part.held_out), q.order, which])
    different = torch.stack([torch.frombuffer(bytearray(x), dtype=torch.float64) for x in points])
    chosen = torch.zeros(len(choices), different.shape[1], dtype=torch.bool)
    for columns, k in choices.items():
        chosen[k, list(columns)] = True
    form, body = pack((different, chosen), ())
    return Letter("query", run, head=_head("sums", factors) | {"asked": asked, "form": form}, body=body)


def write(run: str, what: str, factors: Tensor | None = None) -> Letter:
    """A question without points."""
    return Letter("query", run, head=_head(what, factors))


def write_models(run: str, what: str, models: Tensor) -> Letter:
    """A question about held-out rows: (folds, d) the models that have not seen them."""
    form, body = pack((models,), ())
    return Letter("query", run, head={"what": what, "form": form}, body=body)


def read_models(letter: Letter, folds: int, d: int) -> Tensor:
    _only(letter, {"what", "form"})
    _check(letter.word("form") == FORM, "its models are not one tensor")
    (models,) = unpack(FORM, letter.body, (), 0, 0)
    good = models.dtype == torch.float64 and models.shape == (folds, d)
    _check(good and bool(models.isfinite().all()), f"its models are no {folds} rows of {d} finite numbers")
    return models


def _head(what: str, factors: Tensor | None) -> Head:
    return {"what": what, "factors": None if factors is None else factors.tolist()}


def _bytes(x: Tensor) -> bytes:
    return x.detach().double().contiguous().numpy().tobytes()


def read_sums(letter: Letter, d: int, classes: int) -> Asked:
    """Whatever is not understood to the last key is refused."""
    _only(letter, {"what", "factors", "asked", "form"})
    asked: Any = letter.head.get("asked")
    good = isinstance(asked, list) and 0 < len(asked) <= MOST_QUESTIONS
    good = good and all(isinstance(a, list) and len(a) == 5 and all(type(v) is int for v in a) for a in asked)
    _check(good, f"asked is no list of 1 to {MOST_QUESTIONS} questions")
    _check(letter.word("form") == ASKED, "its points and columns are not two tensors")
    points, chosen = unpack(ASKED, letter.body, (), 0, 0)
    good = points.dtype == torch.float64 and points.ndim == 2 and points.shape[1] == d
    _check(good and 0 < len(points) <= len(asked), f"its points are no rows of {d} numbers")
    good = chosen.dtype == torch.bool and chosen.ndim == 2 and chosen.shape[1] == d and len(chosen) <= len(asked)
    _check(good and bool(chosen.any(1).all()), f"its columns are none of {d}")
    _check(bool(points.isfinite().all()), "a number of a point is not finite")
    questions = []
    for at, fold, held_out, order, which in asked:
        good = 0 <= at < len(points) and -1 <= fold < MOST_FOLDS and held_out in (0, 1) and order in (0, 1, 2)
        good = good and -1 <= which < len(chosen) and (which < 0 or order == 2)
        _check(good, f"{[at, fold, held_out, order, which]} is no question")
        _check(not held_out or (fold >= 0 and order == 0), "of rows that are held out the loss alone is told")
        columns = None if which < 0 else chosen[which].nonzero().flatten()
        questions.append(Question(points[at], Part(None if fold < 0 else fold, bool(held_out)), order, columns))
    return Asked(questions, read_factors(letter, classes))


def read_plain(letter: Letter, classes: int) -> Tensor | None:
    """The factors of a question without points."""
    _only(letter, {"what", "factors"})
    _check(not letter.body, "it has a body, and needs none")
    return read_factors(letter, classes)


def read_factors(letter: Letter, classes: int) -> Tensor | None:
    given: Any = letter.head.get("factors")
    if given is None:
        return None
    good = isinstance(given, list) and len(given) == classes and all(type(v) in (int, float) for v in given)
    _check(good, f"factors are no {classes} numbers")
    return torch.tensor(given, dtype=torch.float64)


def _only(letter: Letter, keys: set[str]) -> None:
    strange = sorted({*letter.head} - keys)
    _check(not strange, f"unknown key {strange[:1]}")


def _check(good: bool, why: str) -> None:
    if not good:
        raise RunError(f"query: {why}")


# ---- answers ---------------------------------------------------------------------------------------------------------


def flat_sums(answers: Sequence[Sums]) -> Tensor:
    """Of a Hessian its upper half."""
    parts: list[Tensor] = []
    for a in answers:
        parts.append(torch.tensor([a.value], dtype=torch.float64))
        parts += [] if a.gradient is None else [a.gradient]
        parts += [] if a.hessian is None else [half(a.hessian)]
    return torch.cat(parts)


def unflat_sums(numbers_: Tensor, questions: Sequence[Question]) -> list[Sums]:
    """The answers to these questions, from all their numbers."""
    found, at = [], 0
    for q in questions:
        d, size = len(q.x), numbers(q)
        own, at = numbers_[at : at + size], at + size
        hessian = whole(own[1 + d :], d if q.columns is None else len(q.columns)) if q.order > 1 else None
        found.append(Sums(float(own[0]), own[1 : 1 + d] if q.order > 0 else None, hessian))
    _check(at == len(numbers_), f"{len(numbers_)} numbers came, and {at} answer these questions")
    return found


def flat_grams(grams: Sequence[Gram]) -> Tensor:
    parts = []
    for g in grams:
        both = torch.tensor([g.weight, g.square], dtype=torch.float64)
        parts += [both, g.products.flatten(), half(g.matrix)]
    return torch.cat(parts)


def unflat_grams(numbers_: Tensor, folds: int, outputs: int, k: int) -> list[Gram]:
    size = 2 + outputs * k + k * (k + 1) // 2
    _check(len(numbers_) == folds * size, f"{len(numbers_)} numbers came, and {folds} Gram matrices are {folds * size}")
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
