"""Estimators with scikit-learn's interface; in `fit(X, y, groups=site)` groups name each row's organisation.

They fit the model of the pooled rows, by federated rounds: the mean loss plus l1 |w|_1 + (l2/2) |w|^2, with an
unpenalised intercept. All organisations' rows are in this process, so this is for studies and simulations: which model
a consortium would get, and in how many rounds and bytes.
"""

from __future__ import annotations

try:
    import sklearn  # noqa: F401
except ImportError as error:
    missing = "proxfed.sklearn needs scikit-learn, which is not installed: pip install 'proxfed[sklearn]'"
    raise ImportError(missing, name="sklearn") from error

from proxfed.sklearn.classification import FederatedLogisticRegression
from proxfed.sklearn.cross_validated import FederatedLassoCV, FederatedLogisticRegressionCV
from proxfed.sklearn.regression import (
    FederatedElasticNet,
    FederatedHuberRegressor,
    FederatedLasso,
    FederatedLinearRegression,
    FederatedPoissonRegressor,
    FederatedRidge,
)

__all__ = [
    "FederatedElasticNet",
    "FederatedHuberRegressor",
    "FederatedLasso",
    "FederatedLassoCV",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV",
    "FederatedPoissonRegressor",
    "FederatedRidge",
]
