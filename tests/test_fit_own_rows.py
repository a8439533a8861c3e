"""What an organisation answers: sums over its rows, whose derivatives are those of its values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed import Federated
from proxfed.data.sparse_rows import SparseRows
from proxfed.data.survival import survival_labels
from proxfed.fit.here import Here
from proxfed.fit.model import linear_model
from proxfed.fit.oracle import Part, Question, Traffic
from proxfed.fit.own_rows import own_rows
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber
from proxfed.problems.named_losses import find_loss

LOSSES = ["squared", Huber(0.7), "poisson", "logistic", "cross_entropy", "one_hot", "cox", Cox("efron")]
SIZES = [30, 25, 35]


def data(loss, weighted: bool = True) -> Federated:
    rng = np.random.default_rng(3)
    A = rng.normal(size=(90, 4))
    s = A[:, 0] + rng.normal(size=90)
    classes = None
    kind = find_loss(loss)
    if kind.classes:
        labels, classes = rng.integers(0, 3, 90), 3
    elif isinstance(kind, Cox):
        labels = survival_labels(np.ceil(3 * rng.exponential(np.exp(-s))), rng.random(90) < 0.7)
    else:
        labels = {"logistic": np.where(s > 0, 1.0, -1.0), "poisson": np.round(np.exp(s))}.get(loss, 2 * s)
    return Federated(A, labels, SIZES, classes=classes, sample_weights=rng.random(90) + 0.3 if weighted else None)


def here(loss, **options) -> Here:
    d, kind = data(loss), find_loss(loss)
    return Here(own_rows(d, kind, intercept=kind.separate, **options), ("a", "b", "c"))


def fold_of(k: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, k, 90)


def point(loss) -> torch.Tensor:
    d = here(loss).own[0].d
    return torch.tensor(np.random.default_rng(2).normal(size=d) / 3)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_sums_are_those_of_the_problem(loss, uniform) -> None:
    kind = find_loss(loss)
    f = linear_model(data(loss), loss, intercept=kind.separate, weighting="uniform" if uniform else "size").f
    x, all_of = point(loss), here(loss, uniform=uniform)
    total = float(all_of.counts().sum())
    assert total == pytest.approx(3 if uniform else data(loss).sample_weights.sum())
    (found,) = all_of.ask([Question(x)])
    assert found.value / total == pytest.approx(float(f.value(x)), rel=1e-12)
    assert torch.allclose(found.gradient / total, f.gradient(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("part", [Part(), Part(1), Part(1, held_out=True)], ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_hessians_are_the_slopes_of_gradients_and_gradients_of_values(loss, part) -> None:
    x, all_of = point(loss), here(loss, folds=4, fold=fold_of())
    factors = None if loss in ("cox", Cox("efron")) else torch.linspace(0.5, 2, all_of.counts().shape[1]).double()
    asked = all_of.weighing(factors)
    (at,) = asked.ask([Question(x, part, 2)])
    step = 1e-5
    for j in range(len(x)):
        e = torch.zeros_like(x)
        e[j] = step
        up, down = asked.ask([Question(x + e, part), Question(x - e, part)])
        assert float(at.gradient[j]) == pytest.approx((up.value - down.value) / (2 * step), abs=1e-6)
        assert torch.allclose(at.hessian[j], (up.gradient - down.gradient) / (2 * step), atol=2e-6)
    assert torch.equal(at.hessian, at.hessian.mT)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_folds_add_up(loss) -> None:
    x, all_of = point(loss), here(loss, folds=4, fold=fold_of())
    for k in range(4):
        whole, train, out = all_of.ask([Question(x, part, 2) for part in (Part(), Part(k), Part(k, True))])
        assert train.value + out.value == pytest.approx(whole.value, rel=1e-12)
        assert torch.allclose(train.gradient + out.gradient, whole.gradient, atol=1e-11)
        assert torch.allclose(train.hessian + out.hessian, whole.hessian, atol=1e-11)
    counts = all_of.counts()
    assert float(counts.sum()) == pytest.approx(data(loss).sample_weights.sum())
    assert counts.shape == (
        4,
        {"cross_entropy": 3, "one_hot": 3}.get(loss, 2 if loss in ("cox", "logistic", Cox("efron")) else 1),
    )


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_hessians_of_some_columns_are_parts_of_the_whole(loss) -> None:
    x, all_of = point(loss), here(loss)
    columns = torch.tensor([0, 2, len(x) - 1])
    whole, some = all_of.ask([Question(x, order=2), Question(x, order=2, columns=columns)])
    assert torch.allclose(some.hessian, whole.hessian[columns[:, None], columns], atol=1e-11)


@pytest.mark.parametrize("loss", ["squared", "one_hot"])
def test_gram_matrices_give_value_gradient_and_hessian(loss) -> None:
    x, all_of = point(loss), here(loss, folds=4, fold=fold_of())
    grams = all_of.grams()
    q, k = grams[0].products.shape
    X = torch.cat([x[: q * (k - 1)].view(q, k - 1), x[q * (k - 1) :, None]], 1)
    for number, g in enumerate(grams):
        (direct,) = all_of.ask([Question(x, Part(number, True), 2)])
        value = (torch.trace(X @ g.matrix @ X.mT) + g.square) / 2 - (X * g.products).sum()
        assert float(value) == pytest.approx(direct.value, rel=1e-11)
        slope = X @ g.matrix - g.products
        assert torch.allclose(torch.cat([slope[:, :-1].flatten(), slope[:, -1]]), direct.gradient, atol=1e-11)
        assert torch.allclose(direct.hessian[: k - 1, : k - 1], g.matrix[:-1, :-1], atol=1e-11)


def test_sparse_rows_answer_the_same() -> None:
    d = data("logistic")
    A = np.where(np.abs(d.features) > 0.8, d.features, 0)
    pair = [
        Here(own_rows(Federated(rows, d.labels, SIZES), find_loss("logistic"), intercept=True), ("a", "b", "c"))
        for rows in (A, SparseRows.of(A))
    ]
    one, two = (each.ask([Question(point("logistic"), order=2)])[0] for each in pair)
    assert one.value == pytest.approx(two.value, rel=1e-14)
    assert torch.allclose(one.hessian, two.hessian, atol=1e-12)


def test_what_travels_is_counted_once_for_each_point() -> None:
    all_of, x = here("logistic", folds=4, fold=fold_of()), point("logistic")
    n, d = 3, 5
    all_of.counts()
    assert all_of.traffic == Traffic(1, n * 8 * 4 * 2, 0)
    all_of.ask([Question(x, Part(k), 2) for k in range(4)] + [Question(x, Part(0, True), 0)])
    one = 8 * (4 * (1 + d + d * (d + 1) // 2) + 1)
    assert all_of.weighing(None).traffic == Traffic(2, n * (64 + one), n * 8 * d)
