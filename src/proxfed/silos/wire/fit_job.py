"""What a job says of a fit: the loss, and how rows are held out. The penalty and its weights stay with who asks.

    hello, summary      as in every job with tables: the preparation follows (table_rows.py)
    job                 fit = {loss, intercept, folds, by}
    query counts        what the rows of every fold and class weigh
    query sums          many points at once: the loss of all rows or of a part, gradients, Hessians
    query grams         of squared loss: products of columns, fold by fold
    query private       noisy sums of products, instead of all others (fit/private_tables.py)
    query histogram     of two classes: how many held-out rows have which score
    query judged        measures of a model on this site's held-out rows, if the site tells them
    query size          how many rows there are of each class, and clusters
    query agreement     what says whether sites agree on coefficients: four sums of each site's own estimates
    query estimates     a site's own estimates, if the site tells them
    query intercept     with intercepts that sites keep: what rows weigh, and that times the intercept
    query risks         of survival: how many rows leave, and how much risk is left, in intervals of time
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

from proxfed.errors import RunError, require
from proxfed.fit.oracle import Gram, Part, Question, Sums, numbers
from proxfed.fit.private_tables import Private
from proxfed.fit.settings import Settings, read_settings
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
    external: bool = False
    """A model that others have fitted is validated: all rows are new to it, and only measures and sums of losses are
    told."""

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


PRODUCTS = ("", "row", "cluster", "organisation")
"""What a cluster is, in the order of their numbers in a letter."""

MOST_TIMES = 512
"""Intervals that risks are told of."""


class Counts(NamedTuple):
    """How rows count."""

    factors: Tensor | None = None
    """(classes,) by which rows count more."""
    own: bool = False
    """Every site adds an intercept of its own."""


PLAIN = Counts()
"""Every row counts as it is."""


class Asked(NamedTuple):
    """What a letter asks for."""

    questions: list[Question]
    counts: Counts


def write_sums(run: str, questions: Sequence[Question], counts: Counts = PLAIN) -> Letter:
    """Every point travels once, and every choice of columns."""
    points: dict[bytes, int] = {}
    choices: dict[tuple[int, ...], int] = {}
    asked = []
    for q in questions:
        at = points.setdefault(_bytes(q.x), len(points))
        which = -1 if q.columns is None else choices.setdefault(tuple(q.columns.tolist()), len(choices))
        fold = -1 if q.part.fold is None else q.part.fold
        asked.append([at, fold, int(q.part.held_out), q.order, which, PRODUCTS.index(q.products)])
    different = torch.stack([torch.frombuffer(bytearray(x), dtype=torch.float64) for x in points])
    chosen = torch.zeros(len(choices), different.shape[1], dtype=torch.bool)
    for columns, k in choices.items():
        chosen[k, list(columns)] = True
    form, body = pack((different, chosen), ())
    return Letter("query", run, head=_head("sums", counts) | {"asked": asked, "form": form}, body=body)


def write(run: str, what: str, counts: Counts = PLAIN, **more: Any) -> Letter:
    """A question without points."""
    return Letter("query", run, head=_head(what, counts) | more)


def write_points(run: str, what: str, points: Sequence[Tensor], counts: Counts = PLAIN) -> Letter:
    """About a model, and times."""
    form, body = pack(tuple(points), ())
    return Letter("query", run, head=_head(what, counts) | {"form": form}, body=body)


def read_points(letter: Letter, classes: int, *lengths: int) -> tuple[list[Tensor], Counts]:
    """Vectors of these lengths; -1: of any, up to MOST_TIMES."""
    _only(letter, {"what", "factors", "own", "form"})
    form = "(" + "." * len(lengths) + ")"
    _check(letter.word("form") == form, f"its points are not {len(lengths)} tensors")
    found = list(unpack(form, letter.body, (), 0, 0))
    for x, length in zip(found, lengths, strict=True):
        good = x.dtype == torch.float64 and x.ndim == 1 and (len(x) == length or (length < 0 < len(x) <= MOST_TIMES))
        _check(good and bool(x.isfinite().all()), "its points are no finite numbers, or not as many as there must be")
    return found, _counts(letter, classes)


def write_models(run: str, what: str, models: Tensor, counts: Counts = PLAIN, **more: Any) -> Letter:
    """A question about held-out rows: (folds, d) the models that have not seen them."""
    form, body = pack((models,), ())
    return Letter("query", run, head=_head(what, counts) | {"form": form} | more, body=body)


def read_models(letter: Letter, folds: int, d: int, own_d: int, classes: int) -> tuple[Tensor, Counts]:
    _only(letter, {"what", "factors", "own", "form", "bootstrap"})
    counts = _counts(letter, classes)
    d = own_d if counts.own else d
    _check(letter.word("form") == FORM, "its models are not one tensor")
    (models,) = unpack(FORM, letter.body, (), 0, 0)
    good = models.dtype == torch.float64 and models.shape == (folds, d)
    _check(good and bool(models.isfinite().all()), f"its models are no {folds} rows of {d} finite numbers")
    return models, counts


def _head(what: str, counts: Counts) -> Head:
    factors = None if counts.factors is None else counts.factors.tolist()
    return {"what": what, "factors": factors, "own": counts.own}


def _bytes(x: Tensor) -> bytes:
    return x.detach().double().contiguous().numpy().tobytes()


def read_sums(letter: Letter, d: int, own_d: int, classes: int) -> Asked:
    """Whatever is not understood to the last key is refused; own_d: coefficients where sites add intercepts."""
    _only(letter, {"what", "factors", "own", "asked", "form"})
    counts = _counts(letter, classes)
    d = own_d if counts.own else d
    asked: Any = letter.head.get("asked")
    good = isinstance(asked, list) and 0 < len(asked) <= MOST_QUESTIONS
    good = good and all(isinstance(a, list) and len(a) == 6 and all(type(v) is int for v in a) for a in asked)
    _check(good, f"asked is no list of 1 to {MOST_QUESTIONS} questions")
    _check(letter.word("form") == ASKED, "its points and columns are not two tensors")
    points, chosen = unpack(ASKED, letter.body, (), 0, 0)
    good = points.dtype == torch.float64 and points.ndim == 2 and points.shape[1] == d
    _check(good and 0 < len(points) <= len(asked), f"its points are no rows of {d} numbers")
    good = chosen.dtype == torch.bool and chosen.ndim == 2 and chosen.shape[1] == d and len(chosen) <= len(asked)
    _check(good and bool(chosen.any(1).all()), f"its columns are none of {d}")
    _check(bool(points.isfinite().all()), "a number of a point is not finite")
    questions = []
    for at, fold, held_out, order, which, products in asked:
        good = 0 <= at < len(points) and -1 <= fold < MOST_FOLDS and held_out in (0, 1) and order in (0, 1, 2)
        good = good and -1 <= which < len(chosen) and (which < 0 or order == 2)
        good = good and 0 <= products < len(PRODUCTS) and (not products or (order == 2 and fold < 0))
        _check(good, f"{[at, fold, held_out, order, which, products]} is no question")
        _check(not held_out or (fold >= 0 and order == 0), "of rows that are held out the loss alone is told")
        columns = None if which < 0 else chosen[which].nonzero().flatten()
        part = Part(None if fold < 0 else fold, bool(held_out))
        questions.append(Question(points[at], part, order, columns, PRODUCTS[products]))
    return Asked(questions, counts)


class Bootstrap(NamedTuple):
    """How intervals of measures are drawn."""

    repetitions: int = 200
    level: float = 0.95
    seed: int = 0

    @classmethod
    def read(cls, letter: Letter) -> Bootstrap:
        told: Any = letter.head.get("bootstrap")
        good = isinstance(told, list) and len(told) == 3 and all(type(v) in (int, float) for v in told)
        good = good and type(told[0]) is int and type(told[2]) is int and 0 <= told[0] <= MOST_REPETITIONS
        _check(good and 0 < told[1] < 1 and 0 <= told[2] < 2**63, "bootstrap is no [repetitions, level, seed]")
        drawn = cls(*told)
        _check(not drawn.too_few, TOO_FEW_REPETITIONS)
        return drawn

    @property
    def too_few(self) -> bool:
        """An interval's end would be the measure of a draw that is known: enough draws would tell every row."""
        return self.repetitions > 0 and self.repetitions * (1 - self.level) < 2 * FEWEST_IN_A_TAIL


MOST_REPETITIONS, FEWEST_IN_A_TAIL = 1000, 2
TOO_FEW_REPETITIONS = "repetitions are 0, or so many that two of them and more lie beyond each end of an interval"


def check_draws(repetitions: int, level: float) -> None:
    """InputError if a site would not tell intervals of so many draws."""
    said = f"repetitions = {repetitions}, level = {level:g}: between sites, {TOO_FEW_REPETITIONS}"
    require(not Bootstrap(repetitions, level).too_few, said)


OF_ALONE = ("penalty", "weight", "weights", "smallest", "rule", "groups", "cv_tolerance")
"""Settings of a fit that a site needs for a model of its own rows."""

MOST_WEIGHTS = 100


def write_alone(run: str, settings: Settings, counts: Counts, bootstrap: Bootstrap) -> Letter:
    """About a model of a site's rows alone."""
    table = settings.model_dump(mode="json", include=set(OF_ALONE), exclude_defaults=True)
    return write(run, "alone", counts, settings=table, bootstrap=[*bootstrap])


def read_alone(letter: Letter, classes: int) -> tuple[Settings, Counts]:
    _only(letter, {"what", "factors", "own", "settings", "bootstrap"})
    table = letter.head.get("settings")
    _check(isinstance(table, dict) and {*table} <= {*OF_ALONE} and not letter.body, "its settings are none")
    settings = read_settings(table)  # type: ignore[arg-type]
    count = settings.weights if isinstance(settings.weights, int) else len(settings.weights)
    _check(1 <= count <= MOST_WEIGHTS, f"a path of {count} weights is longer than {MOST_WEIGHTS}")
    return settings, _counts(letter, classes)


def read_plain(letter: Letter, classes: int) -> Counts:
    """Of a question without points."""
    _only(letter, {"what", "factors", "own"})
    _check(not letter.body, "it has a body, and needs none")
    return _counts(letter, classes)


def read_order(letter: Letter, classes: int, d: int) -> tuple[list[int], Counts]:
    """The coefficients that are estimated, in the order in which they are preferred; d with a shared intercept."""
    _only(letter, {"what", "factors", "own", "order"})
    order: Any = letter.head.get("order")
    good = isinstance(order, list) and all(type(j) is int and 0 <= j < d for j in order)
    _check(good and 0 < len(order) == len({*order}) and not letter.body, f"order is no choice of {d} coefficients")
    return order, _counts(letter, classes)


def _counts(letter: Letter, classes: int) -> Counts:
    own = letter.head.get("own")
    _check(isinstance(own, bool), "own is neither true nor false")
    return Counts(read_factors(letter, classes), bool(own))


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
