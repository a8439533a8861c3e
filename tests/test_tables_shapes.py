"""Polynomials, splines and periods of a column, transforms of the target, and columns that a first look leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from proxfed.errors import InputError
from proxfed.fit.inference import glm
from proxfed.tables.design import design
from proxfed.tables.first_look import first_look
from proxfed.tables.schema import parse_schema
from proxfed.tables.sums import summarise
from proxfed.tables.table import read_frame

KNOTS = [1.0, 3.0, 6.0, 9.0]


def read(columns: dict[str, Any], target: dict[str, Any], frame: pd.DataFrame) -> Any:
    schema = {"source": {"organisation": "site"}, "target": target, "columns": columns, "others": {"kind": "ignore"}}
    return read_frame(parse_schema(schema), frame)


def frame(n: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x, hour = rng.uniform(0, 10, size=n), rng.integers(24, size=n)
    y = np.sin(x / 2) + 0.3 * np.cos(2 * np.pi * hour / 24) + rng.normal(scale=0.3, size=n)
    return pd.DataFrame({"site": rng.choice(["a", "b", "c"], size=n), "x": x, "hour": hour, "y": y, "z": np.exp(y)})


def test_polynomial_against_statsmodels() -> None:
    d = frame()
    found = glm(read({"x": {"kind": "number", "polynomial": 3}}, {"column": "y"}, d))
    ref = smf.ols("y ~ x + I(x**2) + I(x**3)", d).fit()
    assert found.names == ["(intercept)", "x", "x^2", "x^3"]
    np.testing.assert_allclose([c.estimate for c in found.coefficients], ref.params, rtol=1e-6)
    np.testing.assert_allclose([c.error for c in found.coefficients], ref.bse, rtol=1e-6)


def test_spline_spans_the_natural_cubic_splines() -> None:
    """patsy's basis of the same knots is another one of the same space: the fits agree."""
    d = frame()
    made = read({"x": {"kind": "number", "knots": KNOTS}}, {"column": "y"}, d)
    found = glm(made)
    inner = [t for t in KNOTS if t not in (KNOTS[0], KNOTS[-1])]
    ref = smf.ols(f"y ~ cr(x, knots={inner}, lower_bound={KNOTS[0]}, upper_bound={KNOTS[-1]}) - 1", d).fit()
    assert found.deviance == pytest.approx(ref.ssr, rel=1e-8)
    assert found.names == ["(intercept)", "x", "x from 1", "x from 3"]


def test_spline_is_linear_beyond_the_outer_knots() -> None:
    d = frame()
    made = design(read({"x": {"kind": "number", "knots": KNOTS}}, {"column": "y"}, d))
    beyond = pd.DataFrame({"site": "a", "x": [9.0, 10.0, 11.0, 12.0, -3.0, -1.0, 1.0], "y": 0.0})
    (table,) = read_frame(made.preparation.schema.at(organisation="site"), beyond).tables
    rows = made.preparation.apply(table, scaled=False)
    np.testing.assert_allclose(np.diff(rows[:4], n=2, axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(rows[4:, 1:], 0, atol=1e-12)


def test_period() -> None:
    d = frame()
    found = glm(read({"hour": {"kind": "number", "period": 24}}, {"column": "y"}, d))
    d["s"], d["c"] = np.sin(2 * np.pi * d["hour"] / 24), np.cos(2 * np.pi * d["hour"] / 24)
    ref = smf.ols("y ~ s + c", d).fit()
    np.testing.assert_allclose([c.estimate for c in found.coefficients], ref.params, rtol=1e-6)
    assert found.names == ["(intercept)", "sin(hour)", "cos(hour)"]


def test_powers_of_few_rows_are_withheld() -> None:
    """Five power sums of five rows give the rows: a column with more features needs more of them."""
    d = frame(30).assign(site="a")
    table = read({"x": {"kind": "number", "polynomial": 3}}, {"column": "y"}, d.head(14)).tables[0]
    assert "x^3" in summarise(table).withheld
    table = read({"x": {"kind": "number", "polynomial": 3}}, {"column": "y"}, d.head(15)).tables[0]
    assert "x^3" not in summarise(table).withheld


def test_target_transform_and_back() -> None:
    from proxfed.fit import fit
    from proxfed.fit.model_file import parse_model

    d = frame(120)
    columns = {"x": {"kind": "number", "polynomial": 2}}
    options: dict[str, Any] = {"weight": 0.01, "folds": 2, "repetitions": 0, "alone": False}
    logged = fit(read(columns, {"column": "z", "transform": "log"}, d), **options)
    plain = fit(read(columns, {"column": "y"}, d), **options)
    rows = {"x": [1.0, 5.0]}
    np.testing.assert_allclose(logged.model.predict(rows), np.exp(plain.model.predict(rows)), rtol=1e-8)
    again = parse_model(logged.model.text())
    np.testing.assert_allclose(again.predict(rows), logged.model.predict(rows))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"polynomial": 2, "period": 7}, "polynomial and period exclude each other"),
        ({"knots": [1, 3, 2]}, "must increase"),
        ({"knots": [1, 2, 3], "impute": "median", "range": [0, 9]}, "'median' does not go with knots"),
        ({"polynomial": 9}, "polynomial"),
    ],
)
def test_refusals(column: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_schema({"columns": {"x": {"kind": "number", **column}}})


def test_a_logarithm_of_what_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        read({"x": {"kind": "number"}}, {"column": "y", "transform": "log"}, frame())
    with pytest.raises(InputError, match="for a target that is a number"):
        parse_schema({"target": {"column": "y", "classes": ["a", "b"], "transform": "log"}})


def test_first_look_leaves_out_what_says_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for k, name in enumerate(("east", "west")):
        d = pd.DataFrame(
            {"No": range(1, 31), "station": name, "unit": "mg", "x": rng.normal(size=30), "y": rng.random(30)}
        )
        d["code"] = rng.integers(10**6, size=30) + k
        d.to_csv(tmp_path / f"{name}.csv", index=False)
    text = first_look(sorted(tmp_path.glob("*.csv")), target="y", beside=tmp_path)
    assert 'kind = "ignore"\n# it numbers the rows' in text.partition("[columns.No]")[2][:60]
    assert "it names the organisation" in text.partition("[columns.station]")[2][:120]
    assert "the same in all rows" in text.partition("[columns.unit]")[2][:60]
    assert 'kind = "number"' in text.partition("[columns.x]")[2][:30]
