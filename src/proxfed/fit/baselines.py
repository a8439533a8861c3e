"""What the federated model is compared with: the model of each organisation alone, and that of the pooled rows.

Alone, an organisation chooses its own weight by its own cross-validation. The pooled model is a simulation: nobody but
a program that has all tables at hand can fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import ProxfedError
from proxfed.fit.cross_validate import CrossValidation, check_folds, choose, cross_validate
from proxfed.fit.here import Here
from proxfed.fit.objective import Objective, Shape
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Solver
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem, Regulariser


class Held(NamedTuple):
    """Rows that a model was not fitted to, sorted by organisation."""

    features: np.ndarray
    labels: np.ndarray
    sizes: list[int]
    names: list[str]
    rows: np.ndarray | None
    """(folds, N) which of the rows that are fitted to a fold holds out; None: these rows are a test part."""
    about: str
    units: np.ndarray | None = None
    """(N,) words: rows with the same one depend on each other."""

    @property
    def parts(self) -> dict[str, slice]:
        """The rows of each organisation."""
        ends = np.cumsum(self.sizes)
        return {name: slice(end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True)}


class Alone(NamedTuple):
    """Scores of an organisation's held-out rows by its own model."""

    scores: dict[str, np.ndarray]
    nonzeros: dict[str, int]
    notes: list[str]


def alone(
    problem: Problem[Linear], names: Sequence[str], held: Held, settings: Settings, smallest: float,
    watch: Callable[[], object], units: np.ndarray | None = None,
) -> Alone:  # fmt: skip
    """A model for every organisation that can have one."""
    found = Alone({}, {}, [])
    solver = Solver(settings.cv_tolerance, rounds=settings.rounds)
    for name, a, b in zip(names, problem.f.data.offsets, problem.f.data.offsets[1:], strict=False):
        watch()
        if name not in held.parts:
            continue
        try:
            own = replace(problem, f=problem.f.over_rows(problem.f.data.keep(np.arange(a, b))))
            if reason := _too_little(own, settings.folds):
                found.notes.append(f"{name} alone has no model: {reason}")
                continue
            cv = cross_validate(
                own, settings.folds, settings.weights, smallest, solver, solver.tolerance, settings.seed,
                units=None if units is None else units[a:b],
            )  # fmt: skip
        except ProxfedError as e:
            found.notes.append(f"{name} alone has no model: {e}")
            continue
        place = cv.place(settings.rule)
        x = cv.fits[place].x
        rows = held.features[held.parts[name]]
        found.scores[name] = cv.scores(own, place) if held.rows is not None else scores(own, x, rows)
        found.nonzeros[name] = int((x[: own.f.blocks[0].stop] != 0).sum())
    return found


def alone_of(here: Here, h: Regulariser, settings: Settings) -> CrossValidation:
    """The model of one organisation, which has divided its rows into folds."""
    loss, own = here.own[0].loss, here.own[0]
    p = own.width
    shape = Shape(own.outputs, p, own.intercept and not here.own_intercepts)
    objective = Objective.of(here, loss, shape)
    check_folds(objective, here.folds)
    weights = 0.0 if settings.penalty in ("zero", {"name": "zero"}) else settings.weight
    smallest = settings.smallest or (1e-2 if p > len(own.labels) else 1e-3)
    solver = Solver(settings.cv_tolerance, rounds=settings.rounds)
    given = settings.weights if weights is None else [weights]
    return choose(objective, h, given, smallest, solver, settings.cv_tolerance)


def _too_little(own: Problem[Linear], folds: int) -> str:
    """Why its rows cannot be divided into folds with all classes, or with events."""
    labels = own.f.data.labels
    if not own.f.criterion.separate:
        events = int((~np.signbit(labels)).sum())
        return "" if events >= folds else f"fewer than {folds} events"
    if not has_classes(own.f.data):
        return "" if len(labels) >= folds else f"fewer than {folds} rows"
    counts = np.unique(labels, return_counts=True)[1]
    if len(counts) < 2:
        return "all its rows are of one class"
    return "" if counts.min() >= folds else f"fewer than {folds} rows of a class"


def has_classes(data: Federated) -> bool:
    """Labels are classes, or -1 and +1, and not numbers."""
    return data.classes is not None or bool(np.isin(data.labels, (-1, 1)).all())


def scores(problem: Problem[Linear], x: Tensor, rows: np.ndarray) -> np.ndarray:
    """(N, outputs)"""
    return np.asarray(problem.f.scores(x, rows)).reshape(len(rows), -1)


class Pooled(NamedTuple):
    """The model of all rows in one place."""

    x: Tensor
    scores: np.ndarray
    """Of the held-out rows."""


def pooled(problem: Problem[Linear], held: Held, watch: Callable[[], object]) -> Pooled:
    """With the weight of the federated model."""
    watch()
    if problem.f.criterion.separate:  # the rows of all as those of one; of survival, every organisation is a stratum
        data = problem.f.data
        problem = replace(problem, f=problem.f.over_rows(replace(data, sizes=np.array([len(data.labels)]))))
    x = Solver().fit(problem).x
    if held.rows is None:
        return Pooled(x, scores(problem, x, held.features))
    out = np.zeros((len(held.labels), problem.f.blocks[0].shape[0]))
    for rows in held.rows:
        watch()
        train = replace(problem, f=problem.f.over_rows(problem.f.data.keep(np.flatnonzero(~rows))))
        out[rows] = scores(train, Solver(1e-8).fit(train).x, held.features[rows])
    return Pooled(x, out)
