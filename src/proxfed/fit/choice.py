"""The weight of the penalty, chosen by cross-validation or given, and the final fit with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfed.errors import require
from proxfed.fit.baselines import Held
from proxfed.fit.cross_validate import CrossValidation, cross_validate
from proxfed.fit.nested import Nested, nested
from proxfed.fit.objective import Objective
from proxfed.fit.oracle import Part
from proxfed.fit.own_intercepts import profiled, shifts
from proxfed.fit.settings import Settings, solver_of
from proxfed.fit.solve import Fit, Solver, objective_of
from proxfed.fit.steps import Watch
from proxfed.problems.linear.linear import Linear
from proxfed.tables.design import Design
from proxfed.types import Problem


def cross_validated(
    problem: Problem[Linear],
    given: float | None,
    asked: Settings,
    smallest: float,
    solver: Solver,
    watch: Watch,
    units: np.ndarray | None,
) -> CrossValidation:
    """Cross-validation along a path of weights, or with the given weight alone, only to judge the model."""
    return cross_validate(
        problem,
        "organisation" if asked.cv == "organisation" else asked.folds,
        asked.weights if given is None else [given],
        smallest,
        solver,
        asked.cv_tolerance,
        asked.seed,
        lambda done, total: watch("cross-validation", done, total),
        profiled if asked.site_intercepts else objective_of,
        units,
    )


def nested_choice(
    problem: Problem[Linear],
    cv: CrossValidation | None,
    held: Held,
    asked: Settings,
    smallest: float,
    solver: Solver,
    watch: Watch,
) -> Nested:
    """Nested cross-validation: for each fold, the weight is chosen again without the rows of that fold."""
    unused = "nested = true: the schema has a test part, on which the choice of the weight knows nothing already"
    require(cv is not None and held.rows is not None, unused)
    assert held.rows is not None
    return nested(
        problem,
        held.rows,
        asked.weights,
        smallest,
        asked.rule,
        solver,
        profiled if asked.site_intercepts else objective_of,
        lambda done, total: watch("nested choice", done, total),
        shifts if asked.site_intercepts else None,
    )


def final_fit(
    problem: Problem[Linear], given: float | None, cv: CrossValidation | None, asked: Settings, watch: Watch
) -> tuple[Problem[Linear], Fit, Objective | None]:
    """(the problem with the final weight, its fit, its objective), warm-started at the fit of cross-validation."""
    begin = None if cv is None else cv.choose(asked.rule)
    solver = solver_of(asked, asked.tolerance, watch=lambda rounds, residual: watch("fitting the model", rounds, 0))
    if begin is None and asked.site_intercepts:
        objective = profiled(problem.f)
        return problem, replace(solver.one(objective, problem.h), weight=given), objective
    if begin is None:
        return problem, replace(solver.fit(problem), weight=given), None
    chosen = problem.with_h(problem.h.with_weight(float(begin.weight or 0)))
    assert cv is not None
    return chosen, solver.after(cv.objective, chosen, begin), cv.objective


def held_out_intercepts(
    objective: Objective, final: Fit, cv: CrossValidation | None, place: int, held: Held, made: Design
) -> np.ndarray:
    """(N, 1) each held-out row gets the intercept of its organisation, estimated without the fold of that row."""
    if cv is None:  # a test part
        own = dict(zip(made.organisations, shifts(objective, final.x), strict=True))
        mean = float(np.mean([*own.values()]))
        return np.repeat([own.get(name, mean) for name in held.names], held.sizes)[:, None]
    added = np.zeros(len(held.labels))
    for k, (rows, x) in enumerate(zip(cv.rows, cv.models[:, place], strict=True)):
        added[rows] = np.repeat(shifts(objective, x, Part(k)), held.sizes)[rows]
    return added[:, None]
