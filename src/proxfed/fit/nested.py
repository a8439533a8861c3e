"""A nested choice of the weight: held-out rows are judged by a model of whose weight they know nothing.

For every fold, the weight is chosen by cross-validation over the other folds, the model is fitted to their rows, and
the rows of the fold get its scores. What is judged is then the whole procedure, its choice included.

Reference: S. Varma, R. Simon, "Bias in Error Estimation When Using Cross-Validation for Model Selection", BMC
Bioinformatics, 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.cross_validate import cross_validate
from proxfed.fit.objective import Objective
from proxfed.fit.oracle import Traffic
from proxfed.fit.solve import Solver
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem


class Nested(NamedTuple):
    """What came of it."""

    scores: np.ndarray
    """(N, outputs) of every row, by the model that neither saw it nor was chosen with it."""
    weights: list[float]
    """(folds,) that were chosen."""
    traffic: Traffic


def nested(
    problem: Problem[Linear],
    rows: np.ndarray,
    weights: int | Sequence[float],
    smallest: float,
    rule: str,
    solver: Solver,
    asked: Callable[[Linear, int, np.ndarray], Objective],
    watch: Callable[[int, int], object] = lambda done, total: None,
    added: Callable[[Objective, Tensor], list[float]] | None = None,
) -> Nested:
    """`rows` is (folds, N), which rows a fold holds out; `added` gives the intercepts that organisations add to their
    scores, if they do; the other arguments are those of `cross_validate`."""
    require(len(rows) > 2, f"nested = true: the choice without a fold needs two others, so 3 folds, not {len(rows)}")
    fold, data = rows.argmax(0), problem.f.data
    owner = np.repeat(np.arange(len(data)), data.sizes)
    out = np.zeros((len(fold), problem.f.blocks[0].shape[0]))
    chosen: list[float] = []
    traffic = Traffic()
    for k, held in enumerate(rows):
        watch(k, len(rows))
        train = replace(problem, f=problem.f.over_rows(data.keep(np.flatnonzero(~held))))
        inner = np.unique(fold[~held], return_inverse=True)[1]
        cv = cross_validate(train, inner, weights, smallest, solver, solver.tolerance, asked=asked)
        fit = cv.choose(rule)
        out[held] = np.asarray(problem.f.scores(fit.x, data.features[held])).reshape(int(held.sum()), -1)
        if added is not None:
            assert cv.objective is not None
            own = np.full(len(data), np.mean(of_train := added(cv.objective, fit.x)))
            own[np.unique(owner[~held])] = of_train
            out[held] += own[owner[held], None]
        chosen.append(float(fit.weight or 0))
        traffic = traffic + cv.traffic
    return Nested(out, chosen, traffic)
