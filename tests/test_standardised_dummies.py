"""[table] standardise_dummies: features of zeros and ones are scaled as numbers are, as glmnet does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Lasso

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit.card import card
from proxfed.fit.inference import glm
from proxfed.fit.private_tables import by_schema
from proxfed.silos.coordinator.fit import fit_between
from proxfed.tables.design import design
from proxfed.tables.preparation import Preparation
from proxfed.tables.schema import parse_schema
from proxfed.tables.table import read_frame

from support.fit_sites import Hospitals


def frame(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    grade, smokes = rng.choice(["a", "b", "c"], p=[0.7, 0.2, 0.1], size=n), rng.random(n) < 0.15
    ward, age = rng.choice(["x", "y", "z"], size=n), rng.normal(60, 10, size=n)
    age[rng.random(n) < 0.1] = np.nan
    y = 0.1 * np.nan_to_num(age, nan=60) + (grade == "c") - 1.5 * smokes + 0.5 * (ward == "y") + rng.normal(size=n)
    return pd.DataFrame({"site": np.arange(n) % 3, "grade": grade, "smokes": smokes, "ward": ward, "age": age, "y": y})


def tables(data: pd.DataFrame, standardise: bool = True, **table: Any) -> Any:
    schema = {
        "source": {"organisation": "site"},
        "table": {"standardise_dummies": standardise, "missing": ["", "nan"]} | table,
        "target": {"column": "y"},
        "columns": {
            "grade": {"kind": "category", "categories": ["a", "b", "c"]},
            "smokes": {"kind": "boolean"},
            "ward": {"kind": "category", "categories": ["x", "y", "z"], "reference": "x"},
            "age": {"kind": "number", "indicator": True},
        },
    }
    return read_frame(parse_schema(schema), data)


NAMES = ["grade=a", "grade=b", "grade=c", "smokes", "ward=y", "ward=z", "age", "age missing"]


def test_it_is_the_same_model_by_hand() -> None:
    d = frame()
    columns = [*(d["grade"] == g for g in "abc"), d["smokes"], d["ward"] == "y", d["ward"] == "z"]
    plain = np.column_stack([*columns, d["age"].fillna(d["age"].mean()), d["age"].isna()]).astype(float)
    scale = plain.std(0)
    scale[6] = d["age"].std(ddof=0)  # numbers: of what is known
    weight = 0.05
    theirs = Lasso(alpha=weight, tol=1e-12, max_iter=100_000).fit((plain - plain.mean(0)) / scale, d["y"])
    ours = fit(tables(d), weight=weight, repetitions=0, alone=False)
    assert list(ours.design.preparation.names) == NAMES
    x = ours.fit.x.numpy()
    np.testing.assert_allclose(x[:-1], theirs.coef_, atol=1e-7)
    coef, intercept = ours.design.preparation.original_scale(x[:-1], x[-1])
    np.testing.assert_allclose(coef, theirs.coef_ / scale, atol=1e-7)
    predicted = plain @ coef + intercept
    np.testing.assert_allclose(predicted, theirs.predict((plain - plain.mean(0)) / scale), atol=1e-6)
    assert "- smokes: boolean, a gap: mean, standardised" in card(ours)
    again = Preparation.from_plain(ours.design.preparation.plain())
    table = ours.design.tables.tables[0]
    np.testing.assert_array_equal(again.apply(table), ours.design.preparation.apply(table))


def test_estimates_without_a_penalty_do_not_change_and_debiased_ones_follow() -> None:
    d = frame()
    one, other = glm(tables(d)), glm(tables(d, False))
    assert one.names == other.names
    np.testing.assert_allclose(
        [[c.estimate, c.error, c.p] for c in one.coefficients],
        [[c.estimate, c.error, c.p] for c in other.coefficients],
        rtol=1e-6,
        atol=1e-12,
    )
    # of squared loss, one debiasing step from anywhere is the estimate without a penalty
    shrunken = fit(tables(d), weight=0.05, repetitions=0, alone=False).inference
    np.testing.assert_allclose(
        [c.estimate for c in shrunken.coefficients], [c.estimate for c in one.coefficients], rtol=1e-6
    )


def test_products_come_back_to_the_units_of_the_columns() -> None:
    made = design(tables(frame(), interactions=[["ward", "age"], ["smokes", "age"]]))
    rng = np.random.default_rng(0)
    x = rng.normal(size=len(made.preparation.names))
    coef, intercept = made.preparation.original_scale(x, 0.3)
    for table in made.tables.tables:
        scaled, plain = made.preparation.apply(table), made.preparation.apply(table, scaled=False)
        np.testing.assert_allclose(plain @ coef + intercept, scaled @ x + 0.3, atol=1e-9)


def test_what_is_withheld_stays_zero_or_one_and_is_said() -> None:
    d = frame()
    d.loc[d["grade"] == "c", "grade"] = "a"
    d.loc[[0, 1, 2], "grade"] = "c"  # one at each site
    preparation = design(tables(d)).preparation
    assert "grade=c" not in preparation.parameters
    assert any("grade=c" in note and "not standardised" in note for note in preparation.notes)
    with pytest.raises(InputError, match="standardise_dummies: a private fit"):
        by_schema(tables(d).schema)


def test_a_boolean_whose_gaps_are_refused_is_still_refused() -> None:
    schema = {
        "source": {"organisation": "site"},
        "table": {"standardise_dummies": True},
        "target": {"column": "y"},
        "columns": {"smokes": {"kind": "boolean", "impute": "refuse"}},
        "others": {"kind": "ignore"},
    }
    preparation = design(read_frame(parse_schema(schema), frame())).preparation
    assert preparation.parameters["smokes"].impute is None
    assert preparation.parameters["smokes"].scale != 1


def test_between_organisations_it_is_the_same_model(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, "squared", site={"fit": {"inference": False}})
    for file in tmp_path.rglob("*.toml"):
        if file.name in ("schema.toml", "tables.toml"):
            file.write_text(file.read_text().replace("[table]", "[table]\nstandardise_dummies = true"))
    h.start()
    given: dict[str, Any] = {"weight": 0.05, "alone": False}
    one = fit_between(tmp_path / "tables.toml", h, tmp_path / "fit", say=lambda said: None, **given).model
    other = fit(tmp_path / "tables.toml", repetitions=0, **given).model
    assert one.preparation == other.preparation
    assert one.preparation["parameters"]["chol missing"]["scale"] < 0.5
    np.testing.assert_allclose(one.original.coef, other.original.coef, rtol=1e-9, atol=1e-9)
