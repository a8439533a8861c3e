"""`proxfed glm` and its Python function: from tables with a schema to what a journal takes, against statsmodels."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from typer.testing import CliRunner

import proxfed
from proxfed.cli.main import app
from proxfed.errors import InputError
from proxfed.fit.inference import debiased_inference, glm
from proxfed.fit.inference.disguise import disguised
from proxfed.tables.design import design
from proxfed.tables.schema import parse_schema
from proxfed.tables.table import read_frame, read_tables

HEART = Path(proxfed.__file__).parents[2] / "examples" / "tables" / "heart-disease.toml"
CLOSE: Any = {"rtol": 1e-6, "atol": 1e-9}


def frame(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """Patients of three hospitals with several visits each; the south has a level of its own."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["east", "south", "west"], size=n)
    age, dose = rng.normal(60, 10, size=n), rng.exponential(2, size=n)
    grade = rng.choice(["a", "b", "c"], size=n)
    years = rng.uniform(0.5, 4, size=n)
    s = 0.03 * (age - 60) + 0.2 * dose + 0.5 * (grade == "c") + 0.8 * (site == "south") - 1
    return pd.DataFrame(
        {
            "site": site,
            "patient": [f"{name}-{k}" for name, k in zip(site, rng.integers(60, size=n), strict=True)],
            "age": age,
            "dose": dose,
            "grade": grade,
            "years": years,
            "falls": rng.poisson(years * np.exp(s)),
            "ill": rng.random(n) < 1 / (1 + np.exp(-s)),
            "score": s + rng.normal(size=n),
            "w": rng.uniform(0.5, 2, size=n),
        }
    )


def tables(target: dict[str, Any], data: pd.DataFrame | None = None, **columns: Any) -> Any:
    schema = {
        "source": {"organisation": "site"},
        "table": {"name": "visits"},
        "target": target,
        "columns": {
            "age": {"kind": "number"},
            "dose": {"kind": "number"},
            "grade": {"kind": "category", "categories": ["a", "b", "c"]},
            **columns,
        },
        "others": {"kind": "ignore"},
    }
    return read_frame(parse_schema(schema), frame() if data is None else data)


ILL = {"column": "ill", "classes": {"well": "false", "ill": "true"}}
NAMES = ["(intercept)", "grade=b", "grade=c", "age", "dose"]
"""In statsmodels' order."""


def test_rates_with_exposure_and_clusters() -> None:
    found = glm(
        tables({"column": "falls", "exposure": "years", "cluster": "patient"}), loss="poisson", errors="cluster"
    )
    d = frame()
    model = smf.glm("falls ~ age + dose + grade", d, family=sm.families.Poisson(), offset=np.log(d["years"]))
    codes = d["patient"].astype("category").cat.codes
    ref = model.fit(tol=1e-12, cov_type="cluster", cov_kwds={"groups": codes, "use_correction": True})
    np.testing.assert_allclose([found[name].estimate for name in NAMES], ref.params, **CLOSE)
    np.testing.assert_allclose([found[name].error for name in NAMES], ref.bse, **CLOSE)
    assert found.errors == "clustered by patient"
    assert found["age"].ratio == pytest.approx(float(np.exp(ref.params["age"])), rel=1e-6)


def test_linear_model_with_weights_is_weighted_least_squares() -> None:
    found = glm(tables({"column": "score", "weight": "w"}))
    d = frame()
    ref = smf.wls("score ~ age + dose + grade", d, weights=d["w"]).fit()
    np.testing.assert_allclose([found[name].estimate for name in NAMES], ref.params, **CLOSE)
    np.testing.assert_allclose([found[name].error for name in NAMES], ref.bse, **CLOSE)
    np.testing.assert_allclose([found[name].p for name in NAMES], ref.pvalues, **CLOSE)
    np.testing.assert_allclose([(found[name].low, found[name].high) for name in NAMES], ref.conf_int(), **CLOSE)
    np.testing.assert_allclose(found.dispersion, ref.mse_resid, rtol=1e-9)
    names = [a.name for a in found.agreement]
    assert names == ["age", "dose", "grade=b", "grade=c"]
    order = [found.names.index(name) for name in NAMES]
    np.testing.assert_allclose(found.covariance[np.ix_(order, order)], ref.cov_params(), **CLOSE)


def test_site_intercepts_are_indicators_and_stay_at_the_site() -> None:
    found = glm(tables(ILL), site_intercepts=True)
    d = frame().assign(y=lambda f: f["ill"].astype(float))
    ref = smf.glm("y ~ age + dose + grade + site", d, family=sm.families.Binomial()).fit(tol=1e-12)
    for name, theirs in (("age", "age"), ("dose", "dose"), ("grade=c", "grade[T.c]")):
        assert found[name].estimate == pytest.approx(ref.params[theirs], rel=1e-6)
        assert found[name].error == pytest.approx(ref.bse[theirs], rel=1e-6)
    less = smf.glm("y ~ age + dose + grade", d, family=sm.families.Binomial()).fit(tol=1e-12)
    assert found.sites is not None
    assert found.sites.statistic == pytest.approx(2 * (ref.llf - less.llf), rel=1e-6)
    assert found.sites.df == 2
    assert "(intercept)" not in found.names
    assert found.log_likelihood == pytest.approx(ref.llf, rel=1e-9)
    assert found.aic == pytest.approx(ref.aic, rel=1e-9)
    own = found.own_intercepts
    assert own["south"] - own["east"] == pytest.approx(ref.params["site[T.south]"], rel=1e-6)  # type: ignore[operator]


def test_table_of_deviance_leaves_whole_columns_out() -> None:
    found = glm(tables(ILL))
    d = frame().assign(y=lambda f: f["ill"].astype(float))
    full = smf.glm("y ~ age + dose + grade", d, family=sm.families.Binomial()).fit(tol=1e-12)
    for term, rest in (("age", "dose + grade"), ("dose", "age + grade"), ("grade", "age + dose")):
        less = smf.glm(f"y ~ {rest}", d, family=sm.families.Binomial()).fit(tol=1e-12)
        (test,) = (t for t in found.terms if t.name == term)
        assert test.statistic == pytest.approx(2 * (full.llf - less.llf), rel=1e-6)
        assert test.df == (2 if term == "grade" else 1)


def test_it_advises_site_intercepts_where_levels_differ() -> None:
    advised = "fit with site intercepts"
    assert any(advised in note for note in glm(tables(ILL)).notes)
    assert not any(advised in note for note in glm(tables(ILL), site_intercepts=True).notes)
    alike = frame().assign(site=np.random.default_rng(3).choice(["east", "west"], size=600))
    assert not any(advised in note for note in glm(tables(ILL, alike)).notes)


def test_debiased_of_a_shrunken_model_agrees_with_maximum_likelihood_of_least_squares() -> None:
    """For squared loss the debiased estimate is least squares, whatever the start, with all categories in the model."""
    read = tables({"column": "score"})
    made = design(read)
    x = np.random.default_rng(0).normal(size=len(made.preparation.names) + 1)
    one, other = debiased_inference(made, "squared", x, adjust="none"), glm(read)
    assert one.names == other.names
    np.testing.assert_allclose(
        [c.estimate for c in one.coefficients], [c.estimate for c in other.coefficients], **CLOSE
    )


def test_a_feature_that_names_an_organisation_is_noticed() -> None:
    d = frame()
    d["lab"] = np.where(d["site"] == "south", np.nan, np.random.default_rng(1).normal(size=len(d)))
    d["rare"] = (np.random.default_rng(2).random(len(d)) < 0.002).astype(int)
    columns = {"lab": {"kind": "number", "indicator": True}, "rare": {"kind": "boolean"}}
    made = design(tables(ILL, d, **columns))
    found = disguised(made)
    assert found["lab"] == ["south"]
    assert "south" in found["lab missing"]
    assert "rare" not in found
    assert "age" not in found


def test_refusals() -> None:
    with pytest.raises(InputError, match="errors = 'hc9' is not one of model, robust"):
        glm(tables(ILL), errors="hc9")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"errors = 'cluster' needs target\.cluster"):
        glm(tables(ILL), errors="cluster")
    with pytest.raises(InputError, match="loss = 'poisson' does not fit the target"):
        glm(tables(ILL), loss="poisson")
    with pytest.raises(InputError, match=r"huber.*no likelihood"):
        glm(tables({"column": "score"}), loss="huber")
    few = frame(12)
    with pytest.raises(InputError, match="say too much about single rows"):
        glm(tables({"column": "score"}, few))
    with pytest.raises(InputError, match="no standard errors: 5 coefficients need 50 rows"):
        debiased_inference(design(tables({"column": "score"}, frame(40))), "squared", np.zeros(6))
    with pytest.raises(InputError, match=r"offset.*exposure.*exclude"):
        tables({"column": "falls", "offset": "years", "exposure": "years"})
    with pytest.raises(InputError, match="other fits take no offsets"):
        design(tables({"column": "falls", "exposure": "years"})).federated()


# ---- files ----------------------------------------------------------------------------------------------------------


def test_exports_say_the_same() -> None:
    found = glm(tables(ILL), adjust="bh", forest=False)
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert [line["name"] for line in lines] == found.names
    assert float(lines[1]["estimate"]) == found.coefficients[1].estimate
    assert float(lines[1]["ratio_high"]) == found.coefficients[1].ratio_interval[1]
    plain = json.loads(found.json())
    assert plain["coefficients"][2]["p"] == found.coefficients[2].p
    assert plain["forest"] == []
    tex = found.latex()
    assert tex.count(r"\\") == len(lines) + 1
    assert r"95 \% interval" in tex
    assert "| age |" in found.markdown()


def test_names_from_tables_are_escaped() -> None:
    d = frame().assign(grade=lambda f: f["grade"].replace({"b": "b_%&<i>"}))
    grade = {"kind": "category", "categories": ["a", "b_%&<i>", "c"]}
    found = glm(tables(ILL, d, grade=grade))
    assert r"b\_\%\&$<$i$>$" in found.latex()
    from proxfed.fit.inference.page import inference_page

    assert "<i>" not in inference_page(found).split("</header>")[1]


def test_command_line(tmp_path: Path) -> None:
    d = frame()
    d.assign(ill=d["ill"].astype(int)).to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "t.toml").write_text(
        '[source]\nfiles = "visits.csv"\norganisation = "site"\n'
        '[target]\ncolumn = "ill"\nclasses = { well = 0, ill = 1 }\ncluster = "patient"\n'
        '[columns]\nage = { kind = "number" }\ndose = { kind = "number" }\n[others]\nkind = "ignore"\n'
    )
    out = tmp_path / "out"
    command = ["glm", str(tmp_path / "t.toml"), "--site-intercepts", "--errors", "cluster", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "odds ratio" in result.output
    assert "clustered by patient" in result.output
    kept = json.loads((out / "inference.json").read_text())
    want = glm(tmp_path / "t.toml", site_intercepts=True, errors="cluster")
    assert kept["coefficients"][0]["error"] == want.coefficients[0].error
    assert "<svg" in (out / "report.html").read_text()
    again = CliRunner().invoke(app, command)
    assert again.exit_code != 0
    assert "--force" in str(again.exception)


# ---- real -----------------------------------------------------------------------------------------------------------


def test_heart_disease_missing_cholesterol_is_a_hospital() -> None:
    """With one intercept it has one of the smallest p-values; with an intercept for each hospital it has none."""
    try:
        read = read_tables(HEART)
    except InputError as e:
        pytest.skip(f"the heart-disease tables are not here: {e}")
    one, each = glm(read), glm(read, site_intercepts=True)
    assert one["chol missing"].p < 1e-6
    assert each["chol missing"].p > 0.5
    assert each.sites is not None
    assert each.sites.statistic == pytest.approx(33.03, abs=0.01)
    assert any("'chol' is missing in all rows of switzerland" in note for note in one.notes)
    made = design(read)
    keep = [j for j, name in enumerate(made.preparation.names) if name not in ("pain=typical", "ecg=normal")]
    X = np.concatenate([made.preparation.apply(table, scaled=False) for table in read.tables])[:, keep]
    y = np.concatenate([table.labels for table in read.tables if table.labels is not None])
    site = np.concatenate([np.full(len(table), k) for k, table in enumerate(read.tables)])
    ref = sm.GLM(y, np.column_stack([X, np.eye(4)[site]]), family=sm.families.Binomial()).fit(tol=1e-12)
    np.testing.assert_allclose([c.estimate for c in each.coefficients], ref.params[: len(keep)], **CLOSE)
    np.testing.assert_allclose([c.error for c in each.coefficients], ref.bse[: len(keep)], **CLOSE)


# ---- survival -------------------------------------------------------------------------------------------------------


def test_a_survival_model_predicts_a_risk(tmp_path: Path) -> None:
    """Of many rows the share of events until t is the mean risk; the model survives its file, and others have none."""
    from proxfed.fit import fit, read_model

    rng = np.random.default_rng(0)
    n = 900
    x = rng.normal(size=n)
    t, c = rng.exponential(5 * np.exp(-0.8 * x)), rng.uniform(4, 12, size=n)
    d = pd.DataFrame({"site": rng.choice(["a", "b"], size=n), "x": x, "t": np.minimum(t, c), "e": (t <= c).astype(int)})
    schema = {
        "source": {"organisation": "site"},
        "target": {"time": "t", "event": "e"},
        "columns": {"x": {"kind": "number"}},
    }
    options: dict[str, Any] = {"weight": 0.0, "folds": 2, "repetitions": 0, "alone": False}
    fitted = fit(read_frame(parse_schema(schema), d), **options)
    fitted.save(tmp_path)
    model = read_model(tmp_path)
    risk = model.risk({"x": x}, 3.0)
    assert risk.mean() == pytest.approx((t <= 3.0).mean(), abs=0.04)
    true = 1 - np.exp(-3.0 / 5 * np.exp(0.8 * x))
    assert np.abs(risk - true).mean() < 0.04
    with pytest.raises(InputError, match="beyond the last time"):
        model.risk({"x": x}, 50.0)
    assert fitted.inference["x"].ratio == pytest.approx(np.exp(0.8), rel=0.15)
