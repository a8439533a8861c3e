"""Models of real tables, where the data directory has them: those of other solvers on the pooled rows.

Rows are prepared by merged summaries for both. Lasso and group lasso are fitted to the outcome as a number (survival:
to the logarithm of the time).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet as SkElasticNet
from sklearn.linear_model import Lasso, LogisticRegression

from proxfed.compressors import TopK
from proxfed.data.directory import data_directory
from proxfed.data.federated import Federated
from proxfed.fit import fit
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.regularisers import L1, ElasticNet, GroupLasso
from proxfed.tables import design, read_frame, read_schema, read_tables

from support.pooled_solvers import group_lasso, logistic_l1
from support.tables import EXAMPLES

PLACE = data_directory()
NAMES = ("heart-disease", "eicu-demo", "sba-loans", "fed-tcga-brca", "golub-leukemia")
SMALL = 0.1
"""Of the weight at which the solution is zero."""


@cache
def data(name: str) -> tuple[Federated, tuple[int, ...]]:
    made = design(there(name))
    found, groups = made.federated(), np.array(made.preparation.groups)
    _, kept = np.unique(found.features, axis=1, return_index=True)  # of equal columns any could have the weight
    kept.sort()
    names = tuple(np.array(found.names)[kept].tolist())
    return replace(found, features=found.features[:, kept], test=None, feature_names=names), tuple(
        groups[kept].tolist()
    )


def there(name: str):
    path = EXAMPLES / f"{name}.toml"
    if not (PLACE / read_schema(path).source.folder).is_dir():
        pytest.skip(f"there is no folder {name} in the data directory {PLACE}")
    return read_tables(path, PLACE)


def as_numbers(found: Federated) -> Federated:
    labels = found.labels.astype(float)
    if np.abs(labels).max() > 1:  # times
        labels = np.log1p(np.abs(labels))
    return Federated(found.features, labels, found.sizes, feature_names=found.feature_names)


def fitted(found: Federated, loss: str, penalty, weight: float, compressor=None) -> np.ndarray:
    problem = linear_model(found, loss, penalty)
    chosen = problem.with_h(problem.h.with_weight(weight))
    return Solver(1e-11, compressor).fit(chosen).x.numpy()


def weight_of(found: Federated, loss: str, penalty) -> float:
    problem = linear_model(found, loss, penalty)
    zero = Solver(1e-10).at_zero(problem)
    return SMALL * problem.h.weight_max(zero.gradient)


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert np.array_equal(ours != 0, np.abs(theirs) > 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "fed-tcga-brca"])
def test_sparse_logistic_regression_is_that_of_pooled_rows(name: str) -> None:
    found, _ = data(name)
    weight = weight_of(found, "logistic", L1(1.0))
    ours = fitted(found, "logistic", L1(1.0), weight)
    A, y = found.features, found.labels
    assert_same(ours, logistic_l1(A, y, weight))
    if name != "golub-leukemia":  # for which scikit-learn takes long
        model = LogisticRegression(
            C=1 / (len(y) * weight), l1_ratio=1.0, solver="saga", tol=1e-11, max_iter=100_000, random_state=0
        ).fit(A, y)
        assert_same(ours, np.append(model.coef_[0], model.intercept_))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_lasso_and_elastic_net_are_those_of_scikit_learn(name: str) -> None:
    found = as_numbers(data(name)[0])
    A, y = found.features, found.labels
    weight = weight_of(found, "squared", L1(1.0))
    lasso = Lasso(weight, tol=1e-14, max_iter=1_000_000).fit(A, y)
    assert_same(fitted(found, "squared", L1(1.0), weight), np.append(lasso.coef_, lasso.intercept_))
    l2 = 0.1
    both = SkElasticNet(weight + l2, l1_ratio=weight / (weight + l2), tol=1e-14, max_iter=1_000_000).fit(A, y)
    assert_same(fitted(found, "squared", ElasticNet(1.0, l2), weight), np.append(both.coef_, both.intercept_))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "golub-leukemia"])
def test_group_lasso_is_that_of_block_descent(name: str) -> None:
    found, labels = as_numbers(data(name)[0]), data(name)[1]
    penalty = GroupLasso(1.0, labels=labels)
    weight = weight_of(found, "squared", penalty)
    groups = [np.flatnonzero(np.array(labels) == k).tolist() for k in sorted(set(labels))]
    assert_same(fitted(found, "squared", penalty, weight), group_lasso(found.features, found.labels, groups, weight))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heart-disease", "eicu-demo"])
def test_compressed_messages_give_the_same_models(name: str) -> None:
    found, _ = data(name)
    weight = weight_of(found, "logistic", L1(1.0))
    ours = fitted(found, "logistic", L1(1.0), weight, TopK(fraction=0.2))
    assert_same(ours, logistic_l1(found.features, found.labels, weight))


@pytest.mark.slow
def test_thousands_of_genes_in_less_than_a_minute() -> None:
    found, _ = data("golub-leukemia")
    weight = weight_of(found, "logistic", L1(1.0))
    problem = linear_model(found, "logistic", L1(weight))
    before = time.process_time()
    ours = Solver(1e-8).fit(problem).x.numpy()
    seconds = time.process_time() - before
    theirs = logistic_l1(found.features, found.labels, weight)
    assert np.array_equal(ours != 0, np.abs(theirs) > 1e-9)
    print(f"{found.features.shape[1]} genes, {seconds:.1f} s")
    assert seconds < 60


@pytest.mark.slow
def test_hospitals_gain_from_each_other_and_a_fifth_can_use_the_model() -> None:
    there("heart-disease")
    found = fit(EXAMPLES / "heart-disease.toml", PLACE, weights=10, repetitions=50)
    assert found.off_pooled < 1e-6
    for who in ("cleveland", "hungarian", "switzerland", "va", "all"):
        assert found.federated[who]["auc"].value == pytest.approx(found.pooled[who]["auc"].value, abs=0.005)
    better = [found.federated[w]["auc"].value - found.alone[w]["auc"].value for w in ("switzerland", "va")]
    assert np.mean(better) > 0
    lines = Path(PLACE / "heart-disease" / "processed.cleveland.data").read_text().split()[:20]
    names = read_schema(EXAMPLES / "heart-disease.toml").source.names or []
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    order = [name for name in sorted(names) if name not in ("num", "slope", "vessels", "thal")]
    frame = {name: [row[name] for row in rows] for name in order}
    cleveland = found.design.tables.tables[0].take(np.arange(20))
    np.testing.assert_array_equal(found.model.scores(frame), found.model.scores(cleveland))
    table = read_frame(found.model.prepare.schema, frame, "fifth", target=False).tables[0]
    assert len(found.model.predict(table)) == 20
