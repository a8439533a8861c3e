"""Organisations whose tables lie here: `Organisations` (fit/oracle.py) over arrays, with what would travel counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from proxfed.data.survival import time_and_event
from proxfed.fit.inference.heterogeneity import META, OwnEstimate, meta_sums, own_estimate
from proxfed.fit.inference.regression import Intercept, Regression
from proxfed.fit.inference.survival import RISKS, heaviest, risk_table, withheld
from proxfed.fit.oracle import (
    ALL,
    NUMBER,
    Gram,
    Part,
    Question,
    Size,
    Sums,
    Traffic,
    answer_bytes,
    gram_bytes,
    question_bytes,
)
from proxfed.fit.own_grams import grams
from proxfed.fit.own_profile import FURTHEST, check_one_score, own_intercept
from proxfed.fit.own_random import RandomSums, random_intercept, random_sums
from proxfed.fit.own_rows import OwnRows, dense, rows_apart
from proxfed.fit.own_sums import answer

HESSIAN = 2000
"""Coordinates that a Hessian has at most, where nobody has to hide anything: 16 MB of each organisation."""


@dataclass(frozen=True, eq=False)
class Here:
    """Organisations whose tables lie here: their answers are added up, and what would travel is counted."""

    own: tuple[OwnRows, ...]
    names: tuple[str, ...]
    factors: Tensor | None = None
    """(classes,)"""
    own_intercepts: bool = False
    spent: list[Traffic] = field(default_factory=lambda: [Traffic()])
    """So far, as one number; shared by all that were made of these organisations."""

    @property
    def folds(self) -> int:
        return self.own[0].folds

    @property
    def traffic(self) -> Traffic:
        return self.spent[0]

    @property
    def tells_grams(self) -> bool:
        return not self.own_intercepts  # what rows have in common depends on which of them are fitted to

    @property
    def hessian_columns(self) -> int:
        return HESSIAN

    @property
    def rounding(self) -> float:
        return 0.0

    def _exchanged(self, up: int, down: int) -> None:
        n = len(self.own)
        self.spent[0] = self.spent[0] + Traffic(1, n * up, n * down)

    def weighing(self, factors: Tensor | None) -> Self:
        return replace(self, factors=factors)

    @property
    def each(self) -> list[Self]:
        """Each organisation alone."""
        return [
            replace(self, own=(own,), names=(name,), spent=[Traffic()])
            for own, name in zip(self.own, self.names, strict=True)
        ]

    def adding_intercepts(self) -> Self:
        check_one_score(self.own[0].loss)
        return replace(self, own_intercepts=True)

    def intercepts(self, x: Tensor, part: Part = ALL) -> dict[str, float]:
        """Those of the organisations at x, which are known to them alone; infinite where all outcomes are the same."""
        return {n: own_intercept(own, x, part, self.factors) for n, own in zip(self.names, self.own, strict=True)}

    def intercept(self, x: Tensor) -> float:
        weight, total = self.intercept_sums(x).tolist()
        return float(total / weight)

    def intercept_sums(self, x: Tensor) -> Tensor:
        """(2,) what rows weigh, and that times the intercept, which is far, but not infinite, of equal outcomes."""
        weights = torch.stack([own.weights(self.factors).sum() for own in self.own])
        each = torch.tensor([*self.intercepts(x).values()], dtype=torch.float64).clamp(-FURTHEST, FURTHEST)
        self._exchanged(NUMBER * 2, NUMBER * len(x))
        return torch.stack([weights.sum(), weights @ each])

    def random_sums(self, x: Tensor, t: float) -> RandomSums:
        """Of random intercepts of spread t, at x."""
        self._exchanged(NUMBER * RandomSums.numbers(len(x)), NUMBER * (len(x) + 1))
        first, *others = (random_sums(own, x, t, self.factors) for own in self.own)
        return sum(others, start=first)

    def random_shifts(self, x: Tensor, t: float) -> dict[str, float]:
        """What organisations add to the shared intercept, which is known to them alone."""
        return {n: random_intercept(own, x, t, self.factors) for n, own in zip(self.names, self.own, strict=True)}

    def agreement(self, order: Sequence[int]) -> Tensor:
        each = [e for e in self._estimates(order).values() if isinstance(e, OwnEstimate)]
        d = self.own[0].outputs * self.own[0].width if self.own_intercepts else self.own[0].d
        self._exchanged(NUMBER * len(META) * d, 0)
        sums = [torch.from_numpy(np.stack(meta_sums(one))) for one in each]
        return sum(sums, start=torch.zeros(len(META), d, dtype=torch.float64))

    def estimates(self, order: Sequence[int]) -> dict[str, OwnEstimate | str]:
        found = self._estimates(order)
        self._exchanged(NUMBER * 2 * len(order), 0)
        return found

    def _estimates(self, order: Sequence[int]) -> dict[str, OwnEstimate | str]:
        own = self.own[0]
        kind: Intercept = "own" if self.own_intercepts else "shared" if own.intercept else "none"
        found = {
            one.names[0]: own_estimate(Regression.of(one, own.loss, own.width, kind, ""), order) for one in self.each
        }
        for rows, each in zip(self.own, found.values(), strict=True):
            if rows.fewest > 1 and isinstance(each, OwnEstimate):
                few = [j for j, n in enumerate(rows_apart(rows.features)) if n < rows.fewest]
                each.b[few] = each.error[few] = np.nan
        return found

    def risks(self, times: Tensor, x: Tensor) -> Tensor:
        grid = times.numpy()
        self._exchanged(NUMBER * len(RISKS) * len(grid), NUMBER * (len(grid) + len(x)))
        total = torch.zeros(len(RISKS), len(grid), dtype=torch.float64)
        for own in self.own:
            left = _leaving(own, grid, x)
            if left is not None:
                total += torch.from_numpy(np.stack(risk_table(left.times, left.events, grid, left.scores)))
        return total

    def heaviest_risk(self, times: Tensor, x: Tensor) -> float:
        """The largest share of one row in what `risks` says of those who leave in an interval; 0 if every row may be
        told."""
        each = [(own, _leaving(own, times.numpy(), x)) for own in self.own if own.fewest > 1]
        return max((heaviest(*left, times.numpy()) for _, left in each if left is not None), default=0.0)

    def size(self) -> Size:
        each = [own.size(self.factors) for own in self.own]
        self._exchanged(NUMBER * (len(each[0].kinds) + 2), 0)
        kinds = torch.stack([one.kinds for one in each]).sum(0)
        return Size(kinds, sum(one.clusters for one in each), sum(one.least for one in each))

    def counts(self) -> Tensor:
        found = sum((own.counts() for own in self.own[1:]), start=self.own[0].counts())
        self._exchanged(NUMBER * found.numel(), 0)
        return found

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        self._exchanged(answer_bytes(questions), question_bytes(questions))
        return added([answer(own, questions, self.factors, self.own_intercepts) for own in self.own])

    def grams(self) -> list[Gram]:
        each = [grams(own, self.factors) for own in self.own]
        self._exchanged(gram_bytes(each[0]), 0)
        return [
            Gram(
                sum(g.weight for g in gs),
                sum(g.square for g in gs),
                torch.stack([g.products for g in gs]).sum(0),
                torch.stack([g.matrix for g in gs]).sum(0),
            )
            for gs in zip(*each, strict=True)
        ]


class Leaving(NamedTuple):
    """When rows leave, as it is told."""

    times: np.ndarray
    events: np.ndarray
    scores: np.ndarray


def _leaving(own: OwnRows, grid: np.ndarray, x: Tensor) -> Leaving | None:
    """Of one organisation; None: it has too few rows."""
    t, e = time_and_event(np.asarray(own.labels))
    moved = withheld(t, e, grid, own.fewest)
    if moved is None:
        return None
    scores = dense(own.features) @ x
    scores = scores if own.offset is None else scores + torch.from_numpy(own.offset)
    return Leaving(moved, e, scores.numpy())


def added(answers: Sequence[Sequence[Sums]]) -> list[Sums]:
    """The answers of all organisations, question by question."""

    def total(parts: Sequence[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return sum(there[1:], start=there[0]) if there else None

    return [
        Sums(
            sum(a.value for a in each),
            total([a.gradient for a in each]),
            total([a.hessian for a in each]),
            total([a.products for a in each]),
        )
        for each in zip(*answers, strict=True)
    ]
