"""Sparse features: the same models as of the dense matrix, at a cost per non-zero number."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from proxfed import FedAvg, Federated, Linear, Neural, load, read_study, run, run_study
from proxfed.algorithms import ProxNewton
from proxfed.data import Dataset, SparseRows
from proxfed.data.libsvm import read_libsvm
from proxfed.data.limits import limited
from proxfed.data.partitions import IID
from proxfed.errors import InputError
from proxfed.fit.solve import Solver
from proxfed.problems.linear.curvature import lanczos
from proxfed.regularisers import L1, Zero
from proxfed.report.client_stats import ClientStats

SIZES = (30, 11, 45)
LOSSES = ("squared", "huber", "poisson", "logistic", "cross_entropy", "cox")


@pytest.fixture(params=["numba", "torch"])
def kernels(request, monkeypatch) -> str:
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setenv("PROXFED_KERNELS", request.param)
    return request.param


def matrix(rng: np.random.Generator, N: int, p: int) -> np.ndarray:
    return rng.normal(size=(N, p)) * (rng.random((N, p)) < 0.2)


def pair(loss: str, p: int = 12, weighted: bool = False, **options) -> tuple[Linear, Linear]:
    """(dense, sparse)"""
    rng = np.random.default_rng(3)
    N = sum(SIZES)
    A, test = matrix(rng, N, p), matrix(rng, 20, p)
    draw = {
        "logistic": lambda m: np.sign(rng.normal(size=m)),
        "poisson": lambda m: rng.poisson(1.0, m).astype(float),
        "cross_entropy": lambda m: rng.integers(0, 3, m),
    }.get(loss, lambda m: rng.normal(size=m))
    b, c, classes = draw(N), draw(20), 3 if loss == "cross_entropy" else None
    w = rng.random(N) if weighted else None
    data = [
        Federated(form(A), b, SIZES, (form(test), c), classes, sample_weights=w) for form in (np.asarray, SparseRows.of)
    ]
    return tuple(Linear(d, loss, **options) for d in data)  # type: ignore[return-value]


# ---- the rows --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 7), st.integers(1, 6), st.integers(0, 1000), st.data())
def test_rows_are_those_of_the_dense_matrix(N, p, seed, data) -> None:
    dense = matrix(np.random.default_rng(seed), N, p)
    A = SparseRows.of(dense)
    assert A.shape == dense.shape
    assert np.array_equal(A.toarray(), dense)
    assert np.array_equal(SparseRows.of(scipy.sparse.coo_array(dense)).toarray(), dense)
    start, stop = data.draw(st.tuples(st.integers(-8, 8), st.integers(-8, 8)))
    rows = np.array(data.draw(st.lists(st.integers(0, N - 1)) if N else st.just([])), np.int64)
    mask = np.random.default_rng(seed).random(N) < 0.5
    for some in (slice(start, stop), slice(None, None, 2), rows, mask):
        assert np.array_equal(A[some].toarray(), dense[some])
    assert np.array_equal(SparseRows.stack([A, A[rows], A[:0]]).toarray(), np.concatenate([dense, dense[rows]]))


def test_entries_that_scipy_holds_twice_are_added() -> None:
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    assert SparseRows.of(twice).toarray().tolist() == [[0, 3, 0], [5, 0, 0]]
    assert twice.nnz == 3


ROWS = SparseRows.of(np.eye(3))
SENTENCES = {
    "SparseRows: column 3, but there are 3, from 0 on": (
        lambda: SparseRows(np.ones(1), np.array([3]), np.array([0, 1]), 3)
    ),
    "SparseRows: width = 2147483648 must be in 0..2147483647": lambda: SparseRows([1.0], [0], [0, 1], 1 << 31),
    "SparseRows: column -1, but there are 3, from 0 on": lambda: SparseRows(
        np.ones(1), np.array([-1]), np.array([0, 1]), 3
    ),
    "SparseRows: indptr must ascend from 0 to the 1 non-zeros": lambda: SparseRows(
        np.ones(1), np.array([0]), np.array([0, 2]), 3
    ),
    "SparseRows: (2,) values for 1 indices": lambda: SparseRows(np.ones(2), np.array([0]), np.array([0, 1]), 3),
    "SparseRows: indices must be whole numbers in one row, not float64 (1,)": lambda: SparseRows(
        np.ones(1), np.array([0.5]), np.array([0, 1]), 3
    ),
    "sparse features are not converted to a dense array by themselves: use toarray()": lambda: np.asarray(ROWS),
    "data: row 1 of client 0 has a feature that is NaN or infinite": lambda: Federated(
        SparseRows(np.array([1.0, np.nan]), np.array([0, 1]), np.array([0, 1, 2, 2]), 2), np.zeros(3), [2, 1]
    ),
    "mine: the test set has features (1, 2) and 1 labels, but a sample of the clients has shape (3,)": (
        lambda: Federated(ROWS, np.zeros(3), [3], (SparseRows.of(np.ones((1, 2))), np.zeros(1)), name="mine")
    ),
    "Neural: data has sparse features, which only linear models take": lambda: Neural(
        Federated(ROWS, np.zeros(3), [3]), "linear", "squared"
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_what_makes_no_sense_is_refused_in_one_sentence(sentence) -> None:
    with pytest.raises(InputError) as e:
        SENTENCES[sentence]()
    assert str(e.value) == sentence


def test_they_are_handed_out_like_any_others() -> None:
    rng = np.random.default_rng(0)
    dense, b = matrix(rng, 40, 5), np.arange(40.0)
    pile = Dataset(SparseRows.of(dense), b, SparseRows.of(dense[:4]), b[:4], groups=np.arange(40) % 3)
    data = Federated.split(pile, IID(4)(b))
    for some in (data, data.keep(np.arange(3, 30)), limited(data, 30, 2), data.thinned(3)):
        assert np.array_equal(some.features.toarray(), dense[some.labels.astype(int)])
    own = [(scipy.sparse.csr_array(dense[:3]), b[:3]), (dense[3:5], b[3:5])]
    again = Federated.from_clients(own)
    assert np.array_equal(again.features.toarray(), dense[:5])
    assert np.array_equal(again.client(1)[0].toarray(), dense[3:5])
    other = Federated(SparseRows.of(2 * dense), b, [40])
    assert not ClientStats.of(Federated(SparseRows.of(dense), b, [40])).same(ClientStats.of(other))


# ---- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_everything_is_as_with_dense_features(loss, weighted, dtype, kernels) -> None:
    dense, sparse = pair(loss, weighted=weighted, dtype=dtype, intercept=loss != "cox", l2=0.1)
    rounding = 1e-13 if dtype == torch.float64 else 1e-5
    x = torch.tensor(np.random.default_rng(4).normal(size=(3, dense.d)) / 3, dtype=dtype)
    f, g = dense.local(1, range(3)), sparse.local(1, range(3))
    for point in (x, x[1]):
        for ours, expected in zip(g.value_and_grad(point), f.value_and_grad(point), strict=True):
            torch.testing.assert_close(ours, expected, rtol=rounding, atol=rounding)
        assert torch.equal(g.value(point), g.value_and_grad(point)[0])
        assert torch.equal(g.full_grad(point), g.value_and_grad(point)[1])
    assert sparse.evaluate(x[0]) == pytest.approx(dense.evaluate(x[0]), rel=100 * rounding)
    X = dense.data.features[:7]
    for rows in (SparseRows.of(X), scipy.sparse.csr_array(X)):
        assert sparse.predict(x[0], rows) == pytest.approx(dense.predict(x[0], X), rel=rounding, abs=rounding)
    assert dense.scores(x[0], SparseRows.of(X)) == pytest.approx(sparse.scores(x[0], X), rel=rounding, abs=rounding)


@pytest.mark.parametrize("loss", ["logistic", "cross_entropy"])
def test_minibatches_are_the_same_samples(loss, kernels) -> None:
    dense, sparse = pair(loss, batch=6)
    x = torch.tensor(np.random.default_rng(4).normal(size=(3, dense.d)))
    torch.testing.assert_close(sparse.local(2, range(3), 5).grad(x, 1), dense.local(2, range(3), 5).grad(x, 1))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "poisson"])
@pytest.mark.parametrize("p", [12, 70], ids=["tall", "wide"])
@pytest.mark.parametrize("intercept", [False, True])
def test_smoothness_is_that_of_the_dense_matrix(loss, p, intercept, kernels) -> None:
    """To the digits of Lanczos' iteration, and never below; strong convexity is that of l2."""
    dense, sparse = pair(loss, p, weighted=True, intercept=intercept and loss != "cox", l2=0.1, weighting="size")
    L, L_f, mu, _ = dense.smoothness()
    ours = sparse.smoothness()
    assert ours[:2] == pytest.approx((L, L_f), rel=1e-9)
    assert ours[0] >= L * (1 - 1e-12)
    assert ours[1] >= L_f * (1 - 1e-12)
    assert ours[2:] == (0.1, 0.1)
    assert mu >= 0.1
    assert sparse.client_smoothness.numpy() == pytest.approx(dense.client_smoothness.numpy(), rel=1e-9)


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 1000))
def test_lanczos_finds_the_largest_eigenvalues(d, c, seed) -> None:
    rng = np.random.default_rng(seed)
    B = torch.tensor(rng.normal(size=(c, rng.integers(1, 2 * d + 1), d)) * 10.0 ** rng.uniform(-3, 3, (c, 1, 1)))
    M = B.mT @ B
    found = lanczos(lambda x: (M @ x[..., None])[..., 0], torch.tensor(rng.normal(size=(c, d))))
    assert found.numpy() == pytest.approx(torch.linalg.eigvalsh(M)[:, -1].numpy(), rel=1e-8)


def test_features_that_are_all_zero_have_no_curvature(kernels) -> None:
    data = Federated(SparseRows.of(np.zeros((4, 3))), np.ones(4), [2, 2])
    assert Linear(data, "squared", l2=0.5).smoothness() == (0.5, 0.5, 0.5, 0.5)


def test_runs_and_solutions_are_those_of_dense_features(kernels) -> None:
    dense, sparse = (f + L1(0.01) for f in pair("logistic", l2=0.05, intercept=True))
    for algorithm in (FedAvg(0.5, 3), ProxNewton(1.0)):
        one, other = (run(p, algorithm, 10).model for p in (dense, sparse))
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sparse.solve(), dense.solve(), rtol=1e-8, atol=1e-10)
    assert sparse.alpha_max() == pytest.approx(dense.alpha_max(), rel=1e-8)
    torch.testing.assert_close(Solver().fit(sparse).x, dense.solve(), rtol=1e-7, atol=1e-8)


def test_the_solution_is_that_of_scikit_learn(kernels) -> None:
    _, sparse = pair("logistic", l2=0.1, weighting="size")
    N = sum(SIZES)
    A = scipy.sparse.csr_array(sparse.data.features.toarray())
    theirs = LogisticRegression(C=1 / (0.1 * N), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(
        A, sparse.data.labels
    )
    assert (sparse + Zero()).solve().numpy() == pytest.approx(theirs.coef_[0], abs=1e-6)


# ---- files -----------------------------------------------------------------------------------------------------------


def lines(dense: np.ndarray, labels) -> str:
    rows = [
        " ".join([str(b), *(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist()) if v)])
        for row, b in zip(dense, labels, strict=True)
    ]
    return "\n".join(rows) + "\n"


def test_a_file_of_libsvm_is_sparse_where_it_is(tmp_path) -> None:
    rng = np.random.default_rng(0)
    few, many = np.zeros((6, 30)), rng.normal(size=(6, 4))
    few[np.arange(6), rng.integers(0, 30, 6)] = 1.5
    for name, dense in (("few", few), ("many", many)):
        (tmp_path / name).write_text(lines(dense, [2, 5, 5, 2, 2, 5]))
        found, _ = read_libsvm(tmp_path / name, dense.shape[1])
        assert isinstance(found, SparseRows) == (name == "few")
        assert np.array_equal(SparseRows.of(found).toarray(), dense)
        data = load("libsvm", IID(2), path=tmp_path / name, test=tmp_path / name, n_features=dense.shape[1])
        assert isinstance(data.features, SparseRows) == (name == "few")
        assert set(data.labels) == {-1.0, 1.0}
        assert data.test[1].tolist() == [-1, 1, 1, -1, -1, 1]
    classes = load("libsvm", IID(2), path=tmp_path / "few", classes=2, sparse=False)
    assert set(classes.labels) == {0, 1}
    assert isinstance(classes.features, np.ndarray)
    with pytest.raises(InputError, match=r"few: has 2 labels, but classes = 1$"):
        load("libsvm", IID(2), path=tmp_path / "few", classes=1)


def test_the_test_file_may_know_more_features(tmp_path) -> None:
    (tmp_path / "a").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "b").write_text("1 5:1\n")
    data = load("libsvm", IID(1), path=tmp_path / "a", test=tmp_path / "b", sparse=True)
    assert data.features.shape == (2, 5)
    assert data.test[0].shape == (1, 5)


def test_an_experiment_on_sparse_features(tmp_path, kernels) -> None:
    rng = np.random.default_rng(1)
    dense = matrix(rng, 60, 40)
    (tmp_path / "data.txt").write_text(lines(dense, np.sign(dense.sum(1) + 0.01).astype(int)))
    (tmp_path / "e.toml").write_text(f"""
name = "sparse"
rounds = 5
problem = {{ name = "logistic", l2 = 0.01 }}
regulariser = {{ name = "l1", weight = 0.001 }}
algorithms = [{{ name = "fedavg", eta = 0.5, K = 2 }}, {{ name = "prox_newton", theory = true }}]

[data]
name = "libsvm"
path = "{tmp_path / "data.txt"}"
sparse = true
partition = {{ name = "iid", num_partitions = 3 }}
""")
    results = run_study(read_study(tmp_path / "e.toml"), tmp_path / "out")
    objectives = [row["objective"] for row in results.rows if row["round"] == 5]
    assert all(0 < value < np.log(2) for value in objectives)
