"""How much penalty, by cross-validation: held-out losses along a path, by federated rounds alone.

A fold holds out some rows of every organisation, or all rows of one. The path of every fold is fitted to the other
rows; then its models travel once to the organisations that hold out rows, and each sends its loss, a number for every
model. An organisation draws its own folds, keyed, with the same share of every class (of events, in survival).

A survival model's loss on rows is the partial likelihood with them less that without them (Verweij and Van Houwelingen,
"Cross-Validation in Survival Analysis", Statistics in Medicine, 1993): a few rows alone make poor risk sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.data.federated import Federated
from proxfed.errors import InputError, require, whole
from proxfed.fit.solve import Fit, Solver, Traffic
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem

ORGANISATION = "organisation"

SOLVER = Solver(1e-8)
"""A path goes down to weights where the last digits cost most of the rounds."""


class Fold(NamedTuple):
    """What is fitted to, and what is held out."""

    train: Problem[Linear]
    held_out: np.ndarray
    """(N,) which rows."""


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The curve, and the models on all rows that it chooses from."""

    weights: np.ndarray
    """(k,) of the penalty, decreasing."""
    held_out: np.ndarray
    """(folds, k) the loss on the rows that a fold holds out, without penalty."""
    fold_weights: np.ndarray
    """(folds,) what these rows weigh, summing to 1."""
    fits: list[Fit]
    """(k,) on all rows."""
    traffic: Traffic
    """Of all paths and all evaluations together."""
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))
    """(folds, N) which rows a fold holds out."""
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    """(folds, k, d) fitted to the other rows."""

    @property
    def mean(self) -> np.ndarray:
        """(k,) over the folds."""
        return self.fold_weights @ self.held_out

    @property
    def standard_error(self) -> np.ndarray:
        """(k,) of this mean."""
        return np.sqrt(self.fold_weights @ np.square(self.held_out - self.mean) / (len(self.held_out) - 1))

    @property
    def best(self) -> int:
        """The weight with the least loss, as a place in `weights`."""
        return int(self.mean.argmin())

    @property
    def one_se(self) -> int:
        """The largest weight whose loss is within one standard error of the least: the simplest model as good."""
        return int(np.flatnonzero(self.mean <= self.mean[self.best] + self.standard_error[self.best])[0])

    def place(self, rule: str) -> int:
        """That of the weight that a rule chooses: 'best' or 'one_se'."""
        places = {"best": self.best, "one_se": self.one_se}
        require(rule in places, f"rule = {rule!r} is not one of {', '.join(map(repr, places))}")
        return places[rule]

    def choose(self, rule: str = "best") -> Fit:
        """The model on all rows that a rule chooses."""
        return self.fits[self.place(rule)]

    def scores(self, problem: Problem[Linear], place: int) -> np.ndarray:
        """(N, outputs) of every row, by the model with this weight of the fold that holds it out."""
        out = np.zeros((len(problem.f.data.labels), problem.f.blocks[0].shape[0]))
        for held, x in zip(self.rows, self.models[:, place], strict=True):
            out[held] = np.asarray(problem.f.scores(x, problem.f.data.features[held]))
        return out


def cross_validate(
    problem: Problem[Linear],
    folds: int | str = 5,
    weights: int | Sequence[float] = 50,
    smallest: float = 1e-3,
    solver: Solver = SOLVER,
    fold_tolerance: float = 1e-5,
    seed: int = 0,
    watch: Callable[[int, int], object] = lambda done, total: None,
) -> CrossValidation:
    """Held-out losses for every weight of the problem's penalty.

    folds            how many, each with rows of every organisation; or 'organisation': one is left out at a time
    weights          decreasing; or how many, from where the solution is zero down to `smallest` of it
    solver           of the models on all rows
    fold_tolerance   its tolerance on the folds, whose losses need not be exact to be compared
    seed             of the folds
    watch            called with the paths that are done, and how many there are
    """
    require(isinstance(problem.f, Linear), f"problem = {problem!s:.80}: only linear models are cross-validated")
    on_folds = replace(solver, tolerance=fold_tolerance)
    parts = list(_folds(problem, folds, seed))
    fits = solver.path(problem, weights, smallest)
    total = sum((fit.traffic for fit in fits), start=Traffic())
    chosen = [float(fit.weight or 0) for fit in fits]
    watch(1, len(parts) + 1)
    losses, sums, models = [], [], []
    for k, fold in enumerate(parts):
        path = on_folds.path(fold.train, chosen)
        loss, weight, traffic = _evaluate(problem, fold, path)
        total = sum((fit.traffic for fit in path), start=total + traffic)
        losses.append(loss)
        models.append(torch.stack([fit.x for fit in path]))
        sums.append(weight)
        watch(k + 2, len(parts) + 1)
    return CrossValidation(
        np.array(chosen),
        np.array(losses),
        np.array(sums) / np.sum(sums),
        fits,
        total,
        np.array([fold.held_out for fold in parts]),
        torch.stack(models),
    )


def _folds(problem: Problem[Linear], folds: int | str, seed: int) -> Iterator[Fold]:
    data = problem.f.data
    owner, strata = np.repeat(np.arange(len(data)), data.sizes), _strata(problem)
    if folds == ORGANISATION:
        require(len(data) > 1, f"folds = {folds!r} needs at least two organisations, and there is one")
        which, count = owner, len(data)
    else:
        fits = whole(folds) and 2 <= int(folds) <= len(owner)
        require(fits, f"folds = {folds!r} must be {ORGANISATION!r}, or a whole number from 2 to the {len(owner)} rows")
        count = int(folds)
        which = _drawn(data, strata, count, seed)
    for k in range(count):
        held_out = which == k
        if held_out.any():
            fits = not problem.f.criterion.separate or len(np.unique(strata[~held_out])) == len(np.unique(strata))
            require(fits, f"folds = {folds!r}: fold {k} has all samples of a class, so without it there is no fit")
            try:
                yield Fold(replace(problem, f=problem.f.over_rows(data.keep(np.flatnonzero(~held_out)))), held_out)
            except InputError as e:
                raise InputError(f"folds = {folds!r}: without fold {k}, {e}") from e


def _strata(problem: Problem[Linear]) -> np.ndarray:
    """(N,) classes, or whether an event was seen, which every fold has its share of; of numbers, one for all."""
    labels = problem.f.data.labels
    if not problem.f.criterion.separate:
        return np.signbit(np.asarray(labels, np.float64)).astype(np.int64)
    return labels.astype(np.int64) if has_classes(problem.f.data) else np.zeros(len(labels), np.int64)


def has_classes(data: Federated) -> bool:
    """Labels are classes, or -1 and +1, and not numbers."""
    return data.classes is not None or bool(np.isin(data.labels, (-1, 1)).all())


def _drawn(data: Federated, strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(N,): the fold of each row. Rows of a stratum, in random order, go round the folds, from a random one on."""
    which = np.empty(len(strata), np.int64)
    key = keyed_random.keys(seed, "folds", range(len(data)), 0)
    for i, (a, b) in enumerate(zip(data.offsets, data.offsets[1:], strict=False)):
        words = keyed_random.words(key[i : i + 1], b - a + 1)[0]
        which[a + np.lexsort((words[1:], strata[a:b]))] = (np.arange(b - a) + int(words[0] % count)) % count
    return which


def _evaluate(problem: Problem[Linear], fold: Fold, path: list[Fit]) -> tuple[np.ndarray, float, Traffic]:
    """(loss of every model on the fold's rows, what these weigh, what the evaluation costs)."""
    rows = np.flatnonzero(fold.held_out)
    held = problem.f.data.keep(rows)
    n, k, size = len(held), len(path), path[0].x.itemsize
    traffic = Traffic(1, n * (k + 1) * size, n * k * problem.f.d * size)
    if problem.f.criterion.separate:
        losses, weight = _total(problem, held, path)
        return losses / weight, weight, traffic
    every, weight = _total(problem, problem.f.data, path)
    without, less = _total(problem, fold.train.f.data, path)
    return (every - without) / (weight - less), weight - less, traffic


def _total(problem: Problem[Linear], data: Federated, path: list[Fit]) -> tuple[np.ndarray, float]:
    """(sum of the weighted losses of these rows for every model, sum of the weights)."""
    p = replace(problem.f, data=data, l2=0.0, weighting="size")
    f, weight = p.local(0, range(p.n)), float(p.weight_sums.sum())
    return np.array([weight * float(p.weights @ f.value(fit.x)) for fit in path]), weight
