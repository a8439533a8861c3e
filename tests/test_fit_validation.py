"""Honest validation: units that folds hold out together, a nested choice, draws of the rows, measures without contrast
between organisations."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from proxfed.data.federated import Federated
from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit import metrics as ms
from proxfed.fit.card import card
from proxfed.fit.cross_validate import cross_validate
from proxfed.fit.folds import drawn_folds
from proxfed.fit.judge import judge
from proxfed.fit.model import linear_model
from proxfed.fit.nested import nested
from proxfed.fit.overview import contrast, measure_cells, sentences
from proxfed.fit.page import page
from proxfed.fit.resampling import Stability, optimism, refit_with, stability
from proxfed.fit.solve import Solver, objective_of
from proxfed.fit.validation import coarse_curve
from proxfed.problems.losses import Logistic, Squared
from proxfed.regularisers import L1
from proxfed.silos.protection.folds import folds as secret_folds
from proxfed.tables import parse_schema, read_frame
from proxfed.tables.table import Tables

from support.fitted import clinics
from support.tables import CLINICS

SOLVER = Solver(1e-6)


def of_two(rows: int = 120, p: int = 5, seed: int = 0, signal: float = 1.0) -> Any:
    """A sparse logistic problem of two organisations."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(rows, p))
    b = np.where(rng.random(rows) < ms.probability(signal * A[:, 0]), 1.0, -1.0)
    half = rows // 2
    data = Federated.from_clients([(A[:half], b[:half]), (A[half:], b[half:])])
    return linear_model(data, Logistic(), L1(0.03), intercept=True)


# ---- units ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(2, 6), st.integers(0, 99))
def test_a_unit_is_in_one_fold_here_and_at_a_site_and_folds_have_about_as_many_units(numbers, count, seed) -> None:
    units = np.array([f"patient {k}" for k in numbers])
    strata = np.random.default_rng(seed).integers(2, size=len(units))
    for fold in (
        drawn_folds(strata, count, seed, 3, units),
        secret_folds(np.empty((0, 0)), strata, count, b"secret", units),
    ):
        by_unit = {u: set(fold[units == u].tolist()) for u in units}
        assert all(len(folds) == 1 for folds in by_unit.values())
        sizes = np.bincount([folds.pop() for folds in by_unit.values()], minlength=count)
        assert sizes.max() - sizes.min() <= 1


def visits(**folds: Any) -> Tables:
    """Thirty patients with four visits each, the days of which go up."""
    rng = np.random.default_rng(1)
    patient = np.repeat(np.arange(30), 4)
    level = rng.normal(size=30)[patient]
    frame = {
        "patient": [f"p{k}" for k in patient],
        "hospital": [f"h{k % 2}" for k in patient],
        "day": [f"2020-{1 + k // 12:02}-{1 + k % 12:02}" for k in range(120)],
        "hour": np.arange(120.0),
        "x": rng.normal(size=120) + level,
        "y": level + 0.1 * rng.normal(size=120),
    }
    plain: dict[str, Any] = {
        "source": {"organisation": "hospital"},
        "target": {"column": "y"},
        "columns": {"x": {"kind": "number"}},
        "others": {"kind": "ignore"},
        "folds": folds,
    }
    return read_frame(parse_schema(plain), frame)


def test_rows_of_a_patient_and_of_a_stretch_of_time_are_held_out_together() -> None:
    once: dict[str, Any] = {"weight": 0.01, "folds": 3, "repetitions": 0, "alone": False}
    for rule, parts in (
        ({"group": "patient"}, 30),
        ({"group": ["hospital", "patient"]}, 30),
        ({"block": "day", "length": 10}, None),
        ({"block": "hour", "length": 24, "format": ""}, 10),  # five stretches at each of two hospitals
    ):
        found = fit(visits(**rule), **once)
        units = found.design.units
        assert units is not None
        owner = np.repeat(found.design.organisations, found.held.sizes)
        seen = {(o, u) for o, u in zip(owner, units, strict=True)}
        assert parts is None or len(seen) == parts
        for o, u in seen:
            of_unit = found.cv.rows[:, (owner == o) & (units == u)]
            assert (of_unit.all(1) | ~of_unit.any(1)).all()
        assert "are held out together" in found.model.held_out


def test_what_folds_cannot_mean_is_refused() -> None:
    for folds, said in (
        ({"group": "patient", "block": "day", "length": 7}, "exclude each other"),
        ({"block": "day"}, "go together"),
        ({"group": "pateint"}, "has no column 'pateint'"),
        ({"block": "patient", "length": 7}, "was expected"),
        ({"grop": "patient"}, "grop"),
    ):
        with pytest.raises(InputError, match=said):
            visits(**folds)
    problem = of_two()
    one = replace(problem, f=problem.f.over_rows(problem.f.data.keep(np.arange(60))))
    with pytest.raises(InputError, match="all rows are held out together"):
        cross_validate(one, 3, 5, units=np.full(60, "the same"))


def test_a_gap_in_a_group_is_refused_with_its_place() -> None:
    schema = parse_schema(
        {"target": {"column": "y"}, "columns": {"x": {"kind": "number"}}, "folds": {"group": "patient"}}
    )
    with pytest.raises(InputError, match="column 'patient', row 2 is missing"):
        read_frame(schema, {"x": [1, 2], "y": [1, 2], "patient": ["a", ""]}, "one")
    evaluated = read_frame(schema, {"x": [1, 2], "y": [1, 2]}, "one", besides=False)
    assert evaluated.tables[0].units is None


def test_intervals_of_rows_that_come_in_units_are_wider() -> None:
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(size=20), 10)
    s, b = level + 0.1 * rng.normal(size=200), level + np.repeat(rng.normal(size=20), 10)
    alone = judge(Squared(), s, b, [200])["all"]["r2"]
    units = np.repeat(np.arange(20), 10).astype(str)
    apart = judge(Squared(), s, b, [200], units=units)["all"]["r2"]
    assert apart.high - apart.low > 1.5 * (alone.high - alone.low)
    each_its_own = judge(Squared(), s, b, [200], units=np.char.zfill(np.arange(200).astype(str), 3))
    assert each_its_own["all"]["r2"] == alone


# ---- nested ---------------------------------------------------------------------------------------------------------


def test_the_weight_that_is_chosen_without_a_fold_knows_nothing_of_it() -> None:
    problem = of_two()
    cv = cross_validate(problem, 3, 6, 1e-2, SOLVER, 1e-6)

    def of(problem: Any) -> Any:
        return nested(problem, cv.rows, 6, 1e-2, "best", SOLVER, objective_of)

    first = of(problem)
    data = problem.f.data
    held = cv.rows[1]
    turned = np.where(held, -data.labels, data.labels)
    other = of(replace(problem, f=problem.f.over_rows(replace(data, labels=turned))))
    assert other.weights[1] == first.weights[1]
    assert np.array_equal(other.scores[held], first.scores[held])
    assert not np.array_equal(other.scores[~held], first.scores[~held])
    assert len(first.weights) == 3
    with pytest.raises(InputError, match="3 folds, not 2"):
        nested(problem, cv.rows[:2], 6, 1e-2, "best", SOLVER, objective_of)


def test_a_nested_fit_is_judged_by_its_own_scores_also_with_site_intercepts() -> None:
    quick: dict[str, Any] = {"weights": 5, "folds": 3, "repetitions": 0, "alone": False}
    for more in ({}, {"site_intercepts": True}):
        plain, twice = (fit(CLINICS / "tables.toml", nested=n, **quick, **more) for n in (False, True))
        assert twice.model.prepared == plain.model.prepared
        assert len(twice.validation.nested) == 3
        assert abs(twice.federated["all"]["auc"].value - plain.federated["all"]["auc"].value) < 0.1
        assert any("nested choice" in line for line in sentences(twice))
    with pytest.raises(InputError, match="nothing is chosen"):
        fit(CLINICS / "tables.toml", weight=0.1, nested=True)


# ---- draws of the rows ----------------------------------------------------------------------------------------------


def test_optimism_is_what_noise_seems_to_explain() -> None:
    problem = of_two(60, 12, signal=0.0).with_h(L1(1e-3))
    refit = refit_with(SOLVER, objective_of)
    x = refit(problem, None)

    def scores(of: Any, model: torch.Tensor) -> np.ndarray:
        return np.asarray(of.f.scores(model, np.asarray(of.f.data.features))).reshape(-1, 1)

    found = optimism(problem, x, refit, scores, 20, 0)
    assert found["auc"].apparent == pytest.approx(ms.auc(scores(problem, x)[:, 0], problem.f.data.labels))
    assert found["auc"].corrected < 0.55 < 0.6 < found["auc"].apparent  # although nothing is there
    assert found["log_loss"].optimism < 0
    assert optimism(problem, x, refit, scores, 20, 0) == found


def test_what_matters_is_chosen_in_every_half_and_the_bound_is_that_of_the_paper() -> None:
    problem = of_two(400, 8, signal=2.0).with_h(L1(0.06))
    refit = refit_with(SOLVER, objective_of)
    found = stability(problem, refit(problem, None), refit, 20, 0)
    assert found.share[0, 0] == 1
    assert found.share[0, 1:].max() < 0.9
    assert found.chosen == pytest.approx(found.share.sum())
    assert Stability(np.zeros((1, 100)), 5.0, 50).wrong_at_most(0.75) == pytest.approx(25 / (0.5 * 100))
    with pytest.raises(InputError, match=r"above 0\.5"):
        found.wrong_at_most(0.5)


def test_draws_of_tables_are_shown() -> None:
    found = fit(CLINICS / "tables.toml", weight=0.03, folds=3, repetitions=0, alone=False, optimism=3, stability=3)
    of = found.validation
    assert of.optimism["auc"].apparent > found.federated["all"]["auc"].value
    assert of.stability.draws == 3
    for shown in ("Optimism", "Stability of the choice", "Calibration of every organisation"):
        assert shown in card(found)
        assert shown in page(found)


# ---- measures -------------------------------------------------------------------------------------------------------


def test_measures_within_organisations_compare_their_own_rows_only() -> None:
    rng = np.random.default_rng(3)
    s = np.round(rng.normal(size=40), 1)
    b = np.where(rng.random(40) < 0.5, 1.0, -1.0)
    parts = [slice(0, 25), slice(25, 40)]
    pairs = [
        (s[i] > s[j]) + (s[i] == s[j]) / 2
        for part in parts
        for i, j in product(range(40)[part], repeat=2)
        if b[i] > 0 > b[j]
    ]
    found = judge(Logistic(), s, b, [25, 15], repetitions=20)["all"]["auc_within"]
    assert found.value == pytest.approx(np.mean(pairs))
    assert found.low < found.value < found.high
    y = np.concatenate([rng.normal(size=25), 10 + rng.normal(size=15)])
    mean = np.concatenate([np.full(25, y[:25].mean()), np.full(15, y[25:].mean())])
    over_all = judge(Squared(), mean, y, [25, 15], repetitions=0)["all"]
    assert over_all["r2"].value > 0.9
    assert over_all["r2_within"].value == pytest.approx(0)
    assert "auc_within" not in judge(Logistic(), s, b, [40], repetitions=0)["all"]


def test_the_row_of_all_says_that_it_has_contrast_between_organisations() -> None:
    found = clinics()
    assert measure_cells(found)[1][-2][0] == "all, across organisations"
    assert "within organisations, auc is" in contrast(found)


def test_an_interval_without_width_is_none() -> None:
    s, b = np.arange(-10.0, 10), np.sign(np.arange(-10, 10) + 0.5)
    auc = judge(Logistic(), s, b, [20])["all"]["auc"]
    assert auc.value == 1
    assert math.isnan(auc.low)
    assert math.isnan(auc.high)


def test_deviance_of_classes_is_not_shown_beside_the_log_loss() -> None:
    for measures in (ms.TWO_CLASSES, ms.CLASSES):
        assert "deviance" not in measures
        assert "log_loss" in measures


def test_net_benefit_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(5)
    s = rng.normal(size=300)
    b = np.where(rng.random(300) < ms.probability(s), 1.0, -1.0)
    p = ms.probability(s)
    for found in ms.decision_curve(ms.counted_by_score(s, b), (0.2, 0.35, 0.9)):
        t = found.threshold
        acted = p >= t
        assert found.model == pytest.approx((acted & (b > 0)).mean() - t / (1 - t) * (acted & (b < 0)).mean())
        assert found.everybody == pytest.approx((b > 0).mean() - t / (1 - t) * (b < 0).mean())


@given(st.integers(1, 200), st.floats(0, 1))
def test_intervals_of_bins_are_wilsons(n, share) -> None:
    k = round(n * share)
    ours = ms.Bin(n, 0.5, k / n).interval(0.9)
    assert ours == pytest.approx(proportion_confint(k, n, 0.1, "wilson"), abs=1e-9)


def test_calibration_of_an_organisation_shows_no_few_rows_of_a_class() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        s = rng.normal(size=60)
        b = np.where(rng.random(60) < ms.probability(3 * s), 1.0, -1.0)
        for each in coarse_curve(s, b, 5):
            positive = round(each.samples * each.observed)
            assert positive == 0 or positive >= 5
            assert positive == each.samples or each.samples - positive >= 5


def test_an_empty_model_says_so_and_what_the_best_weight_would_keep() -> None:
    rng = np.random.default_rng(2)
    frame = {"x": rng.normal(size=60), "z": rng.normal(size=60), "h": ["a", "b"] * 30}
    frame["y"] = 0.12 * frame["x"] + rng.normal(size=60)
    schema = {"source": {"organisation": "h"}, "target": {"column": "y"}, "others": {"kind": "number"}}
    tables = read_frame(parse_schema(schema), frame)
    found = fit(tables, weights=[1.0, 0.5], repetitions=0, alone=False)
    assert found.model.nonzeros == 0
    (said,) = (line for line in sentences(found) if "empty" in line)
    assert "None of the weights" in said or "rule = 'best' would take" in said
    given = fit(tables, weight=2.0, repetitions=0, alone=False)
    assert any("try a smaller weight" in line for line in sentences(given))
