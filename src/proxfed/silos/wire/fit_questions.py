"""Questions of a fit as letters: how the coordinator writes them, and how a site reads and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.fit.oracle import Part, Question
from proxfed.fit.settings import Settings, read_settings
from proxfed.silos.wire.fit_job import MOST_FOLDS
from proxfed.silos.wire.message import Head, Letter, pack, unpack

MOST_QUESTIONS = 4096
"""Of one letter."""

FORM, ASKED = "(.)", "(..)"
"""One tensor: the numbers of an answer, or models. Two: the points of a letter, and the columns of Hessians."""

PRODUCTS = ("", "row", "cluster", "organisation")
"""The kinds of clusters; a letter holds the position in this list."""

MOST_TIMES = 512
"""The largest number of intervals of time in a question for risks."""


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
    """A question for sums; each point and each choice of columns is sent once."""
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
    """A question about points, such as a model or times."""
    form, body = pack(tuple(points), ())
    return Letter("query", run, head=_head(what, counts) | {"form": form}, body=body)


def read_points(letter: Letter, classes: int, *lengths: int) -> tuple[list[Tensor], Counts]:
    """Vectors of these lengths; -1 stands for any length up to MOST_TIMES."""
    _only(letter, {"what", "factors", "own", "form"})
    form = "(" + "." * len(lengths) + ")"
    check(letter.word("form") == form, f"its points are not {len(lengths)} tensors")
    found = list(unpack(form, letter.body, (), 0, 0))
    for x, length in zip(found, lengths, strict=True):
        good = x.dtype == torch.float64 and x.ndim == 1 and (len(x) == length or (length < 0 < len(x) <= MOST_TIMES))
        check(good and bool(x.isfinite().all()), "its points are no finite numbers, or not as many as there must be")
    return found, _counts(letter, classes)


def write_models(run: str, what: str, models: Tensor, counts: Counts = PLAIN, **more: Any) -> Letter:
    """A question about held-out rows: (folds, d) the models that have not seen them."""
    form, body = pack((models,), ())
    return Letter("query", run, head=_head(what, counts) | {"form": form} | more, body=body)


def read_models(letter: Letter, folds: int, d: int, own_d: int, classes: int) -> tuple[Tensor, Counts]:
    _only(letter, {"what", "factors", "own", "form", "bootstrap"})
    counts = _counts(letter, classes)
    d = own_d if counts.own else d
    check(letter.word("form") == FORM, "its models are not one tensor")
    (models,) = unpack(FORM, letter.body, (), 0, 0)
    good = models.dtype == torch.float64 and models.shape == (folds, d)
    check(good and bool(models.isfinite().all()), f"its models are no {folds} rows of {d} finite numbers")
    return models, counts


def _head(what: str, counts: Counts) -> Head:
    factors = None if counts.factors is None else counts.factors.tolist()
    return {"what": what, "factors": factors, "own": counts.own}


def _bytes(x: Tensor) -> bytes:
    return x.detach().double().contiguous().numpy().tobytes()


def read_sums(letter: Letter, d: int, own_d: int, classes: int) -> Asked:
    """The questions, or RunError at any unknown key or value; own_d: the length of x if sites add own intercepts."""
    _only(letter, {"what", "factors", "own", "asked", "form"})
    counts = _counts(letter, classes)
    d = own_d if counts.own else d
    asked: Any = letter.head.get("asked")
    good = isinstance(asked, list) and 0 < len(asked) <= MOST_QUESTIONS
    good = good and all(isinstance(a, list) and len(a) == 6 and all(type(v) is int for v in a) for a in asked)
    check(good, f"asked is no list of 1 to {MOST_QUESTIONS} questions")
    check(letter.word("form") == ASKED, "its points and columns are not two tensors")
    points, chosen = unpack(ASKED, letter.body, (), 0, 0)
    good = points.dtype == torch.float64 and points.ndim == 2 and points.shape[1] == d
    check(good and 0 < len(points) <= len(asked), f"its points are no rows of {d} numbers")
    good = chosen.dtype == torch.bool and chosen.ndim == 2 and chosen.shape[1] == d and len(chosen) <= len(asked)
    check(good and bool(chosen.any(1).all()), f"its columns are none of {d}")
    check(bool(points.isfinite().all()), "a number of a point is not finite")
    questions = []
    for at, fold, held_out, order, which, products in asked:
        good = 0 <= at < len(points) and -1 <= fold < MOST_FOLDS and held_out in (0, 1) and order in (0, 1, 2)
        good = good and -1 <= which < len(chosen) and (which < 0 or order == 2)
        good = good and 0 <= products < len(PRODUCTS) and (not products or (order == 2 and fold < 0))
        check(good, f"{[at, fold, held_out, order, which, products]} is no question")
        check(not held_out or (fold >= 0 and order == 0), "of rows that are held out the loss alone is told")
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
        check(good and 0 < told[1] < 1 and 0 <= told[2] < 2**63, "bootstrap is no [repetitions, level, seed]")
        drawn = cls(*told)
        check(not drawn.too_few, TOO_FEW_REPETITIONS)
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
    check(isinstance(table, dict) and {*table} <= {*OF_ALONE} and not letter.body, "its settings are none")
    settings = read_settings(table)  # type: ignore[arg-type]
    count = settings.weights if isinstance(settings.weights, int) else len(settings.weights)
    check(1 <= count <= MOST_WEIGHTS, f"a path of {count} weights is longer than {MOST_WEIGHTS}")
    return settings, _counts(letter, classes)


def read_plain(letter: Letter, classes: int) -> Counts:
    """How rows count, in a question without points."""
    _only(letter, {"what", "factors", "own"})
    check(not letter.body, "it has a body, and needs none")
    return _counts(letter, classes)


def read_order(letter: Letter, classes: int, d: int) -> tuple[list[int], Counts]:
    """The coefficients that are estimated, in the order in which they are preferred; d with a shared intercept."""
    _only(letter, {"what", "factors", "own", "order"})
    order: Any = letter.head.get("order")
    good = isinstance(order, list) and all(type(j) is int and 0 <= j < d for j in order)
    check(good and 0 < len(order) == len({*order}) and not letter.body, f"order is no choice of {d} coefficients")
    return order, _counts(letter, classes)


def _counts(letter: Letter, classes: int) -> Counts:
    own = letter.head.get("own")
    check(isinstance(own, bool), "own is neither true nor false")
    return Counts(read_factors(letter, classes), bool(own))


def read_factors(letter: Letter, classes: int) -> Tensor | None:
    given: Any = letter.head.get("factors")
    if given is None:
        return None
    good = isinstance(given, list) and len(given) == classes and all(type(v) in (int, float) for v in given)
    check(good, f"factors are no {classes} numbers")
    return torch.tensor(given, dtype=torch.float64)


def _only(letter: Letter, keys: set[str]) -> None:
    strange = sorted({*letter.head} - keys)
    check(not strange, f"unknown key {strange[:1]}")


def check(good: bool, why: str) -> None:
    if not good:
        raise RunError(f"query: {why}")
