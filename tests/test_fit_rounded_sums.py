"""Fits whose sums come from somewhere else than memory: rounded by masks, and with a price for every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from proxfed import Federated
from proxfed.fit.here import Here
from proxfed.fit.model import linear_model
from proxfed.fit.newton import SOME
from proxfed.fit.oracle import Question, Sums
from proxfed.fit.solve import Solver, objective_of
from proxfed.regularisers import L1


@dataclass(frozen=True, eq=False)
class Rounded(Here):
    """Organisations whose sums are multiples of `step`, as sums under masks are."""

    step: float = 0.0
    columns: list[int] = field(default_factory=list)
    """Of every Hessian that was asked for."""

    @property
    def rounding(self) -> float:
        return self.step / 2

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        def rounded(value):
            if value is None:
                return None
            return torch.round(torch.as_tensor(value, dtype=torch.float64) / self.step) * self.step

        self.columns.extend(len(q.x) if q.columns is None else len(q.columns) for q in questions if q.order > 1)
        return [
            Sums(float(rounded(s.value)), rounded(s.gradient), rounded(s.hessian), rounded(s.products))
            for s in super().ask(questions)
        ]


def rounded_objective(seed: int, n: int, p: int, step: float):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, p))
    labels = np.where(A[:, :3].sum(1) + rng.logistic(size=n) > 0, 1.0, -1.0)
    problem = linear_model(Federated(A, labels, [n // 2, n - n // 2]), "logistic", L1(0.02))
    made = objective_of(problem.f)
    here = made.organisations
    asked = Rounded(here.own, here.names, step=step)
    return problem, replace(made, organisations=asked), asked


@pytest.mark.parametrize("seed", range(8))
def test_sums_that_masks_round_do_not_stall_the_line_search(seed: int) -> None:
    """Close to the solution the objective falls by less than its rounding error; such steps are taken."""
    problem, objective, _ = rounded_objective(seed, 38, 12, 2.0**-37)
    fit = Solver(1e-10).one(objective, problem.h)
    assert fit.finished
    assert fit.traffic.rounds <= 15


def test_far_from_the_solution_few_columns_of_a_hessian_are_asked_for() -> None:
    """Nearly all gradients are above a small weight at first; the Hessian of these columns would be megabytes."""
    problem, objective, asked = rounded_objective(1, 60, 2000, 2.0**-40)
    null = Solver(1e-6).at_zero(objective, problem.h)
    assert int((null.gradient.abs() > 0.02).sum()) > 1000
    fit = Solver(1e-9).one(objective, problem.h)
    assert max(asked.columns) <= SOME + 2 * 60
    assert fit.traffic.rounds <= 30
    g = problem.f.gradient(fit.x)
    assert float((fit.x - problem.h.prox(fit.x - g, 1.0)).norm()) <= 1e-8
