"""Fits with a penalty in which every organisation keeps an intercept of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Lasso

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.tables.schema import parse_schema
from proxfed.tables.table import read_frame

OPTIONS: dict[str, Any] = {"repetitions": 0, "alone": False, "folds": 3, "site_intercepts": True}
P = 6


def tables(kind: str, seed: int = 0, n: int = 240) -> tuple[Any, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    site = np.sort(rng.choice(["a", "b", "c"], size=n))
    level = {"a": -1.0, "b": 0.5, "c": 2.0}
    X = rng.normal(size=(n, P)) + 0.6 * pd.Series(site).map(level).to_numpy()[:, None] * np.eye(P)[0]
    s = X @ [0.0, 0.8, -0.6, 0.4, 0, 0] + pd.Series(site).map(level).to_numpy()
    y: Any = s + rng.normal(size=n)
    if kind == "logistic":
        y = (rng.random(n) < 1 / (1 + np.exp(-s))).astype(int)
    d = pd.DataFrame(X, columns=[f"x{j}" for j in range(P)]).assign(site=site, y=y)
    target: dict[str, Any] = {"column": "y"} | ({"classes": ["0", "1"]} if kind == "logistic" else {})
    schema = {
        "source": {"organisation": "site"},
        "target": target,
        "columns": {f"x{j}": {"kind": "number"} for j in range(P)},
    }
    return read_frame(parse_schema(schema), d), d


def test_least_squares_is_the_lasso_of_rows_centred_within_organisations() -> None:
    read, d = tables("squared")
    fitted = fit(read, weight=0.1, **OPTIONS)
    X = np.concatenate([fitted.design.preparation.apply(table) for table in read.tables])
    site, y = d["site"].to_numpy(), d["y"].to_numpy()
    centred = X - pd.DataFrame(X).groupby(site).transform("mean").to_numpy()
    ref = Lasso(alpha=0.1, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(
        centred, y - pd.Series(y).groupby(site).transform("mean").to_numpy()
    )
    np.testing.assert_allclose(fitted.model.prepared.coef[0], ref.coef_, atol=1e-8)
    for name, own in fitted.own_intercepts.items():
        at = site == name
        assert own == pytest.approx(float((y[at] - X[at] @ ref.coef_).mean()), abs=1e-8)


def test_logistic_meets_the_conditions_of_optimality_of_all_coefficients() -> None:
    """With an indicator for every organisation that no penalty touches: gradients in the penalised coefficients are at
    most the weight, and equal to it where a coefficient is not zero; in the intercepts they are zero."""
    read, d = tables("logistic", 1)
    weight = 0.04
    fitted = fit(read, weight=weight, **OPTIONS)
    X = np.concatenate([fitted.design.preparation.apply(table) for table in read.tables])
    x = np.array(fitted.model.prepared.coef[0])
    own = d["site"].map(fitted.own_intercepts).to_numpy()
    r = (1 / (1 + np.exp(-(X @ x + own))) - d["y"].to_numpy()) / len(d)
    g = X.T @ r
    there = x != 0
    assert 0 < there.sum() < P
    np.testing.assert_allclose(g[there], -weight * np.sign(x[there]), atol=1e-9)
    assert (np.abs(g[~there]) <= weight + 1e-9).all()
    np.testing.assert_allclose(pd.Series(r).groupby(d["site"]).sum(), 0, atol=1e-12)


def test_cross_validation_scores_rows_by_the_intercept_of_their_own_organisation() -> None:
    """Calibrated at every organisation, where one intercept is not; debiased intervals have own ones as well."""
    read, _ = tables("logistic", 2)
    own, one = fit(read, weights=6, **OPTIONS), fit(read, weights=6, **OPTIONS | {"site_intercepts": False})
    assert own.cv is not None
    assert one.cv is not None
    assert own.cv.mean.min() < one.cv.mean.min()
    for name in ("a", "b", "c"):
        part = own.held.parts[name]
        y, s = own.held.labels[part] > 0, own.scores[part, 0]
        assert (1 / (1 + np.exp(-s))).mean() == pytest.approx(y.mean(), abs=0.05)
    assert own.inference.site_intercepts
    assert any("calibration intercepts differ" in note for note in one.model.notes)
    assert not any("calibration intercepts differ" in note for note in own.model.notes)
    sizes = [len(table) for table in read.tables]
    mean = np.average([*own.own_intercepts.values()], weights=sizes)
    assert own.model.prepared.intercept[0] == pytest.approx(mean)


def test_an_organisation_with_one_outcome_takes_part() -> None:
    read, d = tables("logistic", 3)
    d.loc[d["site"] == "b", "y"] = 1
    fitted = fit(read_frame(read.schema.at(organisation="site"), d), weight=0.05, **OPTIONS)
    assert np.isfinite(fitted.model.prepared.coef).all()
    assert fitted.own_intercepts["b"] > 20


def test_refusals() -> None:
    read, _ = tables("logistic")
    with pytest.raises(InputError, match="one that is left out has no intercept"):
        fit(read, cv="organisation", **OPTIONS)
    with pytest.raises(InputError, match="needs intercept = true"):
        fit(read, weight=0.1, intercept=False, **OPTIONS)
