"""scikit-learn's own checks of estimators."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from proxfed.sklearn import (
    FederatedElasticNet,
    FederatedHuberRegressor,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
    FederatedPoissonRegressor,
    FederatedRidge,
)

ignored = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("ignore:A column-vector y:sklearn.exceptions.DataConversionWarning"),
]
pytestmark = ignored


@parametrize_with_checks([FederatedLogisticRegression(), FederatedPoissonRegressor()])
def test_checks(estimator, check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        FederatedElasticNet(),
        FederatedHuberRegressor(),
        FederatedLasso(),
        FederatedLinearRegression(),
        FederatedRidge(),
    ]
)
def test_checks_of_the_others(estimator, check) -> None:
    check(estimator)


def folds_are_of_rows(estimator) -> dict[str, str]:
    """scikit-learn asks that a row of weight 2 is as good as two rows; but these are drawn into folds one by one."""
    return {"check_sample_weight_equivalence_on_dense_data": "a row that is there twice may be in two folds"}


@pytest.mark.slow
@parametrize_with_checks(
    [
        FederatedLassoCV(l1s=4, folds=2, smallest=0.1),
        FederatedLogisticRegressionCV(l1s=4, folds=2, smallest=0.1),
    ],
    expected_failed_checks=folds_are_of_rows,
)
def test_checks_of_the_cross_validated(estimator, check) -> None:
    check(estimator)
