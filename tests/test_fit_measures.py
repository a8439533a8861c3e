"""Measures against scikit-learn and against loops over all pairs; intervals that are keyed and cover."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from proxfed.data.survival import survival_labels
from proxfed.errors import InputError
from proxfed.fit import metrics as ms
from proxfed.fit.judge import judge


def two_classes(m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    s = np.round(rng.normal(size=m) * 2, 1)  # with ties
    b = np.where(ms.probability(0.7 * s + 0.3) > rng.random(m), 1.0, -1.0)
    b[:2] = 1, -1
    return s, b


@given(st.integers(5, 60), st.integers(0, 1000))
def test_two_classes_are_judged_as_by_scikit_learn(m, seed) -> None:
    s, b = two_classes(m, seed)
    p = 1 / (1 + np.exp(-s))
    assert ms.auc(s, b) == pytest.approx(metrics.roc_auc_score(b, s), abs=1e-12)
    assert ms.log_loss(s, b) == pytest.approx(metrics.log_loss(b, p), rel=1e-10)
    assert ms.brier(s, b) == pytest.approx(metrics.brier_score_loss(b, p, pos_label=1), rel=1e-10)
    assert ms.TWO_CLASSES["accuracy"](s[:, None], b) == metrics.accuracy_score(b, np.where(s > 0, 1, -1))


@given(st.integers(8, 60), st.integers(0, 1000))
def test_several_classes_are_judged_as_by_scikit_learn(m, seed) -> None:
    rng = np.random.default_rng(seed)
    s, b = rng.normal(size=(m, 4)), np.concatenate([np.arange(4), rng.integers(0, 4, m - 4)])
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    assert ms.class_log_loss(s, b) == pytest.approx(metrics.log_loss(b, p), rel=1e-10)
    assert ms.class_auc(s, b) == pytest.approx(metrics.roc_auc_score(b, p, multi_class="ovr"), abs=1e-12)
    assert ms.class_brier(s, b) == pytest.approx(np.mean([((q - np.eye(4)[k]) ** 2).sum() for q, k in zip(p, b)]))  # noqa: B905


def test_numbers_and_counts_are_judged_as_by_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    s, b = rng.normal(size=40), rng.poisson(2, 40).astype(float)
    assert ms.poisson_deviance(s, b) == pytest.approx(metrics.mean_poisson_deviance(b, np.exp(s)), rel=1e-12)
    assert ms.r2(s, b) == pytest.approx(metrics.r2_score(b, s), rel=1e-12)
    assert ms.NUMBERS["deviance"](s[:, None], b) == pytest.approx(metrics.mean_squared_error(b, s), rel=1e-12)


def test_calibration_is_a_logistic_regression_on_the_scores() -> None:
    s, b = two_classes(400, 3)
    line = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(s[:, None], b)
    intercept, slope = ms.calibration(s, b)
    assert slope == pytest.approx(line.coef_[0, 0], abs=1e-5)
    assert float(np.mean(ms.probability(s + intercept))) == pytest.approx(np.mean(b > 0), abs=1e-10)
    assert 0.5 < slope < 0.9
    perfect = ms.calibration(np.arange(-5.0, 5), np.sign(np.arange(-5, 5) + 0.5))
    assert math.isnan(perfect.slope)  # infinite: the classes are apart


def test_the_calibration_curve_holds_every_sample_once() -> None:
    s, b = two_classes(203, 4)
    curve = ms.calibration_curve(s, b, 10)
    assert sum(part.samples for part in curve) == 203
    assert max(part.samples for part in curve) < 40
    assert sum(part.samples * part.observed for part in curve) == pytest.approx((b > 0).sum())
    assert sum(part.samples * part.predicted for part in curve) == pytest.approx(ms.probability(s).sum())
    assert [part.predicted for part in curve] == sorted(part.predicted for part in curve)
    assert len(ms.calibration_curve(np.zeros(7), np.ones(7))) == 1


def harrell(s, times, events) -> tuple[float, int]:
    right, count = 0.0, 0
    for i, j in product(range(len(s)), repeat=2):
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j])):
            count += 1
            right += 1.0 if s[i] > s[j] else 0.5 if s[i] == s[j] else 0.0
    return right, count


@given(st.integers(1, 30), st.integers(0, 1000))
def test_concordance_is_that_of_a_loop_over_all_pairs(m, seed) -> None:
    rng = np.random.default_rng(seed)
    times, events, s = rng.integers(0, 8, m).astype(float), rng.integers(0, 2, m), rng.integers(0, 5, m).astype(float)
    assert tuple(ms.concordant(s, survival_labels(times, events))) == harrell(s, times, events)


def test_concordance_a_few_pairs_at_a_time(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    s, b = rng.normal(size=50), survival_labels(rng.integers(0, 20, 50), rng.integers(0, 2, 50))
    whole = ms.concordant(s, b)
    monkeypatch.setattr(ms, "PAIRS", 60)
    assert ms.concordant(s, b).all == whole.all
    assert ms.concordant(s, b).right == pytest.approx(whole.right)


def test_all_and_each_organisation() -> None:
    s, b = two_classes(120, 5)
    found = judge("logistic", s, b, [50, 40, 30], ["a", "b", "c"])
    assert list(found) == ["a", "b", "c", "all"]
    assert found["b"]["auc"].value == ms.auc(s[50:90], b[50:90])
    assert found["all"]["brier"].value == ms.brier(s, b)
    for row in found.values():
        for name in ("auc", "brier", "accuracy", "log_loss"):
            assert row[name].low < row[name].value < row[name].high
    assert found["all"]["auc"].high - found["all"]["auc"].low < found["c"]["auc"].high - found["c"]["auc"].low


def test_survival_is_compared_within_organisations_only() -> None:
    rng = np.random.default_rng(2)
    s, b = rng.normal(size=60), survival_labels(rng.integers(0, 20, 60), rng.integers(0, 2, 60))
    parts = [ms.concordant(s[:40], b[:40]), ms.concordant(s[40:], b[40:])]
    found = judge("cox", s, b, [40, 20], repetitions=20)
    assert found["all"]["concordance"].value == pytest.approx(sum(p.right for p in parts) / sum(p.all for p in parts))
    assert found["all"]["concordance"].value != ms.concordance(s, b)


def test_intervals_are_a_function_of_the_seed_and_of_the_organisation_alone() -> None:
    s, b = two_classes(90, 6)
    one, same, other = (judge("logistic", s, b, [50, 40], repetitions=30, seed=k) for k in (1, 1, 2))
    assert one == same
    assert one["0"]["auc"].value == other["0"]["auc"].value
    assert one["0"]["auc"].low != other["0"]["auc"].low
    alone = judge("logistic", s[:50], b[:50], [50], repetitions=30, seed=1)
    assert alone["0"] == one["0"]
    none = judge("logistic", s, b, [50, 40], repetitions=0)["all"]["auc"]
    assert none.value == one["all"]["auc"].value
    assert math.isnan(none.low)


def test_intervals_are_as_wide_as_theory_says() -> None:
    """Of a mean: 1.96 standard errors either way."""
    s, b = two_classes(2000, 7)
    found = judge("logistic", s, b, [2000], repetitions=400)["all"]["accuracy"]
    p = found.value
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(p * (1 - p) / 2000), rel=0.15)


def test_where_a_measure_has_no_meaning_it_is_nan() -> None:
    found = judge("logistic", np.array([0.1, 0.2, -0.3, 0.4]), np.array([1.0, 1.0, 1.0, -1.0]), [2, 2], repetitions=5)
    assert math.isnan(found["0"]["auc"].value)
    assert not math.isnan(found["all"]["auc"].value)
    assert math.isnan(ms.concordance(np.zeros(3), -np.ones(3)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sizes": [3, 3]}, "sizes = [3, 3] must be whole numbers >= 1 that add up to the 4 samples"),
        ({"labels": np.ones(3)}, "scores (4, 1) do not fit labels (3,)"),
        ({"names": ["a", "a"]}, "names = ['a', 'a'] must be 2 different ones, and none of them 'all'"),
        ({"names": ["a", "all"]}, "names = ['a', 'all'] must be 2 different ones, and none of them 'all'"),
        ({"repetitions": -1}, "repetitions = -1 must be a whole number >= 0"),
        ({"level": 95}, "level = 95 must be in (0, 1)"),
        ({"scores": np.array([1, 2, np.nan, 3])}, "scores: some are NaN or infinite"),
    ],
)
def test_refusals(change, sentence) -> None:
    with pytest.raises(InputError) as e:
        judge("logistic", **{"scores": np.zeros(4), "labels": np.ones(4), "sizes": [2, 2]} | change)
    assert str(e.value) == sentence
