"""Choosing l1 by cross-validation within organisations or leaving one out, then fitting all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from proxfed.errors import one_of
from proxfed.fit.cross_validate import SOLVER, cross_validate
from proxfed.fit.solve import Fit
from proxfed.problems.linear.linear import Linear
from proxfed.sklearn.base import FederatedLinear, l1_and_l2
from proxfed.sklearn.classification import Classifier
from proxfed.sklearn.regression import LeastSquares
from proxfed.types import Problem, Regulariser


@dataclass(eq=False, repr=False)
class CrossValidated(FederatedLinear):
    """`l1_` is chosen from `l1s_`, by their mean losses `held_out_` with standard errors `standard_error_`."""

    _: KW_ONLY
    l1s: int | Sequence[float] = 50
    """Decreasing values; or their number, from the l1 that makes all weights zero down to `smallest` times it."""
    smallest: float = 1e-3
    folds: int | str = 5
    """The number of folds, each with rows of every organisation; or 'organisation': leave one out at a time."""
    rule: str = "one_se"
    """'one_se', the largest l1 within a standard error of the least loss, or 'best', the l1 with the least loss."""
    seed: int = 0
    """Seed of the folds."""

    def _checks(self) -> dict[str, Any]:
        return super()._checks() | {"ensure_min_samples": 2}

    def _penalty(self) -> Regulariser:
        return l1_and_l2(1.0, getattr(self, "l2", 0.0))

    def _solve(self, model: Problem[Linear]) -> Fit:
        one_of(self, "rule", ("best", "one_se"))
        solver = self._solver(SOLVER.tolerance)
        found = cross_validate(model, self.folds, self.l1s, self.smallest, solver, seed=self.seed)
        begin = found.choose(self.rule)
        self.l1_, self.l1s_ = float(begin.weight or 0), found.weights
        self.held_out_, self.standard_error_ = found.mean, found.standard_error
        chosen = model.with_h(model.h.with_weight(self.l1_)).starting_at(begin.x)
        fit = self._finish(lambda: self._solver(self.tol).after(found.objective, chosen, begin))
        return replace(fit, traffic=found.traffic + fit.traffic)


@dataclass(eq=False, repr=False)
class FederatedLassoCV(CrossValidated, LeastSquares):
    """`FederatedLasso` with l1 chosen by cross-validation."""


@dataclass(eq=False, repr=False)
class FederatedLogisticRegressionCV(CrossValidated, Classifier):
    """`FederatedLogisticRegression` with l1 chosen by cross-validation."""

    l2: float = 0.0
