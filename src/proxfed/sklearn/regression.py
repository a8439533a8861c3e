"""Regression of numbers and counts: penalised least squares, Huber's loss, Poisson regression."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from proxfed.problems.losses import Huber, Loss, Poisson, Squared
from proxfed.sklearn.base import FederatedLinear, Penalised, l1_and_l2
from proxfed.types import Regulariser


@dataclass(eq=False, repr=False)
class LeastSquares(RegressorMixin, FederatedLinear):
    """|X w + b - y|^2 / (2 m), and a penalty."""

    def _loss(self) -> Loss:
        return Squared()

    def predict(self, X: Any) -> np.ndarray:
        """(m,)."""
        return self._scores(X)


@dataclass(eq=False, repr=False)
class FederatedLasso(LeastSquares):
    """Least squares with l1 |w|_1; scikit-learn's `Lasso(alpha=l1)`."""

    l1: float = 0.01

    def _penalty(self) -> Regulariser:
        return l1_and_l2(self.l1, 0.0)


@dataclass(eq=False, repr=False)
class FederatedRidge(LeastSquares):
    """Least squares with (l2/2) |w|^2; scikit-learn's `Ridge(alpha=l2 * m)` for m rows."""

    l2: float = 0.01

    def _penalty(self) -> Regulariser:
        return l1_and_l2(0.0, self.l2)


@dataclass(eq=False, repr=False)
class FederatedElasticNet(LeastSquares):
    """Least squares with l1 |w|_1 + (l2/2) |w|^2; scikit-learn's `ElasticNet(alpha=l1 + l2, l1_ratio=l1/(l1 + l2))`."""

    l1: float = 0.01
    l2: float = 0.01

    def _penalty(self) -> Regulariser:
        return l1_and_l2(self.l1, self.l2)


@dataclass(eq=False, repr=False)
class FederatedLinearRegression(LeastSquares, Penalised):
    """Least squares with any penalty: groups, MCP, a ball. Without one, scikit-learn's `LinearRegression`."""

    l1: float = 0.0


@dataclass(eq=False, repr=False)
class FederatedHuberRegressor(RegressorMixin, Penalised):
    """Least squares robust to outliers. Their threshold is given, not estimated as in `HuberRegressor`."""

    l1: float = 0.0
    l2: float = 0.01
    _: KW_ONLY
    delta: float = 1.35
    """The residual from which on the loss is linear, in the unit of y."""

    def _loss(self) -> Loss:
        return Huber(float(self.delta))

    def predict(self, X: Any) -> np.ndarray:
        """(m,)."""
        return self._scores(X)


@dataclass(eq=False, repr=False)
class FederatedPoissonRegressor(RegressorMixin, Penalised):
    """Counts with mean exp(X w + b); scikit-learn's `PoissonRegressor(alpha=l2)`, with an optional l1 in addition."""

    l1: float = 0.0
    l2: float = 0.01

    def _loss(self) -> Loss:
        return Poisson()

    def predict(self, X: Any) -> np.ndarray:
        """(m,) means of the counts."""
        return np.exp(self._scores(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The fraction of deviance explained, as in scikit-learn."""
        return d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
