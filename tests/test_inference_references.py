"""Inference from sums of organisations equals statsmodels, lifelines and SciPy on the pooled rows."""

from __future__ import annotations

from typing import Any

import lifelines
import lifelines.statistics
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
import torch
from statsmodels.stats.multitest import multipletests

from proxfed.data.survival import survival_labels
from proxfed.errors import InputError, RunError
from proxfed.fit.here import Here
from proxfed.fit.inference.adjust import adjusted
from proxfed.fit.inference.debiased import debiased, enough_rows
from proxfed.fit.inference.distributions import chi2_tail, f_tail, normal_tails, t_quantile, t_tails
from proxfed.fit.inference.estimate import estimate
from proxfed.fit.inference.heterogeneity import MetaSums, OwnEstimate, agreement
from proxfed.fit.inference.regression import Intercept, Regression
from proxfed.fit.inference.survival import (
    breslow,
    joined,
    kaplan_meier,
    log_rank,
    log_rank_sums,
    risk_table,
)
from proxfed.fit.inference.tests_of_terms import deviance_table, likelihood_ratio, score_test, wald_test
from proxfed.fit.inference.wald import coefficients, dispersion, model_covariance, sandwich
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.linear.cox import Cox
from proxfed.problems.named_losses import find_loss

# lifelines calls pandas in ways that pandas will not take for ever
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*keyword-only")

SITES, P = 4, 5
CLOSE: Any = {"rtol": 1e-6, "atol": 1e-9}


def rows(loss: str, seed: int = 0, n: int = 400) -> dict[str, np.ndarray]:
    """Rows whose organisations differ in level, with weights, offsets and clusters of about five rows."""
    rng = np.random.default_rng(seed)
    site = rng.integers(SITES, size=n)
    X = rng.normal(size=(n, P)) + 0.5 * site[:, None] * np.eye(P)[0]
    offset = rng.normal(scale=0.3, size=n)
    s = X @ np.array([0.6, -0.4, 0.3, 0.0, 0.2]) + 0.4 * site - 0.8 + offset
    if loss == "logistic":
        y = np.where(rng.random(n) < 1 / (1 + np.exp(-s)), 1.0, -1.0)
    elif loss == "poisson":
        y = rng.poisson(np.exp(s)).astype(float)
    else:
        y = s + rng.normal(size=n) * np.exp(0.3 * X[:, 1])
    weights = rng.integers(1, 4, size=n).astype(float)
    clusters = site * 100 + rng.integers(20, size=n)  # within a site, as patients are
    return {"X": X, "y": y, "site": site, "offset": offset, "weights": weights, "clusters": clusters}


def sites(
    loss: str,
    d: dict[str, np.ndarray],
    intercept: Intercept = "shared",
    products: str = "row",
    only: tuple[int, ...] = tuple(range(SITES)),
    **more: bool,
) -> Regression:
    found = []
    for k in only:
        at = d["site"] == k
        extra = {"sample_weights" if key == "weights" else key: d[key][at] for key in more if more[key]}
        found.append(OwnRows(d["X"][at], d["y"][at], find_loss(loss), **extra))
    here = Here(tuple(found), tuple(f"s{k}" for k in only))
    return Regression.of(here, find_loss(loss), d["X"].shape[1], intercept, products)


def pooled(loss: str, d: dict[str, np.ndarray], dummies: bool = False, **more: Any) -> Any:
    """statsmodels' model of all rows; coefficients in proxfed's order, the intercept last."""
    family = {"logistic": sm.families.Binomial, "poisson": sm.families.Poisson, "squared": sm.families.Gaussian}[loss]
    last = np.eye(SITES)[d["site"]] if dummies else np.ones((len(d["y"]), 1))
    y = (d["y"] > 0).astype(float) if loss == "logistic" else d["y"]
    return sm.GLM(y, np.column_stack([d["X"], last]), family=family(), **more)


GLM = pytest.mark.parametrize("loss", ["logistic", "poisson", "squared"])


def covariance(loss: str, found: Any) -> np.ndarray:
    return model_covariance(found, dispersion(found) if loss == "squared" else 1.0)


@GLM
def test_wald(loss: str) -> None:
    """Estimates, errors, intervals, p-values and deviance, with offsets and weights."""
    d = rows(loss)
    found = estimate(sites(loss, d, weights=True, offset=True))
    # statsmodels counts frequency weights as rows, so the dispersion is that of variance weights
    ref = pooled(loss, d, offset=d["offset"], var_weights=d["weights"]).fit(tol=1e-12)
    np.testing.assert_allclose(found.x, ref.params, **CLOSE)
    lines = coefficients([f"b{j}" for j in range(P + 1)], found.x, covariance(loss, found))
    np.testing.assert_allclose([line.error for line in lines], ref.bse, **CLOSE)
    np.testing.assert_allclose([(line.low, line.high) for line in lines], ref.conf_int(), **CLOSE)
    np.testing.assert_allclose([line.p for line in lines], ref.pvalues, **CLOSE)
    np.testing.assert_allclose(found.deviance, ref.deviance, **CLOSE)
    assert found.residual_df == ref.df_resid


@GLM
def test_own_intercepts_equal_an_indicator_for_every_organisation(loss: str) -> None:
    """Block elimination: neither estimates nor any covariance of the features differ from those with indicators."""
    d = rows(loss, 1)
    found = estimate(sites(loss, d, intercept="own", products="cluster", offset=True, clusters=True))
    ref = pooled(loss, d, dummies=True, offset=d["offset"]).fit(tol=1e-12)
    np.testing.assert_allclose(found.x, ref.params[:P], **CLOSE)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance(loss, found))), ref.bse[:P], **CLOSE)
    np.testing.assert_allclose(found.deviance, ref.deviance, **CLOSE)
    assert found.parameters == P + SITES
    clustered = pooled(loss, d, dummies=True, offset=d["offset"]).fit(
        tol=1e-12, cov_type="cluster", cov_kwds={"groups": d["clusters"], "use_correction": True}
    )
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(found, "cluster"))), clustered.bse[:P], **CLOSE)
    here = found.regression.objective.organisations
    assert isinstance(here, Here)
    own = [*here.intercepts(torch.tensor(found.x)).values()]
    np.testing.assert_allclose(own, ref.params[P:], **CLOSE)


@GLM
def test_sandwich(loss: str) -> None:
    d = rows(loss, 2)
    found = estimate(sites(loss, d, offset=True))
    ref = pooled(loss, d, offset=d["offset"]).fit(tol=1e-12, cov_type="HC0")
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(found))), ref.bse, **CLOSE)
    n = len(d["y"])
    np.testing.assert_allclose(sandwich(found, "HC1"), sandwich(found) * n / (n - P - 1), rtol=1e-12)


@GLM
@pytest.mark.parametrize("by", ["clusters", "site"])
def test_clustered(loss: str, by: str) -> None:
    """By a column, and by organisation, where a site's whole gradient is one cluster."""
    d = rows(loss, 3)
    d["clusters"] = d[by]
    found = estimate(sites(loss, d, products="cluster", clusters=True))
    if by == "site":
        whole = estimate(sites(loss, d, products="organisation"))
        np.testing.assert_allclose(sandwich(found, "cluster"), sandwich(whole, "cluster"), rtol=1e-9)
    assert found.regression.clusters == len(np.unique(d[by]))
    ref = pooled(loss, d).fit(tol=1e-12, cov_type="cluster", cov_kwds={"groups": d[by], "use_correction": True})
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(found, "cluster"))), ref.bse, **CLOSE)


def test_ordinary_least_squares_with_student_and_fisher() -> None:
    d = rows("squared", 4)
    own = sites("squared", d)
    found = estimate(own)
    ref = sm.OLS(d["y"], np.column_stack([d["X"], np.ones(len(d["y"]))])).fit()
    lines = coefficients(list("abcdef"), found.x, covariance("squared", found), df=found.residual_df)
    np.testing.assert_allclose([line.p for line in lines], ref.pvalues, **CLOSE)
    np.testing.assert_allclose([(line.low, line.high) for line in lines], ref.conf_int(), **CLOSE)
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(found, "HC1"))), ref.HC1_se, **CLOSE)
    (test,), _ = deviance_table(found, {"two": [0, 3]}, dispersion(found))
    want = ref.f_test(np.eye(P + 1)[[0, 3]])
    np.testing.assert_allclose([test.statistic, test.p], [float(want.fvalue), float(want.pvalue)], **CLOSE)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_likelihood_ratio_score_and_wald_tests(loss: str) -> None:
    d = rows(loss, 5)
    own = sites(loss, d)
    full, small = estimate(own), estimate(own, [0, 1, 2, 5])
    ref, without = pooled(loss, d).fit(tol=1e-12), pooled(loss, d)
    without.exog = without.exog[:, [0, 1, 2, 5]]
    less = sm.GLM(without.endog, without.exog, family=without.family).fit(tol=1e-12)
    lr = likelihood_ratio("x", full, small)
    np.testing.assert_allclose(lr.statistic, 2 * (ref.llf - less.llf), rtol=1e-6)
    np.testing.assert_allclose(lr.p, scipy.stats.chi2.sf(2 * (ref.llf - less.llf), 2), rtol=1e-6)
    statistic, p = less.score_test(exog_extra=d["X"][:, [3, 4]])[:2]
    score = score_test("x", small, [3, 4])
    np.testing.assert_allclose([score.statistic, score.p], [np.squeeze(statistic), np.squeeze(p)], rtol=1e-6)
    wald = wald_test("x", full, full.bread, [3, 4])
    want = ref.wald_test(np.eye(P + 1)[[3, 4]], scalar=True, use_f=False)
    np.testing.assert_allclose([wald.statistic, wald.p], [want.statistic, want.pvalue], rtol=1e-6)


def test_huber_sandwich_is_invariant_to_who_holds_the_rows() -> None:
    d = rows("squared", 6)
    apart = estimate(sites("huber", d))
    alone = estimate(sites("huber", d | {"site": np.zeros(len(d["y"]))}, only=(0,)))
    np.testing.assert_allclose(apart.x, alone.x, atol=1e-9)
    np.testing.assert_allclose(sandwich(apart), sandwich(alone), rtol=1e-9)


# ---- what has no estimate -------------------------------------------------------------------------------------------


def test_combinations_are_left_out_and_the_others_are_right() -> None:
    """All four indicators of a category beside an intercept: the last one is their combination."""
    d = rows("logistic", 7)
    level = np.random.default_rng(7).integers(4, size=len(d["y"]))
    d["X"] = np.column_stack([d["X"][:, :2], np.eye(4)[level]])
    found = estimate(sites("logistic", d), order=[6, 0, 1, 2, 3, 4, 5])
    assert found.aliased == (5,)
    d["X"] = d["X"][:, :5]
    ref = pooled("logistic", d).fit(tol=1e-12)
    np.testing.assert_allclose(found.x[[0, 1, 2, 3, 4, 6]], ref.params, **CLOSE)


def test_separated_outcomes_are_refused_by_name() -> None:
    d = rows("logistic", 8)
    d["X"][:, 2] = d["y"] * (1 + np.abs(d["X"][:, 2]))
    with pytest.raises(RunError, match="'c'"):
        estimate(sites("logistic", d), names=list("abcdef"))


def test_an_organisation_with_one_outcome_says_nothing_beside_its_own_intercept() -> None:
    d = rows("logistic", 9)
    d["y"][d["site"] == 2] = 1.0
    found = estimate(sites("logistic", d, intercept="own"))
    others = estimate(sites("logistic", d, intercept="own", only=(0, 1, 3)))
    np.testing.assert_allclose(found.x, others.x, atol=1e-12)
    here = found.regression.objective.organisations
    assert isinstance(here, Here)
    assert here.intercepts(torch.tensor(found.x))["s2"] == np.inf


# ---- penalised ------------------------------------------------------------------------------------------------------


def test_debiased_least_squares_is_least_squares() -> None:
    d = rows("squared", 10)
    own = sites("squared", d)
    exact = estimate(own)
    shrunk = np.sign(exact.x) * np.maximum(np.abs(exact.x) - 0.2, 0)
    found = debiased(own, shrunk)
    np.testing.assert_allclose(found.x, exact.x, atol=1e-10)


def test_too_few_rows_are_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="60 coefficients need 600 rows, and there are 400, enough for 40"):
        enough_rows(400, 60)
    enough_rows(400, 40)


@pytest.mark.parametrize(("method", "theirs"), [("bonferroni", "bonferroni"), ("holm", "holm"), ("bh", "fdr_bh")])
def test_adjusted(method: str, theirs: str) -> None:
    p = np.random.default_rng(11).random(40) ** 3
    np.testing.assert_allclose(adjusted(p.tolist(), method), multipletests(p, method=theirs)[1], rtol=1e-12)


# ---- between organisations ------------------------------------------------------------------------------------------


def test_cochran_and_meta_analysis() -> None:
    """Against each site's own statsmodels fit, put together by the textbook formulas."""
    d = rows("logistic", 12, 1200)
    own = sites("logistic", d)
    joint = estimate(own)
    here = own.objective.organisations
    assert all(isinstance(e, OwnEstimate) for e in here.estimates(range(P + 1)).values())
    total = MetaSums(*here.agreement(range(P + 1)).numpy())
    found = agreement([f"b{j}" for j in range(P + 1)], total, joint)
    b, e = [], []
    for k in range(SITES):
        part = {key: value[d["site"] == k] for key, value in d.items()}
        ref = pooled("logistic", part).fit(tol=1e-12)
        b.append(ref.params)
        e.append(ref.bse)
    B, W = np.array(b), 1 / np.array(e) ** 2
    mean = (W * B).sum(0) / W.sum(0)
    Q = (W * (B - mean) ** 2).sum(0)
    np.testing.assert_allclose([a.meta for a in found], mean, rtol=1e-6)
    np.testing.assert_allclose([a.Q for a in found], Q, rtol=1e-6)
    np.testing.assert_allclose([a.p for a in found], scipy.stats.chi2.sf(Q, SITES - 1), rtol=1e-6)
    np.testing.assert_allclose([a.I2 for a in found], np.maximum(0, 1 - (SITES - 1) / Q), rtol=1e-6, atol=1e-12)
    away = np.abs(mean - joint.x)
    assert np.all(np.abs([a.one_step for a in found] - joint.x) <= 0.2 * away.max())


# ---- survival -------------------------------------------------------------------------------------------------------


def lives(seed: int = 0, n: int = 300, ties: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    site = rng.integers(3, size=n)
    X = rng.normal(size=(n, 3))
    t = rng.exponential(np.exp(-(X @ [0.5, -0.3, 0.0] + 0.3 * site)))
    c = rng.exponential(1.5, size=n)
    time = np.minimum(t, c)
    time = np.ceil(10 * time) / 10 if ties else time
    return {"X": X, "time": time, "event": t <= c, "site": site, "w": rng.integers(1, 4, size=n).astype(float)}


def strata(
    d: dict[str, np.ndarray],
    ties: str = "breslow",
    products: str = "row",
    only: tuple[int, ...] = (0, 1, 2),
    **more: np.ndarray,
) -> Regression:
    found = []
    for k in only:
        at = d["site"] == k
        labels = survival_labels(d["time"][at], d["event"][at])
        extra = {"sample_weights" if key == "weights" else key: value[at] for key, value in more.items()}
        found.append(OwnRows(d["X"][at], labels, Cox(ties), False, **extra))
    return Regression.of(Here(tuple(found), tuple(map(str, only))), Cox(ties), 3, "none", products)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_stratified_cox(ties: str) -> None:
    d = lives()
    found = estimate(strata(d, ties))
    ref = sm.PHReg(d["time"], d["X"], status=d["event"].astype(int), strata=d["site"], ties=ties).fit(disp=0)
    np.testing.assert_allclose(found.x, ref.params, rtol=1e-5, atol=1e-7)
    at = estimate(strata(d, ties), start=found.x)
    hessian = ref.model.hessian(found.x)
    np.testing.assert_allclose(at.sums.hessian, -hessian, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(at.sums.value, -ref.model.loglike(found.x), rtol=1e-9)


def test_stratified_cox_against_lifelines() -> None:
    """Efron's ties, weights, robust errors, and errors clustered by a column."""
    d = lives(1)
    frame = pd.DataFrame(d["X"], columns=list("abc")).assign(T=d["time"], E=d["event"], site=d["site"])
    ref = lifelines.CoxPHFitter().fit(frame, "T", "E", strata=["site"], fit_options={"precision": 1e-12})
    found = estimate(strata(d, "efron"))
    np.testing.assert_allclose(found.x, ref.params_, rtol=1e-6, atol=1e-8)
    lines = coefficients(list("abc"), found.x, found.bread)
    np.testing.assert_allclose([line.error for line in lines], ref.standard_errors_, rtol=1e-6)
    np.testing.assert_allclose([line.p for line in lines], ref.summary["p"], rtol=1e-5)
    np.testing.assert_allclose([line.ratio for line in lines], ref.summary["exp(coef)"], rtol=1e-6)
    np.testing.assert_allclose(-found.sums.value, ref.log_likelihood_, rtol=1e-9)


def test_robust_cox_against_lifelines() -> None:
    d = lives(2, ties=False)
    d["site"] = np.zeros_like(d["site"])
    cluster = np.random.default_rng(2).integers(40, size=len(d["time"]))
    frame = pd.DataFrame(d["X"], columns=list("abc")).assign(T=d["time"], E=d["event"], w=d["w"], g=cluster)
    fitter = lifelines.CoxPHFitter()
    options: Any = {"fit_options": {"precision": 1e-12}}
    ref = fitter.fit(frame.drop(columns=["w", "g"]), "T", "E", robust=True, **options)
    found = estimate(strata(d, only=(0,)))
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(found))), ref.standard_errors_, rtol=1e-6)
    ref = lifelines.CoxPHFitter().fit(frame.drop(columns=["g"]), "T", "E", weights_col="w", robust=True, **options)
    weighted = estimate(strata(d, only=(0,), weights=d["w"]))
    np.testing.assert_allclose(weighted.x, ref.params_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(weighted))), ref.standard_errors_, rtol=1e-6)
    ref = lifelines.CoxPHFitter().fit(frame.drop(columns=["w"]), "T", "E", cluster_col="g", **options)
    clustered = estimate(strata(d, products="cluster", only=(0,), clusters=cluster))
    np.testing.assert_allclose(np.sqrt(np.diag(sandwich(clustered))), ref.standard_errors_, rtol=1e-6)


def test_score_residuals_of_cox_add_up_to_the_gradient() -> None:
    """With all rows in one cluster, the products are the outer square of the gradient, also under Efron."""
    d = lives(3)
    x = np.array([0.2, -0.1, 0.4])
    for ties in ("breslow", "efron"):
        for k in range(3):
            s = strata(d, ties, "organisation", (k,), weights=d["w"]).ask(x, True)
            np.testing.assert_allclose(s.products, np.outer(s.gradient, s.gradient), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_derivatives_of_cox(ties: str) -> None:
    """The gradient and the Hessian are those of the value, by central differences."""
    d, h = lives(4), 1e-5
    own = strata(d, ties, only=(0,), weights=d["w"])
    x = np.array([0.3, -0.2, 0.1])
    s = own.ask(x)
    for j, e in enumerate(np.eye(3)):
        up, down = own.ask(x + h * e), own.ask(x - h * e)
        assert (up.value - down.value) / (2 * h) == pytest.approx(s.gradient[j], rel=1e-7, abs=1e-6)
        np.testing.assert_allclose((up.gradient - down.gradient) / (2 * h), s.hessian[j], rtol=1e-6, atol=1e-6)


def test_kaplan_meier_against_lifelines() -> None:
    d = lives(5)
    grid = np.unique(d["time"])
    parts = [risk_table(d["time"][d["site"] == k], d["event"][d["site"] == k], grid) for k in range(3)]
    curve = kaplan_meier(parts[0] + parts[1] + parts[2], grid, fewest=1)
    ref = lifelines.KaplanMeierFitter().fit(d["time"], d["event"])
    at = ref.survival_function_.loc[grid].to_numpy()[:, 0]
    np.testing.assert_allclose(curve.survival, at, rtol=1e-9, atol=1e-12)
    bounds = ref.confidence_interval_.loc[grid].to_numpy()
    inside = (at > 0) & (at < 1)
    np.testing.assert_allclose(curve.low[inside], bounds[inside, 0], rtol=1e-6)
    np.testing.assert_allclose(curve.high[inside], bounds[inside, 1], rtol=1e-6)


def test_breslow_baseline_and_risk_against_lifelines() -> None:
    d = lives(6, ties=False)
    frame = pd.DataFrame(d["X"], columns=list("abc")).assign(T=d["time"], E=d["event"])
    ref = lifelines.CoxPHFitter().fit(frame, "T", "E", fit_options={"precision": 1e-12})
    grid = np.unique(d["time"])
    scores = d["X"] @ ref.params_.to_numpy()
    parts = [
        risk_table(d["time"][d["site"] == k], d["event"][d["site"] == k], grid, scores[d["site"] == k])
        for k in range(3)
    ]
    base = breslow(parts[0] + parts[1] + parts[2], grid, fewest=1)
    t = float(np.median(grid))
    want = 1 - ref.predict_survival_function(frame, times=[t]).to_numpy()[0]
    np.testing.assert_allclose(base.risk(scores, t), want, rtol=1e-6)
    with pytest.raises(InputError, match="beyond the last time"):
        base.risk(scores, 2 * float(grid[-1]))


def test_joined_intervals_say_nothing_of_few_rows() -> None:
    d = lives(7)
    grid = np.unique(d["time"])
    whole = risk_table(d["time"], d["event"], grid)
    table, times = joined(whole, grid, 5)
    assert (table.leaving >= 5).all()
    assert ((table.events == 0) | (table.events >= 5)).all()
    assert set(times) <= set(grid)
    assert table.events.sum() <= d["event"].sum()
    coarse, exact = kaplan_meier(whole, grid, fewest=5), kaplan_meier(whole, grid, fewest=1)
    t = float(np.quantile(d["time"], 0.6))
    assert coarse.at(t) == pytest.approx(exact.at(t), abs=0.05)


def test_stratified_log_rank() -> None:
    """Without ties it is the score test of Cox's model, within strata too; with ties, lifelines in one stratum."""
    d = lives(8, ties=False)
    group = np.random.default_rng(80).integers(3, size=len(d["time"]))
    parts = [
        log_rank_sums(d["time"][d["site"] == k], d["event"][d["site"] == k], group[d["site"] == k], [0, 1, 2])
        for k in range(3)
    ]
    statistic, df, p = log_rank(parts[0] + parts[1] + parts[2])
    model = sm.PHReg(d["time"], np.eye(3)[group][:, :2], status=d["event"].astype(int), strata=d["site"])
    score = model.score(np.zeros(2))
    want = float(score @ np.linalg.solve(-model.hessian(np.zeros(2)), score))
    np.testing.assert_allclose([statistic, df, p], [want, 2, scipy.stats.chi2.sf(want, 2)], rtol=1e-8)
    d = lives(9)
    ref = lifelines.statistics.multivariate_logrank_test(d["time"], group, d["event"])
    found = log_rank(log_rank_sums(d["time"], d["event"], group, [0, 1, 2]))
    np.testing.assert_allclose(found, [ref.test_statistic, 2, ref.p_value], rtol=1e-8)


# ---- distributions --------------------------------------------------------------------------------------------------


def test_distributions() -> None:
    for z in (0.0, 0.3, 2.0, 8.0, 20.0):
        assert normal_tails(z) == pytest.approx(2 * scipy.stats.norm.sf(z), rel=1e-12)
        for df in (1, 2.5, 7, 80, 5000):
            assert t_tails(z, df) == pytest.approx(2 * scipy.stats.t.sf(z, df), rel=1e-9)
            assert chi2_tail(z, df) == pytest.approx(scipy.stats.chi2.sf(z, df), rel=1e-9)
            assert f_tail(z, 3, df) == pytest.approx(scipy.stats.f.sf(z, 3, df), rel=1e-9)
    for level in (0.5, 0.9, 0.95, 0.999):
        for df in (1, 4, 30, 1e4):
            assert t_quantile(level, df) == pytest.approx(scipy.stats.t.ppf((1 + level) / 2, df), rel=1e-9)
        assert t_quantile(level) == pytest.approx(scipy.stats.norm.ppf((1 + level) / 2), rel=1e-12)
