"""An intercept for every organisation, in fits with a penalty: it is solved for at every point, and stays there.

What is sent is the profile of the loss over the organisation's own intercept a, at x without intercepts:

    value  sum w l(s + a)      gradient  sum w l' z      Hessian  sum w l'' z z' - h h' / sum w l'',  h = sum w l'' z

with s = z'x. It is convex where the loss is, so that every solver, path and fold works as without intercepts. For rows
that a fold holds out, a is that of the organisation's other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.inference.own_sums import root
from proxfed.fit.objective import Objective, Shape, class_factors
from proxfed.fit.oracle import ALL, Part, Question, Sums
from proxfed.fit.own_rows import Here, OwnRows, own_rows
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic, Poisson

FURTHEST = 30.0
"""Where an intercept ends that would be infinite: beyond it, neither losses nor derivatives change."""


class OwnIntercept(OwnRows):
    """The rows of an organisation that adds an intercept of its own to every score."""

    def own_intercept(self, x: Tensor, part: Part = ALL, factors: Tensor | None = None) -> float:
        """At x, from the rows that a fold is fitted to."""
        part = Part(part.fold) if part.fold is not None else ALL
        rows = torch.cat([torch.arange(s.start, s.stop) for s in self._slices(part)])
        require(len(rows) > 0, "an organisation without rows to fit to has no intercept of its own")
        s = torch.cat([A @ x for _, A in self._chunks(part, 1)])
        b, w = self._b[rows], self._weights(factors)[rows]

        def derivative(a: float) -> tuple[float, float]:
            t = (s + a)[None, None]
            second = self.loss.second(t, b[None])[0, 0, 0]
            return float(self.loss.slope(t.clone(), b[None])[0, 0] @ w), float(second @ w)

        if isinstance(self.loss, (Logistic, Poisson)):
            some = b[w > 0] > 0
            if not some.any():
                return -FURTHEST - float(s.max())
            if isinstance(self.loss, Logistic) and some.all():
                return FURTHEST - float(s.min())
        return root(derivative)

    def _separate(self, asked: list[Question], part: Part, order: int, factors: Tensor | None) -> list[Sums]:
        return [self._profile(question, part, order, factors) for question in asked]

    def _profile(self, question: Question, part: Part, order: int, factors: Tensor | None) -> Sums:
        x, w = question.x, self._weights(factors)
        a = self.own_intercept(x, part, factors)
        value, mass = 0.0, 0.0
        gradient, cross = torch.zeros_like(x), torch.zeros_like(x)
        H = torch.zeros(len(x), len(x), dtype=torch.float64) if question.order > 1 else None
        for rows, A in self._chunks(part, 4):
            s, b, v = (A @ x + a)[None, None], self._b[rows][None], w[rows][None]
            value += float(self.loss.weighted_value(s, b, v).sum())
            if H is not None:
                c = self.loss.second(s, b)[0, 0, 0] * v[0]
                H += (A * c[:, None]).mT @ A
                cross += c @ A
                mass += float(c.sum())
            if order:
                gradient += self.loss.weighted_slope(s, b, v)[0, 0] @ A
        if H is not None:
            H = H - torch.outer(cross, cross) / mass if mass > 1e-9 else torch.zeros_like(H)
            H = H if question.columns is None else H[question.columns[:, None], question.columns]
        return Sums(value, gradient if order else None, H)


def profiled(f: Linear, folds: int = 0, fold: np.ndarray | None = None, names: Sequence[str] = ()) -> Objective:
    """As `objective_of`, of a model without an intercept, to which every organisation adds its own."""
    fits = f.criterion.separate and not f.criterion.classes and not f.intercept
    require(fits, "site_intercepts are for losses with one score: logistic, squared, huber and poisson")
    plain = own_rows(f.data, f.criterion, intercept=False, folds=folds, fold=fold)
    own = tuple(OwnIntercept(*(getattr(each, field.name) for field in fields(OwnRows))) for each in plain)
    here = Here(own, tuple(names) or tuple(map(str, range(len(own)))))
    counted = here.counts()
    if f.class_weights is not None:
        factors = class_factors(f.class_weights, counted.sum(0), f.criterion)
        here, counted = here.weighing(factors), counted * factors
    shape = Shape(1, f.blocks[0].shape[1], False)
    return Objective(here, f.criterion, shape, counted, f.l2, f.data.names)


def shifts(objective: Objective, x: Tensor, part: Part = ALL) -> list[float]:
    """The intercepts that organisations add at x; what they know, and nobody else."""
    here = objective.organisations
    assert isinstance(here, Here)
    return [own.own_intercept(x, part, here.factors) for own in here.own if isinstance(own, OwnIntercept)]
