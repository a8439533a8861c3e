"""How much penalty, by cross-validation: held-out losses along a path, by sums over rows alone.

A fold holds out some rows of every organisation, or all rows of one. The paths of all folds are fitted to the other
rows side by side; then their models travel once to the organisations, and the losses of the rows that a fold holds out
are added up. An organisation draws its own folds, keyed, with the same share of every class (of events, in survival).

A survival model's loss on rows is the partial likelihood with them less that without them (Verweij and Van Houwelingen,
"Cross-Validation in Survival Analysis", Statistics in Medicine, 1993): a few rows alone make poor risk sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import require, whole
from proxfed.fit.folds import drawn_folds, strata_of
from proxfed.fit.objective import Objective
from proxfed.fit.oracle import Part, Question, Traffic
from proxfed.fit.solve import Fit, Solver, objective_of
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem, Regulariser

ORGANISATION = "organisation"

SOLVER = Solver(1e-8)
"""A path goes down to weights where the last digits cost most of the rounds."""


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
    """(folds, N) which rows a fold holds out, where the tables lie here."""
    models: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    """(folds, k, d) fitted to the other rows."""
    objective: Objective | None = None
    """Of whom all this was asked; None: with a compressed uplink."""

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
    folds: int | str | np.ndarray = 5,
    weights: int | Sequence[float] = 50,
    smallest: float = 1e-3,
    solver: Solver = SOLVER,
    fold_tolerance: float = 1e-5,
    seed: int = 0,
    watch: Callable[[int, int], object] = lambda done, total: None,
    asked: Callable[[Linear, int, np.ndarray], Objective] = objective_of,
    units: np.ndarray | None = None,
) -> CrossValidation:
    """Held-out losses for every weight of the problem's penalty.

    folds            how many, each with rows of every organisation; or 'organisation': one is left out at a time; or
                     the fold of each row
    weights          decreasing; or how many, from where the solution is zero down to `smallest` of it
    solver           of the models on all rows
    fold_tolerance   its tolerance on the folds, whose losses need not be exact to be compared
    seed             of the folds
    watch            called with the steps that are done, and how many there are
    asked            makes the objective of f, the number of folds, and the fold of each row
    units            (N,) rows with the same word are held out together
    """
    linear = isinstance(getattr(problem, "f", None), Linear)
    require(linear, f"problem = {problem!s:.80}: only linear models are cross-validated")
    fold = folds if isinstance(folds, np.ndarray) else fold_of_rows(problem.f, folds, seed, units)
    count = int(fold.max()) + 1
    rows = np.array([fold == k for k in range(count)])
    if solver.compressor is not None:
        return replace(_compressed(problem, fold, weights, smallest, solver, fold_tolerance, watch), rows=rows)
    objective = asked(problem.f, count, fold)
    check_folds(objective, count if isinstance(folds, np.ndarray) else folds)
    return replace(choose(objective, problem.h, weights, smallest, solver, fold_tolerance, watch), rows=rows)


def choose(
    objective: Objective,
    h: Regulariser,
    weights: int | Sequence[float] = 50,
    smallest: float = 1e-3,
    solver: Solver = SOLVER,
    fold_tolerance: float = 1e-5,
    watch: Callable[[int, int], object] = lambda done, total: None,
) -> CrossValidation:
    """The same of an objective, whoever answers, by the folds that the organisations have fixed."""
    fits = solver.along(objective, h, weights, smallest)
    watch(1, 3)
    paths = solver.on_folds(objective, fits, fold_tolerance)
    watch(2, 3)
    asked = [Question(fit.x, Part(k, held_out=True), 0) for k, path in enumerate(paths) for fit in path]
    held = torch.tensor([sums.value for sums in objective.organisations.ask(asked)]).double().view(len(paths), -1)
    sums = torch.tensor([objective.weight(Part(k, held_out=True)) for k in range(len(paths))]).double()
    watch(3, 3)
    return CrossValidation(
        np.array([float(fit.weight or 0) for fit in fits]),
        (held / sums[:, None]).numpy(),
        (sums / sums.sum()).numpy(),
        fits,
        objective.organisations.traffic,
        models=torch.stack([torch.stack([fit.x for fit in path]) for path in paths]),
        objective=objective,
    )


def _compressed(
    problem: Problem[Linear],
    fold: np.ndarray,
    weights: int | Sequence[float],
    smallest: float,
    solver: Solver,
    fold_tolerance: float,
    watch: Callable[[int, int], object],
) -> CrossValidation:
    """With a compressed uplink: the paths one after the other, each in rounds of its own."""
    count = int(fold.max()) + 1
    objective = objective_of(problem.f, count, fold)
    fits = solver.path(problem, weights, smallest)
    chosen = [float(fit.weight or 0) for fit in fits]
    watch(1, count + 1)
    total = sum((fit.traffic for fit in fits), start=Traffic())
    models = []
    for k in range(count):
        train = replace(problem, f=problem.f.over_rows(problem.f.data.keep(np.flatnonzero(fold != k))))
        path = replace(solver, tolerance=fold_tolerance).path(train, chosen)
        total = sum((fit.traffic for fit in path), start=total)
        models.append(torch.stack([fit.x for fit in path]))
        watch(k + 2, count + 1)
    parts = [Part(k, held_out=True) for k in range(count)]
    asked = [Question(x, part, 0) for part, path in zip(parts, models, strict=True) for x in path]
    held = np.array([sums.value for sums in objective.organisations.ask(asked)]).reshape(count, -1)
    sums = np.array([objective.weight(part) for part in parts])
    return CrossValidation(
        np.array(chosen),
        held / sums[:, None],
        sums / sums.sum(),
        fits,
        total + objective.organisations.traffic,
        models=torch.stack(models),
    )


def fold_of_rows(f: Linear, folds: int | str, seed: int, units: np.ndarray | None = None) -> np.ndarray:
    """(N,) the fold of each row: as its organisation draws it, or the organisation itself; none of them is empty."""
    data = f.data
    owner = np.repeat(np.arange(len(data)), data.sizes)
    if folds == ORGANISATION:
        require(len(data) > 1, f"folds = {folds!r} needs at least two organisations, and there is one")
        return owner
    fits = whole(folds) and 2 <= int(folds) <= len(owner)
    require(fits, f"folds = {folds!r} must be {ORGANISATION!r}, or a whole number from 2 to the {len(owner)} rows")
    strata = strata_of(data.labels, f.criterion, data.classes)
    fold = np.empty(len(owner), np.int64)
    for i, (a, b) in enumerate(zip(data.offsets, data.offsets[1:], strict=False)):
        fold[a:b] = drawn_folds(strata[a:b], int(folds), seed, i, None if units is None else units[a:b])
    numbers, fold = np.unique(fold, return_inverse=True)
    require(len(numbers) > 1, f"folds = {folds!r}: all rows are held out together, as [folds] says; there is no fit")
    return fold


def check_folds(objective: Objective, folds: int | str) -> None:
    """Without any of them there must be rows of every class, or events."""
    for k in range(objective.folds):
        separate = objective.loss.separate
        why = "has all samples of a class" if separate else "has all events"
        require(objective.complete(Part(k)), f"folds = {folds!r}: fold {k} {why}, so without it there is no fit")
