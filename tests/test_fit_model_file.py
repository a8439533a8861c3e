"""The file of a model: read without proxfed, applied to other files, refused in one sentence where it is damaged."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.fit import Model, read_model
from proxfed.fit.model_file import parse_model
from proxfed.fit.predictions import evaluated, predictions, read_rows

from support.fitted import clinics
from support.tables import CLINICS


def west() -> list[dict[str, str]]:
    """The rows of a file as any program reads them."""
    return list(csv.DictReader(io.StringIO((CLINICS / "west.csv").read_text())))


def by_hand(text: str, row: dict[str, str]) -> float:
    """The probability of 'ill' from model.json alone: no proxfed, no file but this one."""
    model = json.loads(text)
    coef = dict(zip(model["features"], model["original"]["coef"][0], strict=True))
    gap = {name: p["impute"] for name, p in model["preparation"]["parameters"].items()}
    known = {name: row.get(name, "").strip() for name in ("age", "weight", "chol", "smoker", "income", "visit")}
    value = {name: None if text in ("", "?", "NA") else text for name, text in known.items()}
    x = {name: float(value[name]) if value[name] else gap[name] for name in ("age", "weight")}
    x["chol"] = float(value["chol"]) if value["chol"] and float(value["chol"]) else gap["chol"]
    x["chol missing"] = float(not value["chol"] or float(value["chol"]) == 0)
    x["sex=male"] = float(row["sex"] == "M")
    x["smoker"] = float(value["smoker"] in ("yes", "1", "true")) if value["smoker"] else gap["smoker"]
    money = (value["income"] or "").replace("$", "").replace(",", "")
    x["log(1+income)"] = math.log1p(float(money)) if money else gap["log(1+income)"]
    stage = row["stage"] if row["stage"] not in ("", "?", "NA") else model["preparation"]["modes"]["stage"]
    x |= {f"stage={k}": float(k == stage) for k in ("I", "II", "III", "IV")}
    day = np.datetime64("-".join(value["visit"].split("/")[::-1])) if value["visit"] else None
    x["visit days"] = float((day - np.datetime64("2019-01-01")).astype(int)) if day else gap["visit days"]
    score = model["original"]["intercept"][0] + sum(coef[name] * x[name] for name in coef)
    return 1 / (1 + math.exp(-score))


def test_the_file_alone_is_enough_to_predict() -> None:
    model = clinics().model
    rows = read_rows(model, CLINICS / "west.csv")
    left_out = rows.unused
    ours = predictions(model, rows)["probability of ill"]
    assert left_out == []
    assert [by_hand(model.text(), row) for row in west()] == pytest.approx(ours, abs=1e-12)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    found = clinics()
    found.save(tmp_path / "made")
    again = read_model(tmp_path / "made")
    assert again == found.model
    for table in found.design.tables.tables:
        np.testing.assert_array_equal(again.scores(table), found.model.scores(table))
        assert again.predict_proba(table).sum(1) == pytest.approx(1)
        assert set(again.predict(table)) <= {"well", "ill"}
    assert again.coef_.shape == (1, 12)
    assert again.classes_.tolist() == ["well", "ill"]
    lines = list(csv.DictReader(io.StringIO((tmp_path / "made" / "coefficients.csv").read_text())))
    assert [float(line["original"]) for line in lines] == [again.original.intercept[0], *again.original.coef[0]]


def fifth(stages: list[str], **more: Any) -> dict[str, Any]:
    """The table of a clinic that took no part."""
    n = len(stages)
    frame = {"visit": ["01/02/2020"] * n, "stage": stages, "sex": ["F"] * n, "income": ["$1,000"] * n}
    return frame | {"chol": [200] * n, "weight": [70.0] * n, "age": [60] * n} | more


def unchecked() -> dict[str, Any]:
    """The model's file without its checksum, so that it may be changed."""
    plain = json.loads(clinics().model.text())
    del plain["sha256"]
    return plain


def with_fate(unseen: str) -> Model:
    """The same model, if its schema said so of words that it does not know."""
    plain = unchecked()
    dict(plain["preparation"]["table"]["columns"])["stage"]["unseen"] = unseen
    return parse_model(json.dumps(plain))


def test_a_fifth_clinic_with_another_order_and_unseen_categories() -> None:
    model = clinics().model
    assert len(model.predict(fifth(["I", "IV"]))) == 2
    with pytest.raises(InputError, match="column 'stage', row 2 holds 'V', but one of I, II, III, IV was expected"):
        model.predict(fifth(["I", "V"]))
    as_missing = with_fate("missing")
    mode = as_missing.prepare.modes["stage"]
    unseen, usual = as_missing.scores(fifth(["V", mode]))
    assert unseen == usual


def test_predictions_can_be_judged_where_the_target_is_known(tmp_path: Path) -> None:
    model = clinics().model
    table = read_rows(model, CLINICS / "west.csv", target=True).table
    judged = evaluated(model, table)
    right = np.mean([said == row["outcome"] for said, row in zip(model.predict(table), west(), strict=True)])
    assert judged["accuracy"][0] == pytest.approx(right)
    lines = (CLINICS / "west.csv").read_text().replace("outcome", "result", 1)
    (tmp_path / "other.csv").write_text(lines)
    with pytest.raises(InputError, match="has no column 'outcome', the target, so predictions cannot be evaluated"):
        read_rows(model, tmp_path / "other.csv", target=True)
    rows = read_rows(model, tmp_path / "other.csv")
    table, left_out = rows.table, rows.unused
    assert left_out == ["result"]


# ---- damaged files ---------------------------------------------------------------------------------------------------


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        parse_model(text, "model.json")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"form": "proxfed model 2"},
            "form = 'proxfed model 2' is of another version; this one reads 'proxfed model 1'",
        ),
        ({"form": 3}, "is not a model that `proxfed fit` wrote"),
        ({"loss": {"name": "hinge"}}, "loss.name = 'hinge' is not one of"),
        ({"loss": {}}, "loss.name = None"),
        ({"features": []}, "does not fit 1 x 0 coefficients"),
        ({"classes": ["ill"]}, "a logistic model has two classes, not 1"),
        ({"weight": None}, "is damaged (weight"),
        ({"preparation": {}}, "is not a stored preparation"),
        ({"more": 1}, "is damaged (more"),
        ({"measures": {"all": {"auc": ["x"]}}}, "is damaged (measures.all.auc.0"),
    ],
)
def test_a_changed_file_is_refused_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(json.dumps(unchecked() | change))


def test_one_changed_number_is_refused_by_the_checksum() -> None:
    plain = json.loads(clinics().model.text())
    assert parse_model(json.dumps(plain)) == parse_model(json.dumps(unchecked())) == clinics().model
    plain["original"]["coef"][0][0] = float(np.nextafter(plain["original"]["coef"][0][0], 1))
    assert "is damaged or was changed: its checksum is of something else" in refused(json.dumps(plain))


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{", '{"form": "proxfed model 1"}', "[" * 100_000, "NaN"])
def test_what_is_no_model_is_refused(text: str) -> None:
    assert refused(text)


def test_features_of_another_preparation_are_refused() -> None:
    plain = unchecked()
    plain["features"] = plain["features"][::-1]
    assert "its features are not those of the model" in refused(json.dumps(plain))


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_bytes(b"\xff\xfe\x00")
    for path, sentence in ((tmp_path, "not a text"), (tmp_path / "none.json", "cannot read")):
        with pytest.raises(InputError, match=sentence):
            read_model(path)


def places(plain: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every value of nested data, by the keys that lead to it."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain[:2]) if isinstance(plain, list) else ()
    return [at] * bool(at) + [place for key, value in inner for place in places(value, (*at, key))]


def use(text: str) -> str:
    """How reading and using it is refused; nothing if it is not."""
    try:
        model = parse_model(text)
        model.predict(fifth(["I"]))
        model.csv()
    except InputError as refusal:
        return str(refusal)
    return ""


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(st.data())
def test_a_file_with_anything_anywhere_is_read_or_refused_in_one_sentence(data: st.DataObject) -> None:
    plain = unchecked()
    *way, last = data.draw(st.sampled_from(places(plain)))
    here = plain
    for key in way:
        here = here[key]
    here[last] = data.draw(ANYTHING)
    assert "\n" not in use(json.dumps(plain))


@given(st.data())
def test_a_file_that_was_cut_or_overwritten_is_refused(data: st.DataObject) -> None:
    text = clinics().model.text()
    place = data.draw(st.integers(0, len(text) - 2))
    assert refused(text[:place])
    strange = text[:place] + data.draw(st.text(max_size=4)) + text[place + 1 :]
    assert "\n" not in use(strange)
