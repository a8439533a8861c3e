"""The estimators are scikit-learn's, with rows in several organisations: coefficients, weights, classes, pipelines."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

from proxfed.compressors import TopK
from proxfed.errors import InputError
from proxfed.regularisers import L1, GroupLasso
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

from support import pooled_solvers as pooled


@cache
def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return 3 + X / X.std(0), y / y.std(), sites(len(y))


@cache
def two_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[::2, :12], y[::2]
    return StandardScaler().fit_transform(X), np.array(["malignant", "benign"])[y], sites(len(y))


@cache
def three_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X[:, :6]), np.array([5, 7, 2])[y], sites(len(y))


def sites(m: int) -> np.ndarray:
    """Five of unequal sizes, their rows in no order."""
    return np.random.default_rng(1).choice(["a", "b", "c", "d", "e"], m, p=[0.5, 0.2, 0.15, 0.1, 0.05])


def weights(m: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 4, m) / 2


def agree(ours, theirs) -> None:
    """Intercepts of several classes may differ by a constant, which changes no probability."""
    size = max(1, np.abs(theirs.coef_).max(), np.abs(theirs.intercept_).max())
    assert np.shape(ours.coef_) == np.shape(theirs.coef_)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert np.abs(ours.coef_ - theirs.coef_).max() < 1e-6 * size
    shift = np.mean(ours.intercept_ - theirs.intercept_) if np.size(ours.intercept_) > 1 else 0
    assert np.abs(ours.intercept_ - theirs.intercept_ - shift).max() < 1e-6 * size
    assert np.array_equal(ours.coef_ != 0, theirs.coef_ != 0)


EXACT = {"tol": 1e-14, "max_iter": 200_000}


@pytest.mark.parametrize("weighted", [False, True])
def test_least_squares_is_that_of_scikit_learn(weighted) -> None:
    X, y, site = numbers()
    w = weights(len(y)) if weighted else None
    m = len(y) if w is None else w.sum()
    pairs = [
        (FederatedLasso(0.05), Lasso(0.05, **EXACT)),
        (FederatedElasticNet(0.05, 0.2), ElasticNet(0.25, l1_ratio=0.2, **EXACT)),
        (FederatedRidge(0.3), Ridge(0.3 * m, solver="cholesky")),
        (FederatedLinearRegression(), LinearRegression()),
        (FederatedRidge(0.3, fit_intercept=False), Ridge(0.3 * m, solver="cholesky", fit_intercept=False)),
    ]
    for ours, theirs in pairs:
        agree(ours.fit(X, y, sample_weight=w, groups=site), theirs.fit(X, y, w))
        assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("data", [two_classes, three_classes])
@pytest.mark.parametrize("class_weight", [None, "balanced", {"malignant": 3.0, 5: 0.5}])
def test_logistic_regression_is_that_of_scikit_learn(data, weighted, class_weight) -> None:
    X, y, site = data()
    if isinstance(class_weight, dict):
        class_weight = {c: v for c, v in class_weight.items() if c in y.tolist()}
    w = weights(len(y)) if weighted else np.ones(len(y))
    classes, code = np.unique(y, return_inverse=True)
    factors = compute_class_weight(class_weight, classes=classes, y=y, sample_weight=w)
    total = w @ factors[code]
    ours = FederatedLogisticRegression(0.03, 0.01, class_weight=class_weight)
    theirs = LogisticRegression(
        C=1 / (0.04 * total), l1_ratio=0.75, solver="saga", class_weight=class_weight, tol=1e-12, max_iter=200_000
    )
    agree(ours.fit(X, y, sample_weight=w if weighted else None, groups=site), theirs.fit(X, y, w))
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert np.abs(ours.predict_proba(X) - theirs.predict_proba(X)).max() < 1e-6
    assert np.abs(ours.predict_log_proba(X) - theirs.predict_log_proba(X)).max() < 1e-5
    assert np.array_equal(ours.predict(X), theirs.predict(X))


def test_l1_alone_is_that_of_liblinear_where_nothing_is_penalised_but_the_weights() -> None:
    """liblinear penalises the intercept as well, so it is left out."""
    X, y, site = two_classes()
    ours = FederatedLogisticRegression(0.02, fit_intercept=False).fit(X, y, groups=site)
    theirs = LogisticRegression(
        C=1 / (0.02 * len(y)), l1_ratio=1, solver="liblinear", tol=1e-12, max_iter=100_000, fit_intercept=False
    )
    theirs.fit(X, y)
    assert np.abs(ours.coef_ - theirs.coef_).max() < 1e-6
    assert np.array_equal(ours.coef_ != 0, theirs.coef_ != 0)
    assert 0 < np.count_nonzero(ours.coef_) < ours.coef_.size
    assert not ours.intercept_.any()


def counts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, site = numbers()
    return X, np.floor(3 * y), site


def test_poisson_regression_is_that_of_scikit_learn() -> None:
    X, y, site = counts()
    w = weights(len(y))
    theirs = PoissonRegressor(alpha=0.02, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(X, y, w)
    ours = FederatedPoissonRegressor(l2=0.02).fit(X, y, sample_weight=w, groups=site)
    agree(ours, theirs)
    assert ours.score(X, y, w) == pytest.approx(theirs.score(X, y, w), abs=1e-9)
    assert np.abs(ours.predict(X) - theirs.predict(X)).max() < 1e-5


def test_huber_is_that_of_scipy() -> None:
    """scikit-learn's estimates a scale as well, so it is another model."""
    X, y, site = numbers()
    y = y + 20 * (np.arange(len(y)) % 11 == 0)

    def huber(x: np.ndarray) -> tuple[float, np.ndarray]:
        r = X @ x[:-1] + x[-1] - y
        slope = np.clip(r, -0.7, 0.7) / len(y)
        value = np.where(np.abs(r) <= 0.7, r**2 / 2, 0.7 * (np.abs(r) - 0.35)).mean()
        value += 0.05 * x[:-1] @ x[:-1]
        return value, np.append(X.T @ slope + 0.1 * x[:-1], slope.sum())

    best = minimize(huber, np.zeros(11), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).x
    ours = FederatedHuberRegressor(l2=0.1, delta=0.7).fit(X, y, groups=site)
    assert np.append(ours.coef_, ours.intercept_) == pytest.approx(best, abs=1e-6)


def test_any_penalty_and_groups_of_features_by_name() -> None:
    X, y, site = numbers()
    columns = [f"c{j}" for j in range(10)]
    groups = {"blood": columns[4:], "body": columns[1:3]}
    ours = FederatedLinearRegression(penalty=GroupLasso(0.2, size=1), feature_groups=groups)
    ours.fit(pd.DataFrame(X, columns=columns), y, groups=pd.Series(site))
    theirs = pooled.group_lasso(X, y, [[4, 5, 6, 7, 8, 9], [1, 2], [0], [3]], 0.2)
    assert np.append(ours.coef_, ours.intercept_) == pytest.approx(theirs, abs=1e-6)
    assert np.array_equal(ours.coef_ != 0, theirs[:-1] != 0)
    assert ours.feature_names_in_.tolist() == columns
    same = FederatedLinearRegression(penalty=L1(0.05)).fit(X, y)
    assert np.array_equal(same.coef_, FederatedLinearRegression(0.05).fit(X, y).coef_)


@pytest.mark.parametrize(
    ("estimator", "data"),
    [
        (FederatedLasso(0.05), numbers),
        (FederatedPoissonRegressor(l1=0.01), counts),
        (FederatedLogisticRegression(0.03), two_classes),
        (FederatedLogisticRegression(0.03, 0.01), three_classes),
    ],
    ids=lambda v: getattr(v, "__name__", repr(v)),
)
def test_who_holds_which_row_changes_nothing(estimator, data) -> None:
    X, y, site = data()
    w = weights(len(y))
    alone, five = (clone(estimator).set_params(tol=1e-13).fit(X, y, w, groups) for groups in (None, site))
    assert np.abs(alone.coef_ - five.coef_).max() < 1e-9
    assert np.abs(alone.intercept_ - five.intercept_).max() < 1e-9
    assert np.array_equal(alone.coef_ != 0, five.coef_ != 0)
    assert five.organisations_.tolist() == list("abcde")
    assert len(alone.organisations_) == 1


def test_rounds_and_bytes_are_those_that_travel() -> None:
    """A round for the means, and one for the Gram matrices with what belongs to them."""
    X, y, site = numbers()
    ours = FederatedLasso(0.05).fit(X, y, groups=site)
    n, p = 5, 10
    means = n * 8 * (p + 1 + p)
    assert ours.n_iter_ == 2
    assert ours.bytes_ == means + n * 8 * (2 + (p + 1) + (p + 1) * (p + 2) // 2)


def test_compressed_gradients_lead_to_the_same_model() -> None:
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(90, 8)), sites(90)
    y = X[:, 0] - X[:, 1] + rng.normal(size=90)
    full = FederatedLasso(0.05).fit(X, y, groups=site)
    some = FederatedLasso(0.05, compressor=TopK(fraction=0.3), max_iter=20_000).fit(X, y, groups=site)
    assert np.abs(full.coef_ - some.coef_).max() < 1e-8
    assert 0 < np.count_nonzero(full.coef_) < 8
    assert np.array_equal(full.coef_ != 0, some.coef_ != 0)
    assert some.n_iter_ > full.n_iter_
    assert some.bytes_ / some.n_iter_ < full.bytes_ / full.n_iter_


def test_float32_is_computed_in_float64() -> None:
    X, y, _ = numbers()
    single = X.astype(np.float32)
    ours = FederatedLasso(0.05).fit(single, y)
    assert ours.coef_.dtype == np.float64
    assert np.abs(ours.coef_ - FederatedLasso(0.05).fit(single.astype(np.float64), y).coef_).max() < 1e-12
    assert ours.predict(single).dtype == np.float64


# ---- within scikit-learn ---------------------------------------------------------------------------------------------


def test_pipelines_and_grids_pass_the_organisations_on() -> None:
    X, y, site = two_classes()
    pipe = make_pipeline(StandardScaler(), FederatedLogisticRegression())
    pipe.fit(X, y, federatedlogisticregression__groups=site)
    assert len(pipe[-1].organisations_) == 5
    grid = GridSearchCV(pipe, {"federatedlogisticregression__l1": [0.3, 0.03]}, cv=2)
    grid.fit(X, y, federatedlogisticregression__groups=site)
    assert grid.best_params_ == {"federatedlogisticregression__l1": 0.03}
    assert len(grid.best_estimator_[-1].organisations_) == 5


def test_routed_metadata_go_to_the_splitter_and_to_the_fit() -> None:
    X, y, site = numbers()
    with sklearn.config_context(enable_metadata_routing=True):
        lasso = FederatedLasso().set_fit_request(groups=True, sample_weight=True).set_score_request(sample_weight=True)
        grid = GridSearchCV(lasso, {"l1": np.array([1, 10])}, cv=LeaveOneGroupOut())
        grid.fit(X, y, groups=site, sample_weight=np.ones(len(y)))
        assert grid.n_splits_ == 5
        assert len(grid.best_estimator_.organisations_) == 5
        assert (
            len(GridSearchCV(lasso, {"l1": [0.1]}, cv=GroupKFold(2)).fit(X, y, groups=site).cv_results_["params"]) == 1
        )


def test_a_pickled_model_holds_no_rows() -> None:
    X, y, site = numbers()
    ours = FederatedLassoCV(l1s=3, smallest=0.1, folds=2).fit(X, y, groups=site)
    kept = pickle.dumps(ours)
    assert len(kept) < 2000 < X.nbytes
    assert np.array_equal(pickle.loads(kept).predict(X), ours.predict(X))
    assert (
        repr(clone(FederatedLasso(0.5, compressor=TopK(k=3))))
        == "FederatedLasso(compressor=TopK(fraction=None, k=3), l1=0.5)"
    )


# ---- cross-validation ------------------------------------------------------------------------------------------------


def test_an_organisation_left_out_at_a_time_is_scikit_learns_leave_one_group_out() -> None:
    """The held-out loss of each l1 from scikit-learn's own lasso, and then the rule of one standard error."""
    X, y, site = numbers()
    l1s = [0.2, 0.1, 0.03]
    ours = FederatedLassoCV(l1s=l1s, folds="organisation").fit(X, y, groups=site)
    losses, sizes = [], []
    for train, test in LeaveOneGroupOut().split(X, y, site):
        models = [Lasso(l1, **EXACT).fit(X[train], y[train]) for l1 in l1s]
        losses.append([np.square(m.predict(X[test]) - y[test]).mean() / 2 for m in models])
        sizes.append(len(test))
    mean = np.average(losses, 0, sizes)
    error = np.sqrt(np.average(np.square(losses - mean), 0, sizes) / 4)
    assert ours.held_out_ == pytest.approx(mean, abs=1e-5)
    assert ours.standard_error_ == pytest.approx(error, abs=1e-5)
    assert ours.l1_ == l1s[np.flatnonzero(mean <= mean.min() + error[mean.argmin()])[0]] > l1s[mean.argmin()]
    agree(ours, Lasso(ours.l1_, **EXACT).fit(X, y))
    assert ours.bytes_ > FederatedLasso(ours.l1_).fit(X, y, groups=site).bytes_


def test_logistic_regression_with_a_chosen_l1() -> None:
    X, y, site = three_classes()
    ours = FederatedLogisticRegressionCV(0.01, l1s=3, smallest=0.05, folds=2, rule="best").fit(X, y, groups=site)
    assert ours.l1_ == ours.l1s_[ours.held_out_.argmin()]
    assert ours.held_out_[0] == pytest.approx(1.09, abs=0.05)  # no feature: the entropy of the classes
    plain = FederatedLogisticRegression(ours.l1_, 0.01).fit(X, y)
    assert np.abs(ours.coef_ - plain.coef_).max() < 1e-7
    assert ours.score(X, y) > 0.85


def test_a_class_that_a_fold_has_to_itself_is_refused() -> None:
    y = np.array([0, 1] * 5 + [2] * 3)
    with pytest.raises(InputError, match=r"^folds = 'organisation': fold 1 has all samples of a class, so without it"):
        FederatedLogisticRegressionCV(folds="organisation").fit(np.eye(13), y, groups=np.arange(13) > 4)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (FederatedLasso(-1.0), {}, r"^ElasticNet: l1 = -1.0 must be >= 0$"),
        (FederatedLasso(), {"groups": ["a", None] * 221}, r"^groups: row 1 has no organisation$"),
        (FederatedLasso(), {"groups": [1.0, np.nan] * 221}, r"^groups: row 1 has no organisation$"),
        (FederatedLasso(), {"groups": np.array(["a", 1] * 221, object)}, r"^groups must be a name for each row, or a"),
        (FederatedLasso(), {"groups": pd.array(["a", pd.NA] * 221)}, r"^groups"),
        (FederatedLasso(), {"groups": ["a", "b"]}, r"inconsistent numbers of samples: \[442, 2\]"),
        (FederatedLasso(), {"sample_weight": -np.ones(442)}, r"[Nn]egative"),
        (FederatedLasso(tol=0.0), {}, r"^Solver: tolerance = 0.0 must be > 0$"),
        (FederatedLassoCV(folds="organisation"), {}, r"^folds = 'organisation' needs at least two organisations"),
        (
            FederatedLassoCV(l1s=2, rule="least"),
            {},
            r"^FederatedLassoCV: rule = 'least' is not one of 'best', 'one_se'$",
        ),
        (
            FederatedHuberRegressor(0.1, penalty=L1(0.1)),
            {},
            r"^l1 = 0.1 and penalty = L1\(weight=0.1\): give one of them$",
        ),
        (
            FederatedLinearRegression(penalty=L1(0.1), feature_groups={"a": ["x0"]}),
            {},
            r"^groups = .* L1 has no groups, GroupLasso and SparseGroup do$",
        ),
    ],
)
def test_refusals_are_one_sentence(estimator, options, message) -> None:
    X, y, _ = numbers()
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y, **options)


@pytest.mark.parametrize(
    ("y", "class_weight", "message"),
    [
        (["a"] * 4, None, r"^there is only one class, 'a', in y \(rows of weight 0 apart\)$"),
        (["a", "b"] * 2, {"a": 2.0, "c": 1.0}, r"^class_weight: y has no class 'c', only 'a', 'b'$"),
        (["a", "b"] * 2, {"a": 0.0}, r"^class_weight: 'a' has weight 0; leave these rows out instead$"),
        (["a", "b"] * 2, "even", r"^class_weights = 'even' must be 'balanced', or a number for each label"),
    ],
)
def test_classes_that_do_not_fit_are_refused(y, class_weight, message) -> None:
    with pytest.raises(InputError, match=message) as caught:
        FederatedLogisticRegression(class_weight=class_weight).fit(np.eye(4), y)
    assert isinstance(caught.value, ValueError)


def test_without_scikit_learn_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['sklearn'] = None; import proxfed.sklearn"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    assert said.endswith(
        "ImportError: proxfed.sklearn needs scikit-learn, which is not installed: pip install 'proxfed[sklearn]'\n"
    )


def test_what_does_not_converge_is_said() -> None:
    X, y, _ = numbers()
    with pytest.warns(
        ConvergenceWarning, match=r"^after 3 rounds the residual is .*, not 1e-10: scale the features, or"
    ):
        short = FederatedLogisticRegression(0.001, max_iter=3).fit(X, y > np.median(y))
    assert np.isfinite(short.predict_proba(X)).all()
