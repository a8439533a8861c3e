"""Cross-validation: the folds, their losses by hand, the rules, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.linear_model import LassoCV

from proxfed import Federated, Linear
from proxfed.data.survival import survival_labels
from proxfed.errors import InputError
from proxfed.fit.cross_validate import CrossValidation, cross_validate, fold_of_rows
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver, Traffic
from proxfed.regularisers import L1, SquaredL2, Zero
from proxfed.types import Problem

EXACT = Solver(1e-10)


class Fold(NamedTuple):
    """What is fitted to, and what is held out."""

    train: Problem[Linear]
    held_out: np.ndarray


def folds_of(p: Problem[Linear], folds, seed: int) -> Iterator[Fold]:
    fold = fold_of_rows(p.f, folds, seed)
    for k in range(fold.max() + 1):
        yield Fold(Problem(p.f.over_rows(p.f.data.keep(np.flatnonzero(fold != k))), p.h), fold == k)


EVERYWHERE = {"solver": EXACT, "fold_tolerance": 1e-10}


def data(loss: str = "squared", sizes=(40, 30, 20), weighted: bool = False) -> Federated:
    rng = np.random.default_rng(1)
    N = sum(sizes)
    A = rng.normal(size=(N, 6))
    s = A[:, 0] - A[:, 1] / 2 + rng.normal(size=N)
    labels = {"squared": s, "logistic": np.where(s > 0.8, 1.0, -1.0)}.get(loss)
    if loss == "cox":
        labels = survival_labels(np.ceil(4 * rng.exponential(np.exp(-s))), rng.random(N) < 0.7)
    return Federated(A, labels, list(sizes), sample_weights=rng.random(N) + 0.2 if weighted else None)


def model(loss: str = "squared", penalty=None, **options) -> Problem[Linear]:
    return linear_model(data(loss, **options), loss, penalty or L1(1.0))


@pytest.mark.parametrize(("folds", "weighted"), [(3, True), ("organisation", False)])
def test_the_curve_is_that_of_fits_to_the_other_rows(folds, weighted) -> None:
    p = model("logistic", weighted=weighted)
    found = cross_validate(p, folds, 3, 0.05, **EVERYWHERE)
    w = np.ones(90) if p.f.data.sample_weights is None else p.f.data.sample_weights
    for k, fold in enumerate(folds_of(p, folds, 0)):
        out = fold.held_out
        train = Federated(p.f.data.features[~out], p.f.data.labels[~out], [int((~out).sum())], sample_weights=w[~out])
        for j, weight in enumerate(found.weights):
            x = EXACT.fit(linear_model(train, "logistic", L1(weight))).x.numpy()
            s = p.f.data.features[out] @ x[:-1] + x[-1]
            loss = np.average(np.log1p(np.exp(-p.f.data.labels[out] * s)), weights=w[out])
            assert found.held_out[k, j] == pytest.approx(loss, rel=1e-6)
        assert found.fold_weights[k] == pytest.approx(w[out].sum() / w.sum())


def test_it_chooses_as_scikit_learn_does_on_the_samefolds_of() -> None:
    p = model()
    found = cross_validate(p, 4, 6, 0.02, **EVERYWHERE)
    splits = [(np.flatnonzero(~f.held_out), np.flatnonzero(f.held_out)) for f in folds_of(p, 4, 0)]
    theirs = LassoCV(alphas=found.weights, cv=splits, tol=1e-12, max_iter=100_000).fit(
        p.f.data.features, p.f.data.labels
    )
    assert 2 * found.held_out == pytest.approx(theirs.mse_path_.T, rel=1e-6)
    assert found.weights[found.best] == pytest.approx(theirs.alpha_)
    assert found.choose().x.numpy() == pytest.approx(np.append(theirs.coef_, theirs.intercept_), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("loss", ["logistic", "squared", "cox"])
def test_folds_hold_every_row_once_and_their_share_of_every_class(loss, count) -> None:
    p = model(loss)
    held = np.array([fold.held_out for fold in folds_of(p, count, 3)])
    assert (held.sum(0) == 1).all()
    strata = np.zeros(90) if loss == "squared" else np.sign(p.f.data.labels)
    for a, b in zip(p.f.data.offsets, p.f.data.offsets[1:], strict=False):
        sizes = held[:, a:b].sum(1)
        assert sizes.max() - sizes.min() <= 1
        for value in np.unique(strata):
            share = (held[:, a:b] & (strata[a:b] == value)).sum(1)
            assert share.max() - share.min() <= 1
    assert not np.array_equal(held, [fold.held_out for fold in folds_of(p, count, 4)])


def test_an_organisation_draws_its_folds_by_itself() -> None:
    p = model("logistic")
    other = p.f.data.keep(np.r_[0:40, 50:90])  # fewer rows of the second
    one, two = ([f.held_out[:40] for f in folds_of(Problem(p.f.over_rows(d), Zero()), 5, 0)] for d in (p.f.data, other))
    assert np.array_equal(one, two)


def test_leaving_an_organisation_out() -> None:
    p = model("logistic")
    folds = list(folds_of(p, "organisation", 0))
    assert [len(fold.train.f.data) for fold in folds] == [2, 2, 2]
    assert [int(fold.held_out.sum()) for fold in folds] == [40, 30, 20]
    assert np.array_equal(folds[1].train.f.data.features, np.delete(p.f.data.features, np.s_[40:70], 0))


def test_an_organisation_with_few_rows_sits_out_where_it_has_none() -> None:
    p = model("squared", sizes=(1, 30, 2))
    sizes = sorted(len(fold.train.f.data) for fold in folds_of(p, 5, 0))
    assert sizes == [2, 3, 3, 3, 3]
    assert np.isfinite(cross_validate(p, 5, 3, 0.1).held_out).all()


def test_survival_is_judged_by_what_the_held_out_rows_add() -> None:
    p = model("cox", SquaredL2(1.0))
    found = cross_validate(p, 3, [1.0, 0.1], **EVERYWHERE)
    for k, fold in enumerate(folds_of(p, 3, 0)):
        x = EXACT.fit(fold.train.with_h(SquaredL2(0.1))).x
        value = lambda q: len(q.f.data.labels) * float(q.f.value(x))  # noqa: B023
        assert found.held_out[k, 1] == pytest.approx((value(p) - value(fold.train)) / fold.held_out.sum(), rel=1e-6)
    left = cross_validate(p, "organisation", [0.1], **EVERYWHERE)
    own = p.f.over_rows(p.f.data.keep(np.arange(40)))
    x = EXACT.fit(p.f.over_rows(p.f.data.keep(np.arange(40, 90))) + SquaredL2(0.1)).x
    assert left.held_out[0, 0] == pytest.approx(float(own.local(0, range(1)).value(x)), rel=1e-6)


def test_the_rules() -> None:
    losses = np.array([[5.0, 1.6, 1.0, 1.4], [5.0, 2.2, 2.0, 2.2], [5.0, 0.9, 0.6, 0.3]])
    found = CrossValidation(np.array([8.0, 4.0, 2.0, 1.0]), losses, np.full(3, 1 / 3), list("abcd"), Traffic())
    assert found.mean == pytest.approx(losses.mean(0))
    assert found.standard_error == pytest.approx(losses.std(0, ddof=1) / np.sqrt(3))
    assert (found.best, found.choose("best")) == (2, "c")
    assert (found.one_se, found.choose("one_se")) == (1, "b")  # 1.57 is within 0.42 of 1.2, and 5 is not
    with pytest.raises(InputError, match=r"^rule = 'least' is not one of 'best', 'one_se'$"):
        found.choose("least")


def test_all_exchanges_are_counted_and_the_same_every_time() -> None:
    p, seen = model("logistic"), []
    found = cross_validate(p, 3, 4, 0.1, Solver(1e-6), watch=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 3) for k in range(1, 4)]
    again = cross_validate(p, 3, 4, 0.1, Solver(1e-6))
    assert again.traffic == found.traffic
    assert np.array_equal(again.held_out, found.held_out)
    assert torch.equal(again.choose("one_se").x, found.choose("one_se").x)
    n, d = 3, p.f.d
    least = 8 * n * (3 * 2 + 12)  # classes by fold, and a held-out loss of every model
    assert found.traffic.bytes_up > least + 8 * n * found.traffic.rounds
    assert found.traffic.rounds < 25
    assert found.traffic.bytes_down % (8 * n * d) == 0


@pytest.mark.parametrize("folds", [5, "organisation"])
def test_squared_loss_takes_one_exchange_and_a_final_model_none(folds) -> None:
    p = model("squared")
    found = cross_validate(p, folds, 30, 1e-3, Solver(1e-8))
    count, k = len(found.held_out), p.f.d
    assert found.traffic == Traffic(1, 3 * 8 * count * (2 + k + k * (k + 1) // 2), 0)
    assert EXACT.after(found.objective, p.with_h(p.h.with_weight(found.weights[9])), found.fits[9]).traffic == Traffic()


def test_many_weights_and_folds_take_few_rounds() -> None:
    for loss in ("logistic", "cox"):
        assert cross_validate(model(loss), 5, 30, 1e-3, Solver(1e-6)).traffic.rounds <= 30


@pytest.mark.parametrize(
    ("folds", "sizes", "sentence"),
    [
        (1, (40, 30), "folds = 1 must be 'organisation', or a whole number from 2 to the 70 rows"),
        ("client", (40, 30), "folds = 'client' must be 'organisation', or a whole number from 2 to the 70 rows"),
        ("organisation", (70,), "folds = 'organisation' needs at least two organisations, and there is one"),
    ],
)
def test_folds_that_make_no_sense(folds, sizes, sentence) -> None:
    with pytest.raises(InputError) as e:
        cross_validate(model(sizes=sizes), folds)
    assert str(e.value) == sentence


def test_other_refusals() -> None:
    with pytest.raises(InputError, match=r"^problem = 3: only linear models are cross-validated$"):
        cross_validate(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^SquaredL2 has no weight from which on zero is the solution$"):
        cross_validate(model("squared", SquaredL2(1.0)))


def test_a_class_in_one_fold_alone_is_refused_but_not_censored_times() -> None:
    A, marks = np.random.default_rng(0).normal(size=(12, 2)), np.repeat([-1.0, 1.0], 6)
    with pytest.raises(InputError, match=r"^folds = 'organisation': fold 0 has all samples of a class, so without it"):
        cross_validate(linear_model(Federated(A, marks, [6, 6]), "logistic", L1(1.0)), "organisation")
    times = marks * np.arange(1, 13)
    times[0] *= -1  # without an event there is no fit either
    model = linear_model(Federated(A, times, [6, 6]), "cox", L1(1.0))
    assert len(cross_validate(model, "organisation", 2, 0.5).held_out) == 2
