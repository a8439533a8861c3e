"""The compiled pass against the products of torch and against NumPy: every loss, dtype, weighting, dense and sparse."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import proxfed
from proxfed import FedAvg, Federated, Linear, machine
from proxfed.data import SparseRows
from proxfed.engine import tuning
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.machine import versions
from proxfed.problems.linear import linear
from proxfed.problems.linear.passes import Passes
from proxfed.problems.linear.products import Products
from proxfed.problems.linear.sparse_products import SparseProducts
from proxfed.problems.losses import Huber

pytest.importorskip("numba")
from proxfed.problems.linear import kernels
from proxfed.problems.linear.fused import Fused
from proxfed.regularisers import Zero

LOSSES = ("squared", Huber(0.6), "poisson", "logistic", "cross_entropy", "one_hot")
ROUNDING = {torch.float64: 2e-14, torch.float32: 1e-5}


def problem(loss, sizes, p=5, weighted=False, sparse=False, seed=0, **options) -> Linear:
    rng = np.random.default_rng(seed)
    N, classes = sum(sizes), 3 if loss in ("cross_entropy", "one_hot") else None
    draw = {"logistic": lambda: np.sign(rng.normal(size=N)), "poisson": lambda: rng.poisson(2.0, N).astype(float)}
    b = rng.integers(0, 3, N) if classes else draw.get(str(loss), lambda: rng.normal(size=N))()
    A = rng.normal(size=(N, p)) * (rng.random((N, p)) < 0.4)
    weights = rng.integers(0, 3, N) + (np.arange(N) == np.repeat(np.cumsum(sizes) - 1, sizes)) if weighted else None
    data = Federated(SparseRows.of(A) if sparse else A, b, sizes, classes=classes, sample_weights=weights)
    return Linear(data, loss, **options)


def both_ways(p: Linear) -> tuple[Passes, Passes]:
    """(compiled, torch)"""
    return Fused(p), (SparseProducts if isinstance(p.samples, SparseRows) else Products)()


def close(a, b, dtype) -> None:
    a, b = np.asarray(a, float), np.asarray(b, float)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0.0) <= ROUNDING[dtype] * max(1.0, np.abs(b).max(initial=0.0))


@given(
    loss=st.sampled_from(LOSSES),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    p=st.integers(1, 40),
    weighted=st.booleans(),
    sparse=st.booleans(),
    intercept=st.booleans(),
    dtype=st.sampled_from(list(ROUNDING)),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_ways_agree_to_rounding(loss, sizes, p, weighted, sparse, intercept, dtype, shared, seed) -> None:
    problem_ = problem(loss, sizes, p, weighted, sparse, seed, intercept=intercept, dtype=dtype, l2=0.3)
    n, rng = len(sizes), np.random.default_rng(seed)
    x = torch.tensor(rng.normal(size=(n, problem_.d)) / p**0.5, dtype=dtype)
    x = x[0] if shared else x
    one, other = both_ways(problem_)
    for ids in (range(n), range(n - 1), rng.permutation(n)):
        at = x if shared else x[: len(ids)]
        f, g = one.full(problem_, ids, at, values=True, gradients=True)
        assert f.dtype == g.dtype == dtype
        expected = other.full(problem_, ids, at, values=True, gradients=True)
        close(f, expected.values, dtype)
        close(g, expected.gradients, dtype)
        assert torch.equal(one.full(problem_, ids, at, values=True).values, f)
        assert torch.equal(one.full(problem_, ids, at, gradients=True).gradients, g)
    rows = problem_.offsets[:-1, None] + rng.integers(0, problem_.sizes[:, None], (n, 33))
    close(one.minibatch(problem_, rows, x), other.minibatch(problem_, rows, x), dtype)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_client_does_not_depend_on_blocks_threads_or_company(loss, sparse, monkeypatch) -> None:
    """To the bit, also where its samples are shared out over threads."""
    monkeypatch.setattr(tuning, "PARALLEL_READ", 0)
    p = problem(loss, (50, 3, 90, 16), sparse=sparse, intercept=True)
    x = torch.tensor(np.random.default_rng(1).normal(size=(4, p.d)))
    one = Fused(p)
    one.chunk = 16
    f, g = one.full(p, range(4), x, True, True)
    for ids in ([2], [3, 0], range(1, 3)):
        assert torch.equal(one.full(p, ids, x[list(ids)], gradients=True).gradients, g[list(ids)])
    torch.set_num_threads(2)
    try:
        assert len(one._shares(p, one._tasks_of(p, np.arange(4), False))) == 2
        again = one.full(p, range(4), x, True, True)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(again.values, f)
    assert torch.equal(again.gradients, g)
    one.chunk = 1000
    close(one.full(p, range(4), x, gradients=True).gradients, g, torch.float64)


def test_samples_are_shared_out_evenly(monkeypatch) -> None:
    monkeypatch.setattr(tuning, "PARALLEL_READ", 0)
    p = problem("squared", (100, 1, 1, 98))
    one = Fused(p)
    torch.set_num_threads(2)
    try:
        shares = one._shares(p, one._tasks_of(p, np.arange(4), False))
    finally:
        torch.set_num_threads(1)
    assert shares == [slice(0, 1), slice(1, 4)]


def test_exp_and_log_are_right_to_the_last_place_or_two() -> None:
    from numba import njit

    @njit
    def each(f, z, out):
        for i in range(len(z)):
            out[i] = f(z[i])

    wide, unit = np.linspace(-708, 709, 200_001), np.concatenate([np.linspace(0, 1, 50_001), 10.0 ** -np.arange(300.0)])
    for ours, numpys, z in ((kernels.exp, np.exp, wide), (kernels.log1p, np.log1p, unit)):
        each(ours, z, out := np.empty_like(z))
        exact = numpys(z.astype(np.longdouble))
        assert float((np.abs(out - exact) / np.maximum(exact, 1e-320)).max()) < 2 * np.finfo(float).eps
    each(kernels.exp, np.array([np.nan, np.inf, -np.inf, 710.0]), out := np.empty(4))
    assert np.array_equal(out, [np.nan, np.inf, 0.0, np.inf], equal_nan=True)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_nan_and_large_scores_are_not_hidden(loss) -> None:
    p = problem(loss, (20,))
    one, other = both_ways(p)
    x = torch.full((p.d,), torch.nan, dtype=torch.float64)
    f, g = one.full(p, range(1), x, True, True)
    assert bool(f.isnan().all())
    assert bool(g.isnan().all())
    x = 1e5 * torch.tensor(np.random.default_rng(0).normal(size=p.d))
    assert torch.allclose(one.full(p, range(1), x, True).values, other.full(p, range(1), x, True).values, rtol=1e-12)
    a, b = (way.full(p, range(1), x, gradients=True).gradients for way in (one, other))
    assert torch.allclose(a, b, rtol=1e-12, equal_nan=True)


def test_full_gradients_are_shared_out_over_threads_by_samples(monkeypatch) -> None:
    """Few parameters, many samples: the cohort is cut into as many blocks as there are threads."""
    p = problem("logistic", (40,) * 6)
    run = run_of(p + Zero(), FedAvg(0.1, 2), Stacked(p.n, p.d))
    torch.set_num_threads(2)
    try:
        assert len(run.blocks(range(6))) == 1
        monkeypatch.setattr(tuning, "PARALLEL_READ", 6 * p.gradient_size)
        assert [len(block) for block in run.blocks(range(6))] == [3, 3]
        assert p.gradient_size == 40 * 5
        assert replace(p, batch=8).gradient_size == 8 * 5
    finally:
        torch.set_num_threads(1)


# ---- local steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("loss", ["squared", "logistic", "cross_entropy"])
@pytest.mark.parametrize("options", [{}, {"l2": 0.1, "intercept": True}, {"sparse": True}, {"weighted": True}], ids=str)
@pytest.mark.parametrize(("threads", "ahead"), [(1, 1 << 20), (2, 30)])
def test_many_local_steps_are_one_after_the_other_to_the_bit(monkeypatch, dtype, loss, options, threads, ahead) -> None:
    monkeypatch.setattr(linear, "AHEAD", ahead)
    monkeypatch.setattr(tuning, "PARALLEL_READ", 1)
    p = problem(loss, (30, 5, 80), p=13, batch=8, dtype=dtype, **options)
    f, y = p.local(1, range(3)), torch.from_numpy(np.random.default_rng(1).normal(size=(3, p.d))).to(dtype)
    expected = y.clone()
    for draw in range(2, 9):
        expected.sub_(f.grad(expected, draw), alpha=0.3)
    torch.set_num_threads(threads)
    try:
        f.descend(y, range(2, 9), 0.3)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(y, expected)


def test_rows_with_gaps_between_them_take_their_steps() -> None:
    p = problem("logistic", (30, 5), batch=4)
    f, wide = p.local(1, range(2)), torch.ones(2, 2 * p.d, dtype=torch.float64)
    y = torch.ones(2, p.d, dtype=torch.float64)
    f.descend(y, range(3), 0.1)
    f.descend(wide[:, : p.d], range(3), 0.1)
    assert torch.equal(wide[:, : p.d], y)
    assert (wide[:, p.d :] == 1).all()


# ---- which way is taken ----------------------------------------------------------------------------------------------


def test_the_way_is_chosen_by_what_is_there(monkeypatch) -> None:
    monkeypatch.delenv("PROXFED_KERNELS", raising=False)
    assert isinstance(problem("squared", (3,)).passes, Fused)
    assert versions()["kernels"].startswith("numba ")
    monkeypatch.setattr(machine, "_numba_is_there", lambda: False)
    assert isinstance(problem("squared", (3,)).passes, Products)
    assert isinstance(problem("squared", (3,), sparse=True).passes, SparseProducts)
    assert versions()["kernels"] == "torch"
    monkeypatch.setenv("PROXFED_KERNELS", "numba")
    with pytest.raises(InputError, match=r"^PROXFED_KERNELS = 'numba', but numba is not installed: pip install"):
        machine.kernels()


def test_the_way_can_be_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("PROXFED_KERNELS", "torch")
    assert isinstance(problem("squared", (3,)).passes, Products)
    monkeypatch.setenv("PROXFED_KERNELS", "jax")
    with pytest.raises(InputError, match=r"^PROXFED_KERNELS = 'jax' is not one of 'numba', 'torch'$"):
        machine.kernels()


@pytest.mark.parametrize(
    ("form", "classes", "way"), [(np.asarray, 20, Fused), (np.asarray, 21, Products), (SparseRows.of, 21, Fused)]
)
def test_many_outputs_of_dense_features_are_for_matrix_products(monkeypatch, form, classes, way) -> None:
    monkeypatch.delenv("PROXFED_KERNELS", raising=False)
    data = Federated(form(np.eye(3)), np.arange(3), [3], classes=classes)
    assert type(Linear(data, "cross_entropy").passes) is way


def test_losses_that_the_kernels_do_not_know_take_the_other_way() -> None:
    data = Federated(np.eye(3), np.array([1.0, 2.0, -3.0]), [3])
    assert isinstance(Linear(data, "cox").passes, Products)


def test_a_numba_that_cannot_be_imported_is_said(monkeypatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("Numba needs NumPy 2.5 or less")

    monkeypatch.setattr(machine, "import_module", broken)
    machine._numba_is_there.cache_clear()
    try:
        with pytest.warns(UserWarning, match="more slowly: Numba needs NumPy"):
            assert machine.kernels() == "torch"
    finally:
        machine._numba_is_there.cache_clear()


@pytest.mark.slow
def test_where_nothing_can_be_written_it_is_compiled_each_time(tmp_path) -> None:
    code = (
        "from proxfed.problems.linear import kernels; import numpy as np; out = np.zeros((1, 1)); "
        "kernels.add_up(np.ones((2, 1)), np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]), out); print(out[0, 0])"
    )
    source = Path(proxfed.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(source), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "2.0\n"
