"""What a fit writes for others: an R script with the same predictions, TRIPOD+AI's items, the table of a journal."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.fit import Fitted, fit
from proxfed.fit.predictions import predictions, read_rows
from proxfed.fit.r_script import r_script
from proxfed.fit.tripod import YOURS, items
from proxfed.tables import parse_schema, read_frame

from support.fitted import clinics, clinics_plain
from support.tables import CLINICS


def _vector(values: Any) -> Any:
    return np.asarray(values, dtype=object if any(isinstance(v, str) or v is None for v in values) else float)


def _plain(x: Any) -> Any:
    return _vector([None if v is None else re.sub(r"^(-?(0|[1-9][0-9]*))[.]0*$", r"\1", v.strip()) for v in x])


def _numbers(x: Any) -> Any:
    return np.array([np.nan if v is None else float(v) for v in x])


def _days(x: Any, form: str | None = None) -> Any:
    def one(v: Any) -> float:
        return np.nan if v is None else float(datetime.strptime(v, form or "%Y-%m-%d").toordinal())

    return one(x) if isinstance(x, str) else np.array([one(v) for v in x])


def _ifelse(test: Any, *both: Any) -> Any:
    a, b = (v if isinstance(v, np.ndarray) else [v] * len(test) for v in both)
    return _vector([p if t else q for t, p, q in zip(test, a, b, strict=True)])


def _is_na(x: Any) -> Any:
    return np.array([v is None or v != v for v in np.ravel(x)])


R: dict[str, Any] = {
    "c": lambda *v: list(v),
    "plain": _plain,
    "known": lambda x, gaps: _again(x, [None if v in gaps else v for v in x]),
    "filled": lambda x, value: _again(x, [value if gap else v for v, gap in zip(x, _is_na(x), strict=True)]),
    "is_one": lambda x, words: np.array([float(v in words) for v in x]),
    "is_element": lambda x, words: np.array([v in words for v in x]),
    "is_na": _is_na,
    "is_null": lambda x: x is None,
    "ifelse": _ifelse,
    "setdiff": lambda x, y: [v for v in x if v not in y],
    "tolower": lambda x: _vector([None if v is None else v.lower() for v in x]),
    "gsub": lambda a, b, x, fixed: _vector([None if v is None else v.replace(a, b) for v in x]),
    "as_numeric": _numbers,
    "as_Date": _days,
    "pmin": np.minimum,
    "pmax": lambda x, y: np.maximum(x, y),
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "pi": np.pi,
    "NA": None,
    "TRUE": True,
    "seq_len": lambda n: np.arange(1, n + 1),
    "data_frame": lambda *more, **columns: columns,
}  # fmt: skip
"""The functions of R that a script uses."""


def _again(x: Any, values: list[Any]) -> Any:
    return _numbers(values) if np.asarray(x).dtype.kind == "f" else _vector(values)


def run(script: str, rows: dict[str, list[str]]) -> Any:
    """`scored` of a script, read as Python where the two languages look alike."""
    body = script[script.index("scored <- function(d) {") :].split("\n}\n")[0].split("\n", 1)[1]
    body = body.replace(" +\n    ", " + ").replace(" <- ", " = ").replace("[[", "[").replace("]]", "]")
    body = re.sub(r"if \(is\.null\(([^)]*)\)\) NA else (.*)", r"\2", body)
    body = re.sub(r"\b([a-z]+)\.([a-zA-Z])", r"\1_\2", body).replace("nrow(d)", "len(d['rows'])").replace("^", "**")
    lines = [line.strip() for line in body.splitlines()]
    names: dict[str, Any] = R | {"d": rows | {"rows": next(iter(rows.values()))}}
    for line in lines[:-1]:
        exec(line, names)
    return eval(lines[-1], names)


def cells(path: Path) -> dict[str, list[str]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("site", ["west", "north"])
def test_the_script_predicts_what_the_model_predicts(site: str) -> None:
    model = clinics_plain(weight=0.005).model
    ours = predictions(model, read_rows(model, CLINICS / f"{site}.csv"))
    found = run(r_script(model), cells(CLINICS / f"{site}.csv"))
    assert np.asarray(found["probability"], float) == pytest.approx(ours["probability of ill"], abs=1e-12)
    assert list(found["prediction"]) == ours["prediction"]


def shapes() -> Fitted:
    """Splines, powers, periods, logarithms and clipping, of a target whose logarithm is fitted."""
    rng = np.random.default_rng(0)
    names = ("a", "b", "t", "l", "k")
    frame: dict[str, Any] = {name: rng.uniform(1, 20, 80).round(2) for name in names}
    frame["y"] = np.exp(0.05 * frame["a"] + np.sin(frame["t"]) + 0.1 * rng.normal(size=80))
    frame["h"] = ["p", "q"] * 40
    columns = {
        "a": {"kind": "number", "knots": [3, 6, 10, 17]},
        "b": {"kind": "number", "polynomial": 3},
        "t": {"kind": "number", "period": 6.5},
        "l": {"kind": "number", "transform": "log"},
        "k": {"kind": "number", "clip": [4, 9]},
    }
    target = {"column": "y", "transform": "log"}
    schema = parse_schema({"source": {"organisation": "h"}, "target": target, "columns": columns})
    return fit(read_frame(schema, frame), weight=1e-4, folds=2, repetitions=0, alone=False)


def test_the_script_knows_all_shapes_of_a_number_and_transforms_back() -> None:
    model = shapes().model
    rng = np.random.default_rng(1)
    rows = {name: rng.uniform(1, 20, 12).round(2) for name in "abtlk"}
    text = {name: [*map(str, values.tolist()), ""] for name, values in rows.items()}
    found = run(r_script(model), text)
    ours = model.predict({name: [*values.tolist(), None] for name, values in rows.items()})
    assert np.asarray(found["prediction"], float) == pytest.approx(ours, rel=1e-10)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed (Debian: r-base-core)")
def test_r_itself_says_the_same(tmp_path: Path) -> None:
    with (tmp_path / "shapes.csv").open("w") as file:
        lines = csv.writer(file)
        lines.writerow("abtlk")
        lines.writerows([*np.random.default_rng(2).uniform(1, 20, (9, 5)).round(2).tolist(), [""] * 5])
    for model, rows, name in (
        (clinics_plain(weight=0.005).model, CLINICS / "east.csv", "probability"),
        (shapes().model, tmp_path / "shapes.csv", "prediction"),
    ):
        (tmp_path / "model.R").write_text(r_script(model))
        subprocess.run(["Rscript", tmp_path / "model.R", rows, tmp_path / "out.csv"], check=True, capture_output=True)
        ours = predictions(model, read_rows(model, rows))
        theirs = [float(p) for p in cells(tmp_path / "out.csv")[name]]
        assert theirs == pytest.approx(ours.get("probability of ill", ours["prediction"]), rel=1e-12)


def test_a_column_that_r_has_no_short_words_for_is_refused_and_the_model_is_saved(tmp_path: Path) -> None:
    frame: dict[str, Any] = {"day": [f"2020-{1 + k % 12:02}-10" for k in range(40)], "y": list(range(40))}
    schema = parse_schema({"target": {"column": "y"}, "columns": {"day": {"kind": "date", "parts": ["month"]}}})
    found = fit(read_frame(schema, frame, "one"), weight=0.1, folds=2, repetitions=0, alone=False)
    with pytest.raises(InputError, match=r"columns\.day: model\.R reads dates"):
        r_script(found.model)
    found.save(tmp_path)
    assert (tmp_path / "model.R").read_text().startswith('stop("columns.day')


def test_all_items_are_there_and_what_is_unknown_is_left_to_people() -> None:
    found = items(clinics())
    numbers = [int(re.match(r"\d+", each.number).group()) for each in found]  # type: ignore[union-attr]
    assert sorted(set(numbers)) == [*range(1, 28)]
    known = {each.number: each.known for each in found}
    for only_people in ("2", "4", "14", "17", "19"):
        assert known[only_people] == ""
    assert "260 rows" in known["21"]
    assert YOURS == "to be written"


def test_intervals_are_saved_where_there_are_some(tmp_path: Path) -> None:
    clinics_plain().save(tmp_path / "few")
    assert not (tmp_path / "few" / "intervals.tex").exists()
    rng = np.random.default_rng(0)
    frame = {"x": rng.normal(size=200), "y": rng.normal(size=200), "h": ["a", "b"] * 100}
    schema = {"source": {"organisation": "h"}, "target": {"column": "y"}, "others": {"kind": "number"}}
    fit(read_frame(parse_schema(schema), frame), weight=0.01, folds=2, repetitions=0, alone=False).save(tmp_path / "m")
    assert "toprule" in (tmp_path / "m" / "intervals.tex").read_text()
    assert cells(tmp_path / "m" / "intervals.csv")
