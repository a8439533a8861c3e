"""The federated fit is that of the pooled samples: scikit-learn, scipy and solvers of the tests agree with it."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import ElasticNet as SkElasticNet
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge

from proxfed import Federated
from proxfed.compressors import TopK
from proxfed.data.directory import data_directory
from proxfed.data.survival import survival_labels
from proxfed.errors import InputError, RunError
from proxfed.fit import newton
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver, Traffic
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber
from proxfed.regularisers import (
    L1,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    SparseGroup,
    SquaredL2,
    Zero,
)

from support import pooled_solvers as pooled


def standard(A: np.ndarray) -> np.ndarray:
    sd = A.std(0)
    return (A - A.mean(0))[:, sd > 0] / sd[sd > 0]


@cache
def cancer() -> Federated:
    A, y = load_breast_cancer(return_X_y=True)
    return Federated(standard(A), 2.0 * y - 1, [250, 119, 100, 100])


@cache
def diabetes() -> Federated:
    A, y = load_diabetes(return_X_y=True)
    return Federated(standard(A), y / y.std(), [242, 100, 100])


@cache
def random(loss: str) -> Federated:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(90, 12)) + np.repeat(rng.normal(size=(3, 12)), 30, 0)
    s = A @ (rng.normal(size=12) * (rng.random(12) < 0.5)) / 2
    labels = {
        "logistic": np.where(s + rng.logistic(size=90) > 0, 1.0, -1.0),
        "squared": s + rng.normal(size=90),
        "poisson": rng.poisson(np.exp(np.clip(s, -3, 2))).astype(float),
    }[loss]
    return Federated(A, labels, [30, 40, 20], sample_weights=rng.random(90) + 0.1)


def fitted(data, loss, penalty=Zero(), **options) -> np.ndarray:
    solver = Solver(**{k: options.pop(k) for k in ("compressor", "tolerance") if k in options})
    return solver.fit(linear_model(data, loss, penalty, **options)).x.numpy()


def agree(ours: np.ndarray, model) -> None:
    theirs = np.append(model.coef_.ravel(), model.intercept_)
    assert np.abs(ours - theirs).max() < 1e-6 * max(1, np.abs(theirs).max())
    assert np.array_equal(ours[: model.coef_.size] != 0, model.coef_.ravel() != 0)


def logistic(**options) -> LogisticRegression:
    return LogisticRegression(solver="saga", tol=1e-12, max_iter=200_000, **options)


@pytest.mark.parametrize("lam", [0.05, 0.01])
@pytest.mark.parametrize("data", [cancer, lambda: random("logistic")], ids=["breast cancer", "random"])
def test_logistic_l1(data, lam) -> None:
    d = data()
    w = d.sample_weights
    total = len(d.labels) if w is None else w.sum()
    model = logistic(l1_ratio=1, C=1 / (lam * total)).fit(d.features, d.labels, w)
    agree(fitted(d, "logistic", L1(lam)), model)


@pytest.mark.parametrize("lam", [0.3, 0.03, 0.003])
def test_lasso_and_elastic_net(lam) -> None:
    d = diabetes()
    agree(fitted(d, "squared", L1(lam)), Lasso(lam, tol=1e-14, max_iter=100_000).fit(d.features, d.labels))
    net = SkElasticNet(lam, l1_ratio=0.7, tol=1e-14, max_iter=100_000).fit(d.features, d.labels)
    agree(fitted(d, "squared", ElasticNet(0.7 * lam, 0.3 * lam)), net)


def test_ridge_with_weights() -> None:
    d = random("squared")
    model = Ridge(0.1 * d.sample_weights.sum(), tol=1e-12).fit(d.features, d.labels, d.sample_weights)
    agree(fitted(d, "squared", SquaredL2(0.1)), model)


def test_softmax_l1_with_balanced_classes() -> None:
    A, y = load_digits(return_X_y=True)
    kept = np.flatnonzero((y < 3) & (np.arange(len(y)) % (1 + 2 * (y == 1)) == 0))  # a class is rarer
    A, y = A[kept][:, 18:30] / 16, y[kept]
    d = Federated(A, y, [len(y) - 150, 100, 50], classes=3)
    model = logistic(l1_ratio=1, C=1 / (0.004 * len(y)), class_weight="balanced").fit(A, y)
    x = fitted(d, "cross_entropy", L1(0.004), class_weights="balanced")
    W, b = x[: 3 * A.shape[1]].reshape(3, -1), x[3 * A.shape[1] :]
    assert np.abs(W - model.coef_).max() < 1e-6 * np.abs(W).max()
    assert np.array_equal(W != 0, model.coef_ != 0)
    b, theirs = b - b.mean(), model.intercept_ - model.intercept_.mean()  # a constant in all of them changes nothing
    assert np.abs(b - theirs).max() < 1e-6 * np.abs(theirs).max()


def test_class_weights_by_label() -> None:
    d = random("logistic")
    model = logistic(l1_ratio=0, C=1 / (0.1 * 90), class_weight={-1: 1.0, 1: 3.0})
    own = d.sample_weights * np.where(d.labels > 0, 3.0, 1.0)
    model.C = 1 / (0.1 * own.sum())
    model.fit(d.features, d.labels, d.sample_weights)
    agree(fitted(d, "logistic", SquaredL2(0.1), class_weights={"1": 3.0}), model)


GROUPS = {"blood": ["x4", "x5", "x6", "x7", "x8", "x9"], "body": ["x1", "x2"]}


@pytest.mark.parametrize("lam", [0.2, 0.03])
def test_group_lasso_by_names(lam) -> None:
    d = diabetes()
    x = fitted(d, "squared", GroupLasso(lam, size=1), groups=GROUPS)
    theirs = pooled.group_lasso(d.features, d.labels, [[4, 5, 6, 7, 8, 9], [1, 2], [0], [3]], lam)
    assert np.abs(x - theirs).max() < 1e-6
    assert np.array_equal(x != 0, theirs != 0)
    other = {name: group for group, names in GROUPS.items() for name in names}
    assert np.array_equal(x, fitted(d, "squared", GroupLasso(lam, size=1), groups=other))
    both = fitted(d, "squared", SparseGroup(0.0, lam, size=1), groups=GROUPS)
    assert np.abs(x - both).max() < 1e-8


def minimum(f, d: int) -> np.ndarray:
    found = minimize(f, np.zeros(d), jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-12, "maxiter": 5000})
    return found.x


def test_huber_and_poisson() -> None:
    d = replace(random("squared"), labels=random("squared").labels + 10 * (np.arange(90) % 7 == 0))
    w = d.sample_weights / d.sample_weights.sum()

    def huber(x):
        r = d.features @ x[:-1] + x[-1] - d.labels
        slope = np.clip(r, -0.8, 0.8)
        value = np.where(np.abs(r) <= 0.8, r**2 / 2, 0.8 * (np.abs(r) - 0.4))
        return w @ value, np.append(d.features.T @ (w * slope), w @ slope)

    assert fitted(d, Huber(0.8)) == pytest.approx(minimum(huber, 13), abs=1e-6)
    d = random("poisson")
    model = PoissonRegressor(alpha=0.01, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    agree(fitted(d, "poisson", SquaredL2(0.01)), model.fit(d.features, d.labels, d.sample_weights))


def test_poisson_with_l1_fulfils_the_conditions_of_optimality() -> None:
    d = random("poisson")
    for lam in (0.5, 0.05):
        x = fitted(d, "poisson", L1(lam))
        r = d.sample_weights / d.sample_weights.sum() * (np.exp(d.features @ x[:-1] + x[-1]) - d.labels)
        g = d.features.T @ r
        assert abs(r.sum()) < 1e-8
        assert np.abs(g + lam * np.sign(x[:-1]))[x[:-1] != 0].max() < 1e-8
        assert np.abs(g).max() <= lam + 1e-8
        assert np.abs(linear_model(d, "poisson", L1(lam)).solve().numpy() - x).max() < 1e-6


def survival(n: int = 3) -> Federated:
    rng = np.random.default_rng(5)
    A = rng.normal(size=(60, 4))
    times = np.ceil(rng.exponential(np.exp(-A[:, 0])) * 5)
    return Federated(A, survival_labels(times, rng.random(60) < 0.7), [20] * n)


def test_cox_ridge_is_that_of_newtons_method() -> None:
    d = survival()
    clients = [(A, np.abs(b), b > 0) for A, b in (d.client(i) for i in range(3))]
    assert fitted(d, "cox", SquaredL2(0.02)) == pytest.approx(pooled.cox(clients, 0.02), abs=1e-7)
    assert np.abs(fitted(d, Cox("efron"), SquaredL2(0.02)) - pooled.cox(clients, 0.02)).max() > 1e-4


@pytest.mark.parametrize("penalty", [L1(0.05), ElasticNet(0.02, 0.1), SquaredL2(0.1)], ids=repr)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_a_compressed_uplink_gives_the_same_model(loss, penalty) -> None:
    d = random(loss)
    model = linear_model(d, loss, penalty)
    full = Solver().fit(model)
    some = Solver(compressor=TopK(fraction=0.3)).fit(model)
    assert torch.allclose(full.x, some.x, atol=1e-7)
    assert torch.equal(full.x != 0, some.x != 0)
    up = some.traffic.bytes_up / some.traffic.rounds
    assert up < 0.65 * full.traffic.bytes_up / full.traffic.rounds  # 3 of 13 numbers with their places, and the looks


@pytest.mark.parametrize("penalty", [Box(-0.1, 0.2), L2Ball(0.3), MCP(0.05, 40.0), SCAD(0.05, 50.0)], ids=repr)
def test_constraints_and_penalties_that_are_not_convex(penalty) -> None:
    """A fixed point of the prox-gradient map, and for convex ones the reference solution."""
    model = linear_model(random("logistic"), "logistic", penalty)
    x = Solver().fit(model).x
    s = 0.1
    assert torch.allclose(x, model.h.prox(x - s * model.f.gradient(x), s), atol=1e-8)
    if penalty.weak_convexity == 0:
        assert torch.allclose(x, model.solve(), atol=1e-7)
    else:
        assert 0 < int((x == 0).sum()) < len(x)


def test_bytes_and_rounds_are_counted() -> None:
    model = linear_model(random("logistic"), "logistic", L1(0.05))
    fit = Solver().fit(model)
    n, d, rounds = 3, 13, fit.traffic.rounds
    classes, gradients = n * 8 * 2, n * 8 * (rounds - 1) * (d + 1)
    hessians = (fit.traffic.bytes_up - classes - gradients) / (n * 8 * d * (d + 1) // 2)
    assert hessians in range(1, rounds)
    assert fit.traffic.bytes_down == n * 8 * (rounds - 1) * d
    assert rounds <= 12
    seen: list[tuple[int, float]] = []
    assert Solver(watch=lambda t, r: seen.append((t, r))).fit(model).traffic.rounds == rounds
    assert [t for t, _ in seen] == sorted(t for t, _ in seen)
    assert seen[-1][1] == fit.residual <= 1e-10


def test_a_path_is_warm_and_begins_where_the_solution_is_zero() -> None:
    model = linear_model(cancer(), "logistic", L1(1.0))
    fits = Solver(1e-8).path(model, 6, 0.02)
    weights = [fit.weight for fit in fits]
    assert weights == [fit.h.parts[0][1].weight for fit in fits]
    assert weights[0] == pytest.approx(model.alpha_max(), rel=1e-9)
    assert weights == pytest.approx(list(weights[0] * np.geomspace(1, 0.02, 6)))
    assert not fits[0].x[:-1].any()
    for fit in fits[1::2]:
        cold = Solver().fit(model.with_h(fit.h).starting_at(torch.zeros(31, dtype=torch.float64)))
        assert torch.allclose(cold.x, fit.x, atol=1e-5)
    assert fits[0].traffic.rounds <= 20  # of all of them
    assert all(fit.traffic == Traffic() for fit in fits[1:])
    given = Solver(1e-8).path(model, weights[:2])
    assert torch.allclose(given[-1].x, fits[1].x, atol=1e-5)
    alone = Solver(1e-7).path(linear_model(random("poisson"), "poisson", L1(1.0)), 3)
    assert int((alone[0].x != 0).sum()) == 1


def test_what_cannot_be_fitted_is_said_in_one_sentence(monkeypatch) -> None:
    monkeypatch.setattr(newton, "PATIENCE", 20)
    model = linear_model(cancer(), "logistic", L1(0.001))
    with pytest.raises(RunError, match=r"^after 3 rounds the residual is .*, not 1e-10: allow more rounds or a larger"):
        Solver(rounds=3).fit(model)
    with pytest.raises(RunError, match=r"^after \d+ rounds the residual is .*e-1\d, not 1e-20: allow more rounds"):
        Solver(1e-20).fit(linear_model(random("logistic"), "logistic", SquaredL2(0.01)))
    with pytest.raises(InputError, match=r"^batch = 4: a fit needs full gradients, batch = None$"):
        Solver().fit(replace(model, f=replace(model.f, batch=4)))
    with pytest.raises(InputError, match=r"^dtype = torch.float32: a fit needs float64"):
        Solver().fit(replace(model, f=replace(model.f, dtype=torch.float32)))
    with pytest.raises(InputError, match=r"^Solver: tolerance = 0 must be > 0$"):
        Solver(0)
    with pytest.raises(InputError, match=r"^Linear: its curvature has no bound, and a compressed uplink needs one"):
        Solver(compressor=TopK(k=2)).fit(linear_model(random("poisson"), "poisson", L1(0.1)))
    with pytest.raises(InputError, match=r"^SquaredL2 has no weight from which on zero is the solution$"):
        Solver().path(linear_model(cancer(), "logistic", SquaredL2(0.1)), 5)
    with pytest.raises(InputError, match=r"^groups: there is no feature 'x44'; did you mean 'x4'\?$"):
        linear_model(diabetes(), "squared", GroupLasso(0.1, size=1), groups={"a": ["x44"]})
    with pytest.raises(InputError, match=r"^groups: the feature 'x1' is in 'a' and in 'b'$"):
        linear_model(diabetes(), "squared", GroupLasso(0.1, size=1), groups={"a": ["x1"], "b": ["x1"]})
    with pytest.raises(InputError, match=r"L1 has no groups, GroupLasso and SparseGroup do$"):
        linear_model(diabetes(), "squared", L1(0.1), groups={"a": ["x1"]})


def folder(name: str):
    place = data_directory() / name
    if not place.exists():
        pytest.skip(f"{name} is not in the data directory, {data_directory()}")
    return place


@pytest.mark.slow
def test_many_more_genes_than_patients() -> None:
    place = folder("golub-leukemia")
    with np.load(place / "golub_expression.npz", allow_pickle=True) as file:
        A = standard(np.log2(np.clip(file["X"], 100, 16000)))
    with (place / "golub_samples.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    source, y = (np.array([row[k] for row in rows]) for k in ("source", "class"))
    order, sizes = source.argsort(kind="stable"), np.unique(source, return_counts=True)[1]
    d = Federated(A[order], np.where(y[order] == "AML", 1.0, -1.0), sizes)
    model = linear_model(d, "logistic", L1(1.0))
    lam = 0.1 * model.alpha_max()
    fit = Solver(1e-8).fit(model.with_h(model.h.with_weight(lam)))
    theirs = pooled.logistic_l1(d.features, d.labels, lam)
    assert np.array_equal(fit.x.numpy() != 0, theirs != 0)
    assert np.abs(fit.x.numpy() - theirs).max() < 1e-5


def test_survival_at_six_hospitals() -> None:
    place = folder("fed-tcga-brca")
    with (place / "brca.csv").open() as lines:
        rows = {row["pid"]: row for row in csv.DictReader(lines)}
    with (place / "train_test_split.csv").open() as lines:
        region = {row["pid"]: row["fold2"][-1] for row in csv.DictReader(lines)}
    pids = sorted(region, key=lambda pid: region[pid])
    names = [name for name in rows[pids[0]] if name not in ("pid", "E", "T")]
    A = np.array([[float(rows[pid][name]) for name in names] for pid in pids])
    A = (A - A.mean(0)) / np.where(A.std(0) > 0, A.std(0), 1)
    labels = survival_labels([float(rows[p]["T"]) for p in pids], [float(rows[p]["E"]) for p in pids])
    d = Federated(A, labels, np.unique([region[p] for p in pids], return_counts=True)[1], feature_names=names)
    model = linear_model(d, "cox", SquaredL2(0.02))
    x = torch.tensor(np.random.default_rng(0).normal(size=39) / 5)
    f = model.f.local(0, range(6))
    for e in torch.eye(39, dtype=torch.float64)[::6] * 1e-5:
        slope = (f.value(x + e) - f.value(x - e)) / 2e-5
        assert torch.allclose(f.full_grad(x) @ e * 1e5, slope, atol=1e-8)
    clients = [(B, np.abs(b), ~np.signbit(b)) for B, b in (d.client(i) for i in range(6))]
    assert Solver().fit(model).x.numpy() == pytest.approx(pooled.cox(clients, 0.02), abs=1e-6)
