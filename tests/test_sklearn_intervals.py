"""Intervals of scikit-learn estimators: of unpenalised ones they are statsmodels'."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from proxfed.sklearn import FederatedLasso, FederatedLinearRegression, FederatedLogisticRegression

P = 4


def rows(n: int = 300) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(2, 1, size=(n, P)), columns=["a", "b", "c", "d"])
    s = X.to_numpy() @ [0.8, -0.5, 0.0, 0.3] - 1
    return X, s + rng.normal(size=n), rng.integers(3, size=n)


def test_linear_regression() -> None:
    X, y, groups = rows()
    model = FederatedLinearRegression(l1=0.0).fit(X, y, groups=groups)
    found = model.inference(X, y, groups=groups)
    ref = sm.OLS(y, sm.add_constant(X, prepend=False)).fit()
    assert [line.name for line in found] == ["a", "b", "c", "d", "(intercept)"]
    np.testing.assert_allclose([line.error for line in found], ref.bse, rtol=1e-6)
    np.testing.assert_allclose([line.p for line in found], ref.pvalues, rtol=1e-5, atol=1e-12)
    assert found[-1].adjusted is None


def test_lasso_is_debiased_to_least_squares() -> None:
    X, y, groups = rows()
    found = FederatedLasso(0.3).fit(X, y, groups=groups).inference(X, y, groups=groups, errors="robust")
    ref = sm.OLS(y, sm.add_constant(X, prepend=False)).fit()
    np.testing.assert_allclose([line.estimate for line in found], ref.params, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose([line.error for line in found], ref.HC1_se, rtol=1e-8)


def test_logistic_with_site_intercepts_and_refusals() -> None:
    X, s, groups = rows(600)
    y = np.where(s + groups > 1, "ill", "well")
    model = FederatedLogisticRegression(l1=1e-3).fit(X, y, groups=groups)
    found = model.inference(X, y, groups=groups, site_intercepts=True)
    sign = 1 if model.classes_[1] == "ill" else -1
    ref = sm.Logit(sign * (y == "ill") + (sign < 0), np.column_stack([X, np.eye(3)[groups]])).fit(disp=0, tol=1e-12)
    np.testing.assert_allclose([line.estimate for line in found], ref.params[:P], rtol=0.02)
    np.testing.assert_allclose([line.error for line in found], ref.bse[:P], rtol=0.02)
    with pytest.raises(ValueError, match="no standard errors: 5 coefficients need 50"):
        FederatedLasso(0.1).fit(X[:30], s[:30]).inference(X[:30], s[:30])
