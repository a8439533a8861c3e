"""Random intercepts of organisations, from sums, against statsmodels and a direct optimisation on the pooled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import statsmodels.formula.api as smf
import torch
from typer.testing import CliRunner

from proxfed.cli.main import app
from proxfed.errors import InputError
from proxfed.fit.here import Here
from proxfed.fit.inference import glm
from proxfed.fit.inference.estimate import estimate
from proxfed.fit.inference.random_intercepts import _profile, with_random_intercepts
from proxfed.fit.inference.regression import Regression
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.named_losses import find_loss
from proxfed.tables.schema import parse_schema
from proxfed.tables.table import read_frame

SITES = 8


def frame(spread: float = 0.7, n: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    site, a, b = rng.integers(SITES, size=n), rng.normal(50, 8, size=n), rng.normal(size=n)
    a += 2 * site
    s = 0.05 * (a - 55) - 0.6 * b + spread * rng.normal(size=SITES)[site]
    return pd.DataFrame(
        {
            "site": [f"s{k}" for k in site],
            "a": a,
            "b": b,
            "score": s + rng.normal(size=n),
            "ill": rng.random(n) < 1 / (1 + np.exp(-s)),
            "falls": rng.poisson(np.exp(s)),
        }
    )


def tables(target: dict[str, Any], data: pd.DataFrame) -> Any:
    schema = {
        "source": {"organisation": "site"},
        "target": target,
        "columns": {"a": {"kind": "number"}, "b": {"kind": "number"}},
        "others": {"kind": "ignore"},
    }
    return read_frame(parse_schema(schema), data)


TARGETS: dict[str, dict[str, Any]] = {
    "squared": {"column": "score"},
    "logistic": {"column": "ill", "classes": {"well": "false", "ill": "true"}},
    "poisson": {"column": "falls"},
}


def found_for(loss: str, data: pd.DataFrame, **more: Any) -> Any:
    return glm(tables(TARGETS[loss], data), loss=loss, **more)


def test_a_linear_model_is_that_of_statsmodels() -> None:
    d = frame()
    theirs = smf.mixedlm("score ~ a + b", d, groups=d["site"]).fit(reml=True, method="bfgs", gtol=1e-7)
    ours = found_for("squared", d, random_intercepts=True)
    assert ours.random.tau == pytest.approx(float(theirs.cov_re.iloc[0, 0]) ** 0.5, rel=1e-5)
    assert ours.dispersion == pytest.approx(theirs.scale, rel=1e-5)
    np.testing.assert_allclose([c.estimate for c in ours.coefficients], theirs.fe_params, rtol=1e-5)
    X, Z = np.column_stack([np.ones(len(d)), d["a"], d["b"]]), pd.get_dummies(d["site"]).to_numpy(float)
    V = theirs.scale * np.eye(len(d)) + float(theirs.cov_re.iloc[0, 0]) * Z @ Z.T
    given_tau = np.linalg.inv(X.T @ np.linalg.solve(V, X))  # statsmodels' own errors do not take tau as given
    np.testing.assert_allclose([c.error for c in ours.coefficients], np.sqrt(np.diag(given_tau)), rtol=1e-5)
    assert ours.log_likelihood == pytest.approx(theirs.llf, rel=1e-6)
    for name, shift in ours.random.shifts.items():
        assert shift == pytest.approx(float(theirs.random_effects[name].iloc[0]), rel=1e-5)


def laplace(loss: str, d: pd.DataFrame) -> tuple[np.ndarray, float, np.ndarray, float]:
    """(coefficients, tau, their errors given tau, log-likelihood) by SciPy, on all rows, with indicators of sites."""
    X = np.column_stack([np.ones(len(d)), (d["a"] - 55) / 8, d["b"]])
    Z = pd.get_dummies(d["site"]).to_numpy(float)
    y = d["ill"].to_numpy(float) if loss == "logistic" else d["falls"].to_numpy(float)

    def mean(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if loss == "logistic":
            p = 1 / (1 + np.exp(-s))
            return np.logaddexp(0, s) - y * s, p, p * (1 - p)
        mu = np.exp(s)
        return mu - y * s, mu, mu

    def inner(theta: np.ndarray) -> tuple[float, np.ndarray]:
        x, tau, u = theta[:3], np.exp(theta[3]), np.zeros(SITES)
        for _ in range(50):
            _, mu, w = mean(X @ x + Z @ u)
            step = (Z.T @ (mu - y) + u / tau**2) / (Z.T @ w + 1 / tau**2)
            u = u - step
            if abs(step).max() < 1e-14:
                break
        value, _, w = mean(X @ x + Z @ u)
        return float(value.sum() + u @ u / tau**2 / 2 + np.log1p(tau**2 * (Z.T @ w)).sum() / 2), w

    best = scipy.optimize.minimize(lambda v: inner(v)[0], np.array([0, 0, 0, -0.5]), method="BFGS", tol=1e-9)
    w = inner(best.x)[1]
    tau = float(np.exp(best.x[3]))
    both = np.column_stack([X, Z])
    H = both.T @ (both * w[:, None]) + np.diag([0.0] * 3 + [tau**-2] * SITES)
    T = np.array([[1, -55 / 8, 0], [0, 1 / 8, 0], [0, 0, 1]])
    V = T @ np.linalg.inv(H)[:3, :3] @ T.T
    return T @ best.x[:3], tau, np.sqrt(np.diag(V)), -float(best.fun)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_other_models_are_laplaces_approximation(loss: str) -> None:
    d = frame()
    x, tau, errors, height = laplace(loss, d)
    ours = found_for(loss, d, random_intercepts=True)
    assert ours.random.tau == pytest.approx(tau, rel=1e-4)
    np.testing.assert_allclose([c.estimate for c in ours.coefficients], x, rtol=1e-4)
    np.testing.assert_allclose([c.error for c in ours.coefficients], errors, rtol=1e-4)
    assert ours.log_likelihood == pytest.approx(height, rel=1e-9)
    shared = found_for(loss, d)
    assert ours.random.statistic == pytest.approx(2 * (ours.log_likelihood - shared.log_likelihood))
    assert ours.random.p < 0.001


@pytest.mark.parametrize("loss", [*TARGETS])
def test_without_spread_there_is_one_intercept(loss: str) -> None:
    one = frame().head(60)
    d = pd.concat([one.assign(site=f"s{k}") for k in range(SITES)])  # all have the same rows
    ours, shared = found_for(loss, d, random_intercepts=True), found_for(loss, d)
    assert ours.random.tau == 0
    assert ours.random.p == 1
    np.testing.assert_array_equal([c.estimate for c in ours.coefficients], [c.estimate for c in shared.coefficients])
    np.testing.assert_allclose(ours.covariance, shared.covariance, rtol=1e-12)


def organisations(loss: str) -> tuple[Here, Regression]:
    d, own = frame(), []
    for _, rows in d.groupby("site"):
        y = rows[TARGETS[loss]["column"]].to_numpy(float)
        X = np.column_stack([(rows["a"] - 55) / 8, rows["b"]])
        own.append(OwnRows(X, 2 * y - 1 if loss == "logistic" else y, find_loss(loss)))
    here = Here(tuple(own), tuple(f"s{k}" for k in range(SITES)))
    return here, Regression.of(here, find_loss(loss), 2)


@pytest.mark.parametrize("loss", [*TARGETS])
def test_between_no_spread_and_all_of_it(loss: str) -> None:
    """tau -> 0 is one intercept, tau -> infinity one for each; derivatives are those of the values.

    The volume of a logistic model still depends on x where tau is large: what becomes that of site intercepts is the
    loss, and the estimate with it where the volume is constant.
    """
    here, regression = organisations(loss)
    shared = estimate(regression)
    own = estimate(Regression.of(here, regression.loss, 2, "own"))
    np.testing.assert_allclose(_profile(here, shared, 1e-5, shared.x).x, shared.x, atol=1e-7)
    far = here.random_sums(_tensor([*own.x, 0.0]), 1e5)
    np.testing.assert_allclose(far.gradient[:2], 0, atol=1e-5)
    np.testing.assert_allclose(far.hessian[:2, :2], own.sums.hessian, rtol=1e-6, atol=1e-6)
    if loss != "logistic":
        np.testing.assert_allclose(_profile(here, shared, 1e5, shared.x).x[:2], own.x, rtol=1e-5)
    x, t, eps = shared.x + 0.1, 0.8, 1e-5
    now = here.random_sums(_tensor(x), t)

    def moved(dx: np.ndarray, dt: float) -> Any:
        return here.random_sums(_tensor(x + dx), t + dt)

    for j, e in enumerate(eps * np.eye(3)):
        up, down = moved(e, 0), moved(-e, 0)
        assert float(now.gradient[j]) == pytest.approx((up.value - down.value) / 2 / eps, rel=1e-6, abs=1e-6)
        assert float(now.volume_gradient[j]) == pytest.approx((up.volume - down.volume) / 2 / eps, abs=1e-7)
        np.testing.assert_allclose(now.hessian[j], (up.gradient - down.gradient) / 2 / eps, atol=1e-5)
    up, down = moved(np.zeros(3), eps), moved(np.zeros(3), -eps)
    assert now.slope == pytest.approx((up.value - down.value) / 2 / eps, rel=1e-6)
    assert now.volume_slope == pytest.approx((up.volume - down.volume) / 2 / eps, rel=1e-6)
    if loss == "squared":
        np.testing.assert_allclose(now.turn, (up.hessian - down.hessian) / 2 / eps, rtol=1e-6, atol=1e-6)


def _tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(x, float))


def test_a_hospital_with_one_outcome_is_shrunken_and_finite() -> None:
    d = frame()
    d.loc[d["site"] == "s3", "ill"] = True
    ours = found_for("logistic", d, random_intercepts=True)
    assert 0 < ours.random.shifts["s3"] < 10
    assert ours.exchanges < 80


def test_refusals() -> None:
    d = frame()
    for more, said in (
        ({"site_intercepts": True}, "exclude each other"),
        ({"errors": "robust"}, "errors = 'robust' must be 'model'"),
        ({"imputations": 5}, "imputations must be 0"),
    ):
        with pytest.raises(InputError, match=said):
            found_for("logistic", d, random_intercepts=True, **more)
    with pytest.raises(InputError, match="loss = 'huber' has none"):
        glm(tables(TARGETS["squared"], d), loss="huber", random_intercepts=True)
    here, one = organisations("squared")
    with pytest.raises(InputError, match="two organisations"):
        with_random_intercepts(here.each[0], estimate(one))


def test_command_line(tmp_path: Path) -> None:
    d = frame()
    d.to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "t.toml").write_text(
        '[source]\nfiles = "all.csv"\norganisation = "site"\n[target]\ncolumn = "score"\n'
        '[columns]\na = { kind = "number" }\nb = { kind = "number" }\n[others]\nkind = "ignore"\n'
    )
    command = ["glm", str(tmp_path / "t.toml"), "--random-intercepts"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "out" / "inference.json").read_text())
    assert kept["random"]["tau"] == pytest.approx(found_for("squared", d, random_intercepts=True).random.tau)
    assert "restricted maximum likelihood, random intercepts" in result.output


def test_levels_may_be_far_apart() -> None:
    """Millions, as costs are: site intercepts and random ones are there, and nearly the same."""
    d = frame()
    d["score"] += 1e6 * d["site"].str[1:].astype(float)
    own, ours = found_for("squared", d, site_intercepts=True), found_for("squared", d, random_intercepts=True)
    within = d[["score", "a", "b"]] - d.groupby("site")[["score", "a", "b"]].transform("mean")
    slopes = np.linalg.lstsq(within[["a", "b"]], within["score"], rcond=None)[0]
    np.testing.assert_allclose([own["a"].estimate, own["b"].estimate], slopes, rtol=1e-5)
    np.testing.assert_allclose([ours["a"].estimate, ours["b"].estimate], slopes, rtol=1e-4)
    assert ours.random.tau == pytest.approx(1e6 * np.arange(SITES).std(ddof=1), rel=1e-3)
