"""What a fit asks of organisations: sums over their rows, at points. It never sees a row.

A fit asks all organisations at once, and their answers are added up: by arrays where the tables lie here, by a carrier
between organisations. The penalty, its weight and the solver stay with the one who asks, so that a whole path is one
job. Points are coefficients on the prepared scale, (d,), as the problem's own x: weights (outputs, features), row by
row, and then the intercepts.

Sums are those of the rows, each with its own weight (times that of its class); nobody divides by anything before all
is added up.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from proxfed.fit.inference.heterogeneity import OwnEstimate

NUMBER = 8
"""Bytes of a number that travels: all of them are float64."""


class Part(NamedTuple):
    """Which rows of every organisation are meant."""

    fold: int | None = None
    """None: all rows that are fitted to. Otherwise a fold, as every organisation has fixed its own once and for all."""
    held_out: bool = False
    """The rows of the fold itself; False: those of all other folds. Rows whose loss is not their own, as in survival,
    have that of all rows less that of the other folds."""


ALL = Part()


class Question(NamedTuple):
    """The loss of the rows of a part at x, and its derivatives up to an order."""

    x: Tensor
    """(d,)"""
    part: Part = ALL
    order: int = 1
    """0: values; 1: gradients as well; 2: Hessians as well."""
    columns: Tensor | None = None
    """(k,) the coordinates, ascending, whose Hessian is asked for, such as those of few among many features; None:
    all."""
    products: str = ""
    """Of the gradients of clusters as well, with a Hessian: a cluster is a "row", the rows with the same value in the
    "cluster" column, or an "organisation"."""


class Sums(NamedTuple):
    """Over the rows of all organisations, each with its own weight: sum w l(x), and its derivatives."""

    value: float
    gradient: Tensor | None = None
    """(d,)"""
    hessian: Tensor | None = None
    """(d, d), or (k, k) of the columns that were asked for."""
    products: Tensor | None = None
    """As large: the sum over clusters of u u', where u is the gradient of the rows of a cluster."""


class Size(NamedTuple):
    """How many rows there are, whatever they weigh."""

    kinds: Tensor
    """(classes,) of each class; classes are those of `Organisations.counts`."""
    clusters: float
    """Different values in the column that names clusters; 0 without one."""
    least: float
    """The loss of a model that fits every row, which deviance is measured from."""

    @property
    def rows(self) -> float:
        return float(self.kinds.sum())


class Gram(NamedTuple):
    """All that squared loss needs to know of the rows of a fold; A is the rows' features, and 1 for an intercept.

    The matrix is also what no Hessian of Huber's loss is above."""

    weight: float
    """sum w"""
    square: float
    """sum w |y|^2"""
    products: Tensor
    """(outputs, k) Y' W A, with k = features, and one more with an intercept."""
    matrix: Tensor
    """(k, k) A' W A"""


@dataclass(frozen=True)
class Traffic:
    """What it took, over all organisations."""

    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        up, down = self.bytes_up + other.bytes_up, self.bytes_down + other.bytes_down
        return Traffic(self.rounds + other.rounds, up, down)

    def __sub__(self, other: Traffic) -> Traffic:
        up, down = self.bytes_up - other.bytes_up, self.bytes_down - other.bytes_down
        return Traffic(self.rounds - other.rounds, up, down)


class Organisations(Protocol):
    """All organisations of a fit. Every call but `weighing` and
    `adding_intercepts` is one exchange with all of them."""

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""

    @property
    def folds(self) -> int:
        """How many folds their rows are divided into; 0: none."""

    @property
    def traffic(self) -> Traffic:
        """What was exchanged so far."""

    @property
    def hessian_columns(self) -> int:
        """How many coordinates a Hessian may have that they give; 0: they give none."""

    @property
    def tells_grams(self) -> bool:
        """They give Gram matrices."""

    @property
    def rounding(self) -> float:
        """Absolute error of a number of an answer, beyond that of floating point."""

    def counts(self) -> Tensor:
        """(folds, classes): what the rows of each fold and class weigh, before any class weights; one line for all
        rows if there are no folds. Of numbers there is one class; of survival there are two, censored and with an
        event; labels -1 and +1 are two."""

    def weighing(self, factors: Tensor | None) -> Self:
        """The same organisations, with rows that count (classes,) times as much in every answer but `counts`; the
        factors travel with the questions."""

    def adding_intercepts(self) -> Self:
        """The same organisations, each of which adds an intercept of its own to every score and keeps it; points then
        have none. Answers are those of the profile of the loss over that intercept."""

    def size(self) -> Size:
        """How many rows there are."""

    def intercept(self, x: Tensor) -> float:
        """The mean of the intercepts that organisations add at x, by what their rows weigh."""

    def agreement(self, order: Sequence[int]) -> Tensor:
        """(5, d) what tells whether organisations agree on their coefficients (inference/heterogeneity.py), of each
        one's estimate of its own rows; `order` as in `estimate`."""

    def estimates(self, order: Sequence[int]) -> dict[str, OwnEstimate | str]:
        """These estimates, of the organisations that tell them; a sentence where one has none."""

    def risks(self, times: Tensor, x: Tensor) -> Tensor:
        """(4, intervals) of survival: who leaves and what risk is left in agreed intervals (inference/survival.py),
        where a row's risk is that of the model x."""

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        """One answer for each question; many go in one exchange."""

    def grams(self) -> list[Gram]:
        """One for each fold, of squared loss or Huber's; one for all rows if there are no folds. What the folds add up
        to is that of all rows."""


# ---- what travels ----------------------------------------------------------------------------------------------------


def question_bytes(questions: Sequence[Question]) -> int:
    """Down, to one organisation: every point once, and the columns of Hessians."""
    points = {q.x.numpy().tobytes(): q.x for q in questions}
    return NUMBER * (sum(map(len, points.values())) + sum(len(q.columns) for q in questions if q.columns is not None))


def answer_bytes(questions: Sequence[Question]) -> int:
    """Up, from one organisation: a number, a vector, and of a symmetric matrix one half."""
    return NUMBER * sum(numbers(q) for q in questions)


def gram_bytes(grams: Sequence[Gram]) -> int:
    """Up, from one organisation."""
    return NUMBER * sum(2 + g.products.numel() + len(g.matrix) * (len(g.matrix) + 1) // 2 for g in grams)


def numbers(question: Question) -> int:
    """Of an answer."""
    d = len(question.x)
    k = d if question.columns is None else len(question.columns)
    return 1 + (d if question.order > 0 else 0) + k * (k + 1) // 2 * ((question.order > 1) + bool(question.products))


# ---- in lockstep -----------------------------------------------------------------------------------------------------

T = TypeVar("T")


def together(organisations: Organisations, fits: Sequence[Generator[Question, Sums, T]]) -> list[T]:
    """All fits, in lockstep: a question of each goes in one exchange."""
    found: dict[int, T] = {}
    waiting: dict[int, Question] = {}

    def advance(k: int, answer: Sums | None) -> None:
        try:
            waiting[k] = next(fits[k]) if answer is None else fits[k].send(answer)
        except StopIteration as end:
            found[k] = end.value

    for k in range(len(fits)):
        advance(k, None)
    while waiting:
        asked, waiting = waiting, {}
        answers = organisations.ask(list(asked.values()))
        for k, answer in zip(asked, answers, strict=True):
            advance(k, answer)
    return [found[k] for k in range(len(fits))]
