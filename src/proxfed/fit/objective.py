"""f as the one who asks knows it: what the rows of every part weigh, and answers that can be had without asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from proxfed.errors import InputError, finite, require
from proxfed.fit.newton import Mean
from proxfed.fit.oracle import ALL, Gram, Organisations, Part, Question, Size, Sums, Traffic
from proxfed.problems.losses import Huber, Logistic, Loss, OneHot, Poisson, Softmax, Squared

if TYPE_CHECKING:
    from proxfed.fit.inference.heterogeneity import OwnEstimate

GRAM = 2000
"""Features up to which squared loss is asked for its Gram matrices."""


class Shape(NamedTuple):
    """Of x: weights (outputs, features), row by row, and then the intercepts."""

    outputs: int
    features: int
    intercept: bool

    @property
    def d(self) -> int:
        return self.outputs * (self.features + self.intercept)


@dataclass(frozen=True, eq=False)
class Objective:
    """f = (sum of the rows' losses) / (sum of their weights) + (l2/2) |x|^2, of all rows and of the folds."""

    organisations: Organisations
    loss: Loss
    shape: Shape
    counted: Tensor
    """(folds, classes) what rows weigh; one line if there are no folds."""
    l2: float = 0.0
    names: tuple[str, ...] = ()
    """Of the features, for what is said of them."""
    exact: bool = False
    """f is known as a quadratic function: nobody has to be asked any more."""
    known: Quadratics | None = None
    """The squared loss of the same rows, where it is known."""

    @classmethod
    def of(
        cls,
        organisations: Organisations,
        loss: Loss,
        shape: Shape,
        *,
        l2: float = 0.0,
        class_weights: str | Mapping[str, float] | None = None,
        names: Sequence[str] = (),
    ) -> Self:
        """One exchange: of Gram matrices for squared losses, of what rows weigh for others."""
        squared = isinstance(loss, (Squared, OneHot, Huber)) and shape.features <= GRAM and organisations.tells_grams
        made = cls(organisations, loss, shape, torch.zeros(1, 1), l2, tuple(names))
        if class_weights is not None or not squared:
            made = replace(made, counted=organisations.counts())
        if class_weights is not None:
            factors = class_factors(class_weights, made.counted.sum(0), loss)
            made = replace(made, organisations=organisations.weighing(factors), counted=made.counted * factors)
        if not squared:
            return made
        grams = made.organisations.grams()
        counted = torch.tensor([[g.weight] for g in grams], dtype=torch.float64)
        known = Quadratics(tuple(grams), shape, made.organisations)
        made = replace(made, counted=counted, known=known)
        return made if isinstance(loss, Huber) else replace(made, organisations=known, exact=True)

    @property
    def d(self) -> int:
        return self.shape.d

    @property
    def folds(self) -> int:
        return self.organisations.folds

    def weight(self, part: Part = ALL) -> float:
        """What its rows weigh."""
        return float(self._kinds(part).sum())

    def _kinds(self, part: Part) -> Tensor:
        total = self.counted.sum(0)
        if part.fold is None:
            return total
        own = self.counted[part.fold]
        return own if part.held_out else total - own

    def complete(self, part: Part) -> bool:
        """Whether it has rows of all classes that there are; of survival, events."""
        there = self._kinds(part) > 1e-12 * self.weight()
        if not self.loss.separate:
            return bool(there[1])
        return bool((there | (self._kinds(ALL) == 0)).all())

    def mean(self, part: Part = ALL) -> Mean:
        return Mean(self.weight(part), self.l2, self.organisations.rounding / self.weight(part))

    def bound(self, part: Part = ALL) -> Tensor | None:
        """What no Hessian is above, of a loss that has places without curvature."""
        if self.known is None or self.exact:
            return None
        return self.known.gram(part).matrix / self.weight(part)

    def begin(self) -> tuple[Tensor, float | None]:
        """(where a fit begins, the gradient at zero): all weights are zero, and intercepts are what they are without
        features, where the gradient at zero tells it; one exchange, or none."""
        zero = torch.zeros(self.d, dtype=torch.float64)
        if not self.shape.intercept or self.l2:
            return zero, None
        if self.known is not None and not self.exact:
            zero[-1] = self.known.gram(ALL).products[0, -1] / self.weight()
            return zero, None
        (sums,) = self.organisations.ask([Question(zero)])
        _, g, _ = self.mean()(sums, zero)
        x = zero.clone()
        x[self.shape.outputs * self.shape.features :] = intercepts(
            self.loss, g[self.shape.outputs * self.shape.features :]
        )
        return x, float(g.norm()) or 1.0


def intercepts(loss: Loss, g: Tensor) -> Tensor:
    """Of the model without features, from the gradient in the intercepts at zero; zero where that does not tell."""
    tiny = 1e-12
    if isinstance(loss, Logistic):
        part = (0.5 - g).clamp(tiny, 1 - tiny)
        return torch.log(part / (1 - part))
    if isinstance(loss, Softmax):
        logs = torch.log((1 / len(g) - g).clamp_min(tiny))
        return logs - logs.mean()
    if isinstance(loss, Poisson):
        return torch.log((1 - g).clamp_min(tiny))
    return -g if isinstance(loss, (Squared, OneHot)) else torch.zeros_like(g)


def class_factors(given: str | Mapping[str, float], counted: Tensor, loss: Loss) -> Tensor:
    """(classes,) from 'balanced', which gives every class that occurs the same weight, or from numbers by label."""
    asked = f"class_weights = {given!r}"
    two = isinstance(loss, Logistic)
    require(two or loss.classes, f"{asked}: labels are numbers, not classes")
    there = counted > 0
    if given == "balanced":
        return torch.where(there, counted.sum() / (there.sum() * torch.where(there, counted, 1)), 1.0)
    if not isinstance(given, Mapping):
        raise InputError(f"{asked} must be 'balanced', or a number for each label, such as {{'1': 5.0}}")
    labels = [-1, 1] if two else list(range(len(counted)))
    factors = torch.ones(len(counted), dtype=torch.float64)
    for label, weight in given.items():
        number = _number(label)
        require(number in labels, f"{asked}: there is no label {label!r}, only {', '.join(map(str, labels))}")
        require(finite(weight) and weight >= 0, f"{asked}: {weight!r} must be a finite number >= 0")
        factors[[float(each) for each in labels].index(float(number or 0))] = weight
    return factors


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, eq=False)
class Quadratics:
    """Organisations that told their Gram matrices: everything else follows from these, and nobody is asked."""

    own: tuple[Gram, ...]
    """One for each fold, of all organisations together."""
    shape: Shape
    asked: Organisations

    @property
    def names(self) -> tuple[str, ...]:
        return self.asked.names

    @property
    def folds(self) -> int:
        return self.asked.folds

    @property
    def traffic(self) -> Traffic:
        return self.asked.traffic

    @property
    def tells_grams(self) -> bool:
        return True

    @property
    def rounding(self) -> float:
        return self.asked.rounding

    @property
    def hessian_columns(self) -> int:
        return max(GRAM, self.shape.d if self.shape.outputs == 1 else 0)

    def counts(self) -> Tensor:
        return self.asked.counts()

    def weighing(self, factors: Tensor | None) -> Any:
        return self.asked.weighing(factors)

    def adding_intercepts(self) -> Any:
        return self.asked.adding_intercepts()

    def size(self) -> Size:
        return self.asked.size()

    def intercept(self, x: Tensor) -> float:
        return self.asked.intercept(x)

    def agreement(self, order: Sequence[int]) -> Tensor:
        return self.asked.agreement(order)

    def estimates(self, order: Sequence[int]) -> dict[str, OwnEstimate | str]:
        return self.asked.estimates(order)

    def risks(self, times: Tensor, x: Tensor) -> Tensor:
        return self.asked.risks(times, x)

    def grams(self) -> list[Gram]:
        return list(self.own)

    @cached_property
    def _parts(self) -> dict[Part, Gram]:
        return {}

    def gram(self, part: Part) -> Gram:
        """Of the rows of a part."""
        if part not in self._parts:
            some = range(len(self.own)) if part.fold is None else [part.fold] if part.held_out else [
                k for k in range(len(self.own)) if k != part.fold
            ]  # fmt: skip
            grams = [self.own[k] for k in some]
            self._parts[part] = Gram(
                sum(g.weight for g in grams),
                sum(g.square for g in grams),
                torch.stack([g.products for g in grams]).sum(0),
                torch.stack([g.matrix for g in grams]).sum(0),
            )
        return self._parts[part]

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        found = {k: self._answer(q) for k, q in enumerate(questions) if not q.products}
        asked = [k for k, q in enumerate(questions) if q.products]  # no Gram matrix knows them
        if asked:
            found |= zip(asked, self.asked.ask([questions[k] for k in asked]), strict=True)
        return [found[k] for k in range(len(questions))]

    def _answer(self, question: Question) -> Sums:
        gram, (q, p, intercept) = self.gram(question.part), self.shape
        X = self._rows(question.x)
        slope = X @ gram.matrix
        value = float((slope * X).sum() / 2 - (X * gram.products).sum()) + gram.square / 2
        if question.order == 0:
            return Sums(value)
        slope = slope - gram.products
        gradient = torch.cat([slope[:, :p].flatten(), slope[:, p]]) if intercept else slope.flatten()
        if question.order == 1:
            return Sums(value, gradient)
        if q == 1:
            c = question.columns
            return Sums(value, gradient, gram.matrix if c is None else gram.matrix[c[:, None], c])
        H = torch.zeros(self.shape.d, self.shape.d, dtype=torch.float64)
        for k in range(q):
            place = torch.cat([torch.arange(k * p, (k + 1) * p), torch.arange(q * p + k, q * p + k + intercept)])
            H[place[:, None], place] = gram.matrix
        return Sums(value, gradient, H if question.columns is None else H[question.columns[:, None], question.columns])

    def _rows(self, x: Tensor) -> Tensor:
        """(outputs, k)"""
        q, p, intercept = self.shape
        W = x[: q * p].view(q, p)
        return torch.cat([W, x[q * p :, None]], 1) if intercept else W
