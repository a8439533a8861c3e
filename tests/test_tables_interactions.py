"""Products of two columns: the same model on both scales, the same estimates as a formula with x * z, the same in R."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit.inference import glm
from proxfed.fit.r_script import r_script
from proxfed.tables import design, parse_schema, read_frame
from proxfed.tables.table import Tables


def frame(rows: int = 300) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"x": rng.normal(5, 2, rows), "z": rng.normal(-3, 4, rows)}
    found["g"] = ["u", "v", "w"] * (rows // 3)
    v = np.array(found["g"]) == "v"
    found["y"] = 1 + 0.5 * found["x"] * v + 0.2 * found["x"] * found["z"] + rng.normal(size=rows)
    found["h"] = rng.choice(["a", "b"], rows).tolist()
    return found


def tables(pairs: list[list[str]], rows: dict[str, Any] | None = None, reference: str = "u") -> Tables:
    schema = {
        "source": {"organisation": "h"},
        "table": {"interactions": pairs},
        "target": {"column": "y"},
        "columns": {
            "x": {"kind": "number"},
            "z": {"kind": "number"},
            "g": {"kind": "category", "categories": ["u", "v", "w"], "reference": reference},
        },
    }
    return read_frame(parse_schema(schema), frame() if rows is None else rows)


PAIRS = [["x", "g"], ["x", "z"]]


def test_both_scales_give_the_same_scores_with_gaps_as_well() -> None:
    rows = frame()
    rows["x"] = [None if k % 10 == 0 else float(v) for k, v in enumerate(rows["x"])]
    made = design(tables(PAIRS, rows)).preparation
    assert made.names == ("x", "z", "g=v", "g=w", "x:g=v", "x:g=w", "x:z")
    assert made.groups == (0, 1, 2, 2, 3, 3, 4)
    coef = np.random.default_rng(1).normal(size=(2, 7))
    original, at = made.original_scale(coef, np.array([0.3, -1.0]))
    for table in tables(PAIRS, rows).tables:
        scaled = made.apply(table) @ coef.T + np.array([0.3, -1.0])
        np.testing.assert_allclose(made.apply(table, scaled=False) @ original.T + at, scaled, rtol=1e-9)


def test_estimates_and_errors_are_those_of_a_formula() -> None:
    ours = glm(tables(PAIRS))
    theirs = smf.ols("y ~ x * C(g) + x * z", pd.DataFrame(frame())).fit()
    names = {"(intercept)": "Intercept", "x": "x", "z": "z", "x:z": "x:z"}
    names |= {"g=v": "C(g)[T.v]", "g=w": "C(g)[T.w]", "x:g=v": "x:C(g)[T.v]", "x:g=w": "x:C(g)[T.w]"}
    for name, other in names.items():
        assert ours[name].estimate == pytest.approx(theirs.params[other], rel=1e-6, abs=1e-9)
        assert ours[name].error == pytest.approx(theirs.bse[other], rel=1e-6)
    assert {a.name for a in ours.agreement} == {"x:g=v", "x:g=w", "x:z"}
    assert "x by g" in {term.name for term in ours.terms}


def test_a_sparse_model_keeps_what_is_there_and_its_script_multiplies() -> None:
    model = fit(tables(PAIRS), weight=0.1, folds=2, repetitions=0, alone=False).model
    assert dict(zip(model.features, model.prepared.coef[0], strict=True))["x:z"] != 0
    assert "f7 <- f1 * f2" in r_script(model)


@pytest.mark.parametrize(
    ("pairs", "reference", "said"),
    [
        ([["x", "q"]], "u", "'q' is not a column that predicts"),
        ([["x", "x"]], "u", "polynomial = 2"),
        ([["x", "g"]], "", "columns.g needs reference"),
        ([["x"]], "u", "interactions"),
    ],
)
def test_products_that_cannot_be_are_refused(pairs: list[list[str]], reference: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        design(tables(pairs, reference=reference))
