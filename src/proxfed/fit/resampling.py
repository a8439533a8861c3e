"""A model fitted again to rows that are drawn anew: how much better it looks than it is, and which features stay in.

optimism     rows of every organisation are drawn with replacement; the model of them is judged on them and on all rows.
             What it loses, in the mean, is taken off the measure of the model on its own rows (F. E. Harrell,
             "Regression Modeling Strategies", 2nd edition, Springer, 2015, section 5.3.5).
stability    half of the rows of every organisation are drawn; how often is a coefficient not zero? (N. Meinshausen,
             P. Buehlmann, "Stability Selection", Journal of the Royal Statistical Society B, 2010)

The weight of the penalty is that of the model: it is not chosen again, as rows that are drawn twice would be held out
from themselves. Rows of a unit are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from proxfed import keyed_random
from proxfed.errors import ProxfedError, require
from proxfed.fit.judge import ALL, judge
from proxfed.fit.objective import Objective
from proxfed.fit.solve import Solver
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem

FITS = 0.8
"""The part of the draws that must have a fit; with fewer, what they say is not about this model."""


class Optimism(NamedTuple):
    """Of a measure over all organisations."""

    apparent: float
    """Of the model on the rows that it was fitted to."""
    optimism: float
    """By how much this is better, in the mean over the draws, than on rows that were not drawn for the fit."""

    @property
    def corrected(self) -> float:
        """What is left."""
        return self.apparent - self.optimism


class Stability(NamedTuple):
    """How often coefficients were not zero."""

    share: np.ndarray
    """(outputs, features)"""
    chosen: float
    """How many of them a half chooses, in the mean."""
    draws: int

    def wrong_at_most(self, share: float) -> float:
        """Of the coefficients that are chosen in at least this share of the halves, so many are wrong at most, in
        expectation, if those that are really zero are exchangeable."""
        require(0.5 < share <= 1, f"share = {share!r} must be above 0.5")
        return self.chosen**2 / ((2 * share - 1) * self.share.size)


Refit = Callable[[Problem[Linear], Tensor | None], Tensor]
"""(the problem of other rows, where to begin) -> x"""

Scores = Callable[[Problem[Linear], Tensor], np.ndarray]
"""(a problem, the x of rows that were drawn) -> (N, outputs) scores of its rows."""


def refit_with(solver: Solver, asked: Callable[[Linear], Objective]) -> Refit:
    """By the solver of the paths."""

    def refit(problem: Problem[Linear], x: Tensor | None) -> Tensor:
        return solver.one(asked(problem.f), problem.h, x).x

    return refit


def optimism(
    problem: Problem[Linear], x: Tensor, refit: Refit, scores: Scores, draws: int, seed: int,
    units: np.ndarray | None = None,
) -> dict[str, Optimism]:  # fmt: skip
    """By measure, over all organisations."""
    data, loss = problem.f.data, problem.f.criterion

    def measured(of: Problem[Linear], model: Tensor) -> dict[str, float]:
        rows = of.f.data
        judged = judge(loss, scores(of, model), rows.labels, rows.sizes.tolist(), repetitions=0)
        return {name: m.value for name, m in judged[ALL].items()}

    apparent = measured(problem, x)
    lost: dict[str, list[float]] = {name: [] for name in apparent}
    rows = _drawn(data.sizes, draws, seed, "optimism", units, twice=True)
    for again, found in _fitted(problem, x, refit, rows, draws):
        own, other = measured(again, found), measured(problem, found)
        for name in apparent:
            lost[name].append(own[name] - other[name])
    return {name: Optimism(apparent[name], float(np.nanmean(lost[name]))) for name in apparent}


def stability(
    problem: Problem[Linear], x: Tensor, refit: Refit, draws: int, seed: int, units: np.ndarray | None = None
) -> Stability:
    """Of every coefficient."""
    q, p = problem.f.blocks[0].shape
    rows = _drawn(problem.f.data.sizes, draws, seed, "stability", units, twice=False)
    there = [(found[: q * p].numpy() != 0).reshape(q, p) for _, found in _fitted(problem, x, refit, rows, draws)]
    share = np.mean(there, 0)
    return Stability(share, float(share.sum()), len(there))


def _fitted(
    problem: Problem[Linear], x: Tensor, refit: Refit, rows: Iterator[np.ndarray], draws: int
) -> list[tuple[Problem[Linear], Tensor]]:
    """The problems of the rows that were drawn, each with its fit; without those that have none."""
    found, reason = [], ""
    for drawn in rows:
        again = replace(problem, f=problem.f.over_rows(problem.f.data.keep(drawn)))
        try:
            found.append((again, refit(again, x)))
        except ProxfedError as e:
            reason = str(e)
    require(len(found) >= FITS * draws, f"{draws - len(found)} of {draws} draws of the rows have no fit: {reason}")
    return found


def _drawn(
    sizes: Sequence[int] | np.ndarray, draws: int, seed: int, what: str, units: np.ndarray | None, twice: bool
) -> Iterator[np.ndarray]:
    """Places of rows, ascending, for each draw: of every organisation as many as it has, or half of them."""
    ends = np.cumsum(sizes)
    for draw in range(draws):
        keys = keyed_random.keys(seed, what, range(len(ends)), draw)
        parts = []
        for i, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            own = np.arange(end - size, end)
            names, which = (own, np.arange(size)) if units is None else np.unique(units[own], return_inverse=True)
            n = len(names)
            if twice:
                times = np.bincount(keyed_random.integers(keys[i : i + 1], n, n)[0], minlength=n)
            else:
                times = np.zeros(n, np.int64)
                times[np.argsort(keyed_random.words(keys[i : i + 1], n)[0], kind="stable")[: (n + 1) // 2]] = 1
            parts.append(np.repeat(own, times[which]))
        yield np.concatenate(parts)
