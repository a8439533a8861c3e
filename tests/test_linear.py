"""Linear models: values and gradients against autograd, client by client; smoothness against Hessians."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from proxfed import Federated, Linear, keyed_random
from proxfed.errors import InputError
from proxfed.problems import empirical_risk
from proxfed.problems.linear import products
from proxfed.regularisers import L1, MCP, Box, Zero

from support import toy_problems as toy

N = toy.N
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6}


def f_of(p, i, x, rows=None):
    """f_i(x) by torch's own functions, over all samples of client i or over these."""
    A, b = p.f.data.client(i)
    A, b = (A, b) if rows is None else (A[rows], b[rows])
    A = torch.as_tensor(A, dtype=x.dtype)
    q = toy.CLASSES if toy.name_of(p) == "softmax" else 1
    W = x[: q * A.shape[1]].reshape(q, -1)
    scores = F.linear(A, W, x[q * A.shape[1] :] if p.f.intercept else None)
    if toy.name_of(p) == "softmax":
        loss = F.cross_entropy(scores, torch.as_tensor(b))
    elif toy.name_of(p) == "logistic":
        loss = F.soft_margin_loss(scores[:, 0], torch.as_tensor(b, dtype=x.dtype))
    else:
        loss = F.mse_loss(scores[:, 0], torch.as_tensor(b, dtype=x.dtype)) / 2
    return loss + p.f.l2 / 2 * x.square().sum()


def gradient_of(p, i, x, rows=None):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f_of(p, i, x, rows), x)[0]


def point(p, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=(*shape, p.f.d)), dtype=p.f.dtype)


@pytest.fixture(params=toy.LOSSES)
def loss(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["through 0", "intercept"])
def intercept(request):
    return request.param


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("sizes", [(12,) * N, (1, 9, 1, 40, 9)], ids=str)
@pytest.mark.parametrize("ids", [range(N), range(1, 4), np.array([4, 0, 2])], ids=str)
def test_values_and_gradients_are_those_of_autograd(loss, intercept, ids, sizes, l2, dtype):
    p = toy.problem(loss, Zero(), sizes, l2=l2, intercept=intercept, dtype=dtype)
    f, shared, own = p.f.local(1, ids), point(p), point(p, len(ids))
    for x, rows in ((shared, [shared] * len(ids)), (own, own)):
        before = x.clone()
        values = torch.stack([f_of(p, i, y) for i, y in zip(ids, rows, strict=True)])
        gradients = torch.stack([gradient_of(p, i, y) for i, y in zip(ids, rows, strict=True)])
        assert f.full_grad(x).dtype == f.value(x).dtype == dtype
        assert toy.gap(f.value(x), values) < TOLERANCE[dtype]
        assert toy.gap(f.full_grad(x), gradients) < TOLERANCE[dtype]
        assert toy.gap(f.grad(x, 3), gradients) < TOLERANCE[dtype]
        assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", [(12,) * N, toy.RAGGED], ids=str)
@pytest.mark.parametrize("ids", [range(N), [4, 0, 2]], ids=str)
@pytest.mark.parametrize("batch", [1, 5, 50])
def test_stochastic_gradients_are_those_of_the_drawn_samples(loss, intercept, ids, sizes, batch, dtype):
    """Samples are drawn with replacement; 50 out of at most 40 hold some twice, and they count twice."""
    p = toy.problem(loss, Zero(), sizes, intercept=intercept, dtype=dtype, batch=batch)
    x, t, seed = point(p, len(ids)), 4, 7
    for draw in (0, 1):
        g = p.f.local(t, ids, seed).grad(x, draw)
        for i, y, ours in zip(ids, x, g, strict=True):
            key = keyed_random.fold(keyed_random.keys(seed, "minibatch", [i], t), draw)
            rows = keyed_random.integers(key, batch, sizes[i])[0]
            assert rows.max() < sizes[i]
            assert batch <= max(sizes) or len(set(rows)) < batch
            assert toy.gap(ours, gradient_of(p, i, y, rows)) < TOLERANCE[dtype]


def test_a_minibatch_depends_on_seed_round_client_and_draw_alone(loss):
    p = toy.problem(loss, sizes=toy.RAGGED, batch=4)
    x = point(p)
    g = p.f.local(3, range(N), seed=1).grad(x, 2)
    alone = torch.cat([p.f.local(3, [i], seed=1).grad(x, 2) for i in range(N)])
    assert toy.gap(g, alone) < 1e-15
    assert torch.equal(g, p.f.local(3, range(N), seed=1).grad(x, 2))
    others = [
        p.f.local(4, range(N), 1).grad(x, 2),
        p.f.local(3, range(N), 2).grad(x, 2),
        p.f.local(3, range(N), 1).grad(x, 3),
    ]
    for other in others:
        assert (other != g).any(1).all()


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("ids", [range(0, N, 2), range(N - 1, -1, -1), [4, 0, 2], np.array([1, 1]), (3,)], ids=str)
def test_a_block_is_any_sequence_of_clients(loss, ids, batch):
    p = toy.problem(loss, sizes=toy.RAGGED, batch=batch)
    x = point(p)
    everybody, block = p.f.local(1, range(N)), p.f.local(1, ids)
    who = list(ids)
    for _ in range(2):  # what is remembered of one block is not used for another
        assert toy.gap(block.grad(x, 0), everybody.grad(x, 0)[who]) < 1e-15
        assert toy.gap(block.full_grad(x), everybody.full_grad(x)[who]) < 1e-15
        assert toy.gap(block.value(x), everybody.value(x)[who]) < 1e-15


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("nobody", [range(0), range(2, 2), [], np.empty(0, np.int64)], ids=str)
def test_a_block_may_be_empty(loss, nobody, batch):
    p = toy.problem(loss, sizes=toy.RAGGED, batch=batch)
    f = p.f.local(1, nobody)
    for x in (point(p), point(p, 0)):
        assert f.grad(x, 0).shape == f.full_grad(x).shape == (0, p.f.d)
        assert f.value(x).shape == (0,)
    assert f.spread(point(p)).shape == (0, p.f.d)


@pytest.mark.parametrize("sizes", [(12,) * N, toy.RAGGED], ids=str)
@pytest.mark.parametrize("numbers", [1, 150, 700])
def test_however_many_numbers_fit_into_the_cache(monkeypatch, loss, sizes, numbers):
    """Also clients that are larger than it by themselves."""
    monkeypatch.setenv("PROXFED_KERNELS", "torch")
    p = replace(toy.problem(loss, sizes=sizes, batch=4))
    x = point(p, N)
    f = p.f.local(1, range(N))
    full, value, some, constants = f.full_grad(x), f.value(x), f.grad(x, 0), p.f.smoothness()
    monkeypatch.setattr(empirical_risk, "CACHE", numbers)
    monkeypatch.setattr(products, "GATHER", numbers)
    p = replace(p)  # nothing is remembered
    f = p.f.local(1, range(N))
    assert toy.gap(f.full_grad(x), full) < 1e-15
    assert toy.gap(f.value(x), value) < 1e-15
    assert toy.gap(f.grad(x, 0), some) < 1e-15
    assert toy.gap(p.f.smoothness(), constants) < 1e-14


@pytest.mark.parametrize("batch", [None, 3])
def test_rows_may_lie_in_memory_in_any_order(loss, intercept, batch):
    p = toy.problem(loss, sizes=toy.RAGGED, intercept=intercept, batch=batch)
    x = point(p, N)
    f = p.f.local(1, range(N))
    for other in (x.T.contiguous().T, torch.stack([x, x], -1)[..., 0], x.flip(0).flip(0)):
        assert toy.gap(f.grad(other, 0), f.grad(x, 0)) < 1e-15
        assert toy.gap(f.value(other), f.value(x)) < 1e-15


def test_a_shared_point_is_spread_without_a_copy(loss):
    p = toy.problem(loss)
    x = point(p)
    rows = p.f.local(1, range(3)).spread(x)
    assert rows.shape == (3, p.f.d)
    assert torch.equal(rows, torch.stack([x] * 3))
    assert rows.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_smoothness_bounds_the_hessians(loss, intercept, l2, weighting):
    p = toy.problem(loss, Zero(), toy.RAGGED, p=4, l2=l2, intercept=intercept, weighting=weighting)
    L, L_f, mu, mu_min = p.f.smoothness()
    weights = np.full(N, 1 / N) if weighting == "uniform" else np.array(toy.RAGGED) / sum(toy.RAGGED)
    np.testing.assert_allclose(p.f.weights.numpy(), weights, rtol=0, atol=1e-16)
    largest = []
    for x in (torch.zeros(p.f.d, dtype=torch.float64), *(scale * point(p) for scale in (0.5, 3.0))):
        hessians = [torch.autograd.functional.hessian(lambda y, i=i: f_of(p, i, y), x) for i in range(N)]
        ends = torch.stack([torch.linalg.eigvalsh(H) for H in hessians])
        top, bottom = float(ends[:, -1].max()), float(ends[:, 0].min())
        spectrum = torch.linalg.eigvalsh(sum(w * H for w, H in zip(weights, hessians, strict=True)))
        largest.append((top, float(spectrum[-1])))
        assert top <= L * (1 + 1e-12)
        assert float(spectrum[-1]) <= L_f * (1 + 1e-12)
        assert float(spectrum[0]) >= mu - 1e-14
        assert bottom >= mu_min - 1e-14
        if loss == "least_squares":
            assert (top, *spectrum[[-1, 0]].tolist(), bottom) == pytest.approx((L, L_f, mu, mu_min), rel=1e-12)
    if loss != "softmax":  # attained: everywhere by least squares, at 0 by the logistic loss
        assert largest[0] == pytest.approx((L, L_f), rel=1e-12)
    assert L_f <= L * (1 + 1e-12)
    assert mu >= mu_min >= l2


def test_smoothness_is_computed_in_double_precision(loss):
    p = toy.problem(loss, dtype=torch.float32)
    assert p.f.smoothness() == pytest.approx(toy.problem(loss).f.smoothness(), rel=1e-6)


@pytest.mark.parametrize("h", [L1(0.02), Box(-0.1, 0.05), Zero()], ids=repr)
def test_solve_is_optimal_with_an_intercept_too(loss, intercept, h):
    p = toy.problem(loss, h, toy.RAGGED, intercept=intercept, weighting="size")
    x, s = p.solve(), 1 / p.f.smoothness().L_f
    gradient = sum(w * gradient_of(p, i, x) for i, w in enumerate(p.f.weights))
    assert float((x - h.prox(x - s * gradient, s)).norm() / s) < 1e-11


def test_solve_returns_the_dtype_of_the_problem(loss):
    low, high = toy.problem(loss, dtype=torch.float32).solve(), toy.problem(loss).solve()
    assert low.dtype == torch.float32
    assert toy.error(low.numpy(), high.numpy()) < 1e-6


def test_solve_refuses_a_regulariser_that_is_not_convex():
    with pytest.raises(InputError, match="not convex"):
        toy.problem(h=MCP(0.02, 8.0)).solve()


def test_the_start_is_zero_and_the_blocks_name_its_parts(loss, intercept):
    p = toy.problem(loss, intercept=intercept)
    q = toy.CLASSES if loss == "softmax" else 1
    assert not p.f.initial(0).any()
    assert [(b.name, b.start, b.stop, b.shape) for b in p.f.blocks] == [
        ("weight", 0, q * toy.D, (q, toy.D)),
        *[("bias", q * toy.D, q * toy.D + q, (q,))] * intercept,
    ]
    assert p.f.d == q * (toy.D + intercept)


def test_held_out_data_are_scored(loss, intercept):
    clients = toy.data(loss, (30, 30))
    test = clients.client(1)
    data = Federated.from_clients([clients.client(0)], test, clients.classes)
    p = Linear(data, toy.LOSSES[loss], intercept=intercept) + Zero()
    x = point(p)
    scores = p.f.evaluate(x)
    seen = Linear(Federated.from_clients([test], classes=clients.classes), toy.LOSSES[loss], intercept=intercept)
    assert scores["test_loss"] == pytest.approx(float(f_of(seen + Zero(), 0, x)), rel=1e-12)
    A, b = torch.tensor(test[0]), torch.tensor(test[1])
    q = p.f.blocks[0].shape[0]
    s = A @ x[: p.f.blocks[0].stop].view(q, -1).T + (x[p.f.blocks[0].stop :] if intercept else 0)
    if loss == "logistic":
        assert scores["accuracy"] == pytest.approx(float((s[:, 0].sign() == b).double().mean()))
    elif loss == "softmax":
        assert scores["accuracy"] == pytest.approx(float((s.argmax(1) == b).double().mean()))
    else:
        assert "accuracy" not in scores
    assert toy.problem(loss).f.evaluate(toy.problem(loss).start(0)) == {}


def test_logistic_scores_far_away_neither_overflow_nor_lose_the_loss():
    """log(1 + exp(1000)) is 1000."""
    data = Federated.from_clients([(np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0]))])
    p = Linear(data, toy.LOSSES["logistic"])
    f, x = p.local(0, range(1)), torch.tensor([1000.0], dtype=torch.float64)
    assert float(f.value(x)) == pytest.approx(500)
    assert float(f.full_grad(x)) == pytest.approx(0.5)


@pytest.mark.parametrize("options", [{"l2": -1.0}, {"weighting": "equal"}, {"batch": 0}], ids=str)
def test_refuses_what_makes_no_sense(options):
    with pytest.raises(InputError, match=next(iter(options))):
        toy.problem(**options)


@pytest.mark.parametrize(
    ("labels", "loss"), [((0.0, 1.0), "logistic"), ((0.5, 1.0), "logistic"), ((0.0, 1.0), "softmax")]
)
def test_refuses_labels_that_do_not_fit_the_loss(labels, loss):
    with pytest.raises(InputError, match="labels"):
        Linear(Federated.from_clients([(np.eye(2), np.array(labels))]), toy.LOSSES[loss])


@pytest.mark.parametrize("rows", [3, 1], ids=["tall", "wide"])
def test_features_whose_squares_overflow_are_refused_in_one_sentence(rows):
    A = np.full((rows, 2), 1e200)
    p = Linear(Federated(A, np.ones(rows), [rows]), toy.LOSSES["least_squares"])
    for ask in (p.smoothness, (p + Zero()).solve):
        with pytest.raises(InputError, match=r"^the features are so large that their squares overflow: scale them$"):
            ask()
