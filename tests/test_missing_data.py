"""Gaps: imputed several times and pooled, shown by organisation and outcome, and rows that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from proxfed.errors import InputError
from proxfed.fit import fit, read_model
from proxfed.fit.inference import glm
from proxfed.fit.inference.rubin import pooled
from proxfed.fit.missing_tables import missing_cells
from proxfed.fit.predictions import evaluated, predictions, read_rows
from proxfed.tables import holdings, parse_schema, read_frame
from proxfed.tables.imputation import imputed
from proxfed.tables.table import Tables

from support.cli import proxfed


def of_gaps(rows: int = 2000, seed: int = 0, kinds: bool = False) -> Tables:
    """y = x + z + noise, z near x, and z missing where x is large: the mean of what is there is not the mean of all."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    z = 0.7 * x + 0.7 * rng.normal(size=rows)
    y = x + z + 0.5 * rng.normal(size=rows)
    hidden = rng.random(rows) < 1 / (1 + np.exp(-2 * x))
    shown = [None if h else float(v) for h, v in zip(hidden, z, strict=True)]
    frame: dict[str, Any] = {"x": x, "z": shown, "y": y, "h": np.where(np.arange(rows) % 2, "a", "b")}
    columns: dict[str, Any] = {"x": {"kind": "number"}, "z": {"kind": "number", "indicator": True}}
    if kinds:
        frame["c"] = [None if k % 7 == 0 else "uvw"[k % 3] for k in range(rows)]
        columns["c"] = {"kind": "category", "categories": ["u", "v", "w"]}
    schema = {"source": {"organisation": "h"}, "target": {"column": "y"}, "columns": columns}
    return read_frame(parse_schema(schema), frame)


# ---- multiple imputation --------------------------------------------------------------------------------------------


def test_a_gap_gets_a_value_that_a_row_of_the_same_organisation_has() -> None:
    tables = of_gaps(300, kinds=True)
    for i, table in enumerate(tables.tables):
        whole = imputed(table, 3, 1, i)
        for name, values in table.columns.items():
            gaps = np.isnan(values)
            assert not np.isnan(whole.columns[name]).any()
            assert set(whole.columns[name][gaps]) <= set(values[~gaps])
            np.testing.assert_array_equal(whole.columns[name][~gaps], values[~gaps])
        again, other = imputed(table, 3, 1, i), imputed(table, 3, 2, i)
        np.testing.assert_array_equal(whole.columns["z"], again.columns["z"])
        assert not np.array_equal(whole.columns["z"], other.columns["z"])


def test_multiple_imputation_mends_what_filling_with_the_mean_distorts() -> None:
    once, often = glm(of_gaps()), glm(of_gaps(), imputations=8)
    for name in ("x", "z"):
        assert abs(often[name].estimate - 1) < abs(once[name].estimate - 1) / 4
    assert "z missing" in once.names
    assert "z missing" not in often.names
    assert any("Rubin's rules" in note for note in often.notes)
    assert not any("imputed once" in note for note in often.notes)


def test_pooling_is_rubins_with_the_degrees_of_freedom_of_barnard_and_rubin() -> None:
    found = [glm(of_gaps(200, seed)) for seed in range(4)]
    ours = pooled(found)
    for k, name in enumerate(ours.names):
        b = np.array([each[name].estimate for each in found])
        inside = np.mean([each[name].error ** 2 for each in found])
        total = inside + 1.25 * b.var(ddof=1)
        share = 1.25 * b.var(ddof=1) / total
        complete = found[0].rows - found[0].parameters
        observed = (complete + 1) / (complete + 3) * complete * (1 - share)
        df = 1 / (share**2 / 3 + 1 / observed)
        assert ours[name].estimate == pytest.approx(b.mean())
        assert ours[name].error == pytest.approx(total**0.5)
        assert ours.covariance[k, k] == pytest.approx(total)
        assert ours[name].high - b.mean() == pytest.approx(stats.t.ppf(0.975, df) * total**0.5, rel=1e-6)
        assert ours[name].p == pytest.approx(2 * stats.t.sf(abs(b.mean()) / total**0.5, df), rel=1e-6)


def test_what_cannot_be_imputed_is_said() -> None:
    tables = of_gaps(200)
    one, other = tables.tables
    one.columns["z"][:] = np.nan
    found = glm(tables, imputations=2)
    assert any("'z' cannot be imputed from its own rows" in note for note in found.notes)
    with pytest.raises(InputError, match="imputations = 1"):
        glm(tables, imputations=1)
    for table in (one, other):
        table.columns["z"][:] = np.arange(len(table))
    with pytest.raises(InputError, match="no value is missing"):
        glm(tables, imputations=5)


# ---- who lacks what -------------------------------------------------------------------------------------------------


def test_gaps_by_outcome_are_shown_whole_or_not_at_all() -> None:
    columns = {"x": {"kind": "number"}, "z": {"kind": "number"}}
    plain = {"target": {"column": "y", "classes": ["well", "ill"]}, "columns": columns}
    y = ["well"] * 20 + ["ill"] * 20
    few = [None] * 6 + [1.0] * 14 + [None] * 3 + [1.0] * 17
    many = [None] * 6 + [1.0] * 14 + [None] * 12 + [1.0] * 8
    held = holdings(read_frame(parse_schema(plain), {"x": few, "z": many, "y": y}, "one"))
    assert held.missing["x"]["one"] == 9
    assert {outcome: counts["one"] for outcome, counts in held.missing_by_outcome["x"].items()} == {
        "well": None,
        "ill": None,
    }
    assert {outcome: counts["one"] for outcome, counts in held.missing_by_outcome["z"].items()} == {
        "well": 6,
        "ill": 12,
    }
    head, lines = missing_cells(held)
    assert head == ["column", "organisation", "missing", "of well", "of ill"]
    assert lines == [
        ["x", "one", "9 of 40 (22 %)", "-", "-"],
        ["z", "one", "18 of 40 (45 %)", "6 of 20 (30 %)", "12 of 20 (60 %)"],
    ]


# ---- rows of another file -------------------------------------------------------------------------------------------

SCHEMA = """
[source]
files = ["a.csv", "b.csv"]
drop = ["y", "x"]
[table]
missing = ["NA", ""]
[target]
column = "y"
[columns.x]
kind = "number"
range = [0, 100]
[columns.c]
kind = "category"
categories = ["u", "v"]
"""


def model_of(folder: Path) -> Path:
    """Of two files in which some rows lack the target."""
    rng = np.random.default_rng(0)
    for name in "ab":
        lines = [f"{x:.3f},{'uv'[k % 2]},{'NA' if k % 9 == 0 else f'{x + k % 2:.3f}'}" for k, x in enumerate(
            rng.uniform(0, 100, 60))]  # fmt: skip
        (folder / f"{name}.csv").write_text("\n".join(["x,c,y", *lines, ""]))
    (folder / "tables.toml").write_text(SCHEMA)
    fit(folder / "tables.toml", weight=0.01, folds=2, repetitions=0, alone=False).save(folder / "model")
    return folder / "model"


def test_a_file_that_the_model_was_fitted_to_can_be_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = model_of(tmp_path)
    model = read_model(place)
    assert model.drop == ["y", "x"]
    rows = read_rows(model, tmp_path / "a.csv", target=True)
    assert rows.dropped == 7
    assert len(rows.table) == 53
    assert rows.numbers[:9] == [2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert evaluated(model, rows.table)["r2"][0] > 0.9
    to = ("--out", str(tmp_path / "p.csv"))
    code, _, said = proxfed(capsys, "predict", str(place), str(tmp_path / "a.csv"), "--evaluate", *to)
    assert code == 0
    assert "7 rows have no value in y or x" in said
    assert len(read_rows(model, tmp_path / "a.csv").table) == 60


def test_a_row_that_cannot_be_read_is_marked_and_the_others_are_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = model_of(tmp_path)
    (tmp_path / "new.csv").write_text("x,c\n5,u\n6,w\n7,v\n700,u\n8,w\n")
    rows = read_rows(read_model(place), tmp_path / "new.csv")
    assert rows.numbers == [1, 3]
    assert list(rows.strange) == [2, 4, 5]
    found = predictions(read_model(place), rows)
    assert found["row"] == [1, 2, 3, 4, 5]
    assert [p is None for p in found["prediction"]] == [False, True, False, True, True]
    assert "column 'c', row 2 holds 'w'" in found["problem"][1]
    assert "column 'x', row 4 holds '700'" in found["problem"][3]
    assert "row 5" in found["problem"][4]
    code, text, said = proxfed(capsys, "predict", str(place), str(tmp_path / "new.csv"))
    assert code == 0
    assert "3 rows have no prediction" in said
    assert text.splitlines()[0] == "row,prediction,problem"
    _, text, _ = proxfed(capsys, "predict", str(place), str(tmp_path / "new.csv"), "--format", "json")
    assert json.loads(text)["rows"][1]["prediction"] is None
    (tmp_path / "bad.csv").write_text("x,c\n5,w\n")
    with pytest.raises(InputError, match="holds 'w'"):
        read_rows(read_model(place), tmp_path / "bad.csv")
