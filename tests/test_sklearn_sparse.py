"""Estimators of a sparse X are those of the same X, dense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from proxfed.sklearn import FederatedLasso, FederatedLogisticRegression

RNG = np.random.default_rng(0)
X = scipy.sparse.random(80, 12, 0.3, random_state=0, format="csr")
Y = X @ RNG.normal(size=12) + 0.1 * RNG.normal(size=80)
GROUPS = np.arange(80) % 3


@pytest.mark.parametrize(("make", "y"), [(FederatedLasso, Y), (FederatedLogisticRegression, Y > 0)])
@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_is_dense(make, y, form) -> None:
    one, two = make(l1=0.01).fit(form(X), y, groups=GROUPS), make(l1=0.01).fit(X.toarray(), y, groups=GROUPS)
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(one.intercept_, two.intercept_, rtol=1e-5, atol=1e-7)
    assert np.array_equal(one.predict(form(X)) > 0, two.predict(X.toarray()) > 0)
