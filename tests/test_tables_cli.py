"""`proxfed data schema` and `proxfed data describe` as a user meets them, and tables in an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.tables import read_schema, read_tables
from proxfed.tables.first_look import first_look
from proxfed.tables.guesses import guess

from support.cli import proxfed, refused
from support.tables import CLINICS

FILES = [str(CLINICS / f"{name}.csv") for name in ("north", "south", "east", "west")]


def test_a_first_look_is_a_schema_that_the_files_fit(capsys: Any, tmp_path: Path) -> None:
    out = tmp_path / "tables.toml"
    code, said, complaint = proxfed(capsys, "data", "schema", *FILES, "--target", "outcome", "--out", str(out))
    assert code == 0, complaint
    assert "proxfed data describe" in said
    schema = read_schema(out)
    kinds = {name: column.kind for name, column in schema.columns.items()}
    assert kinds == {
        "patient": "ignore",
        "age": "number",
        "sex": "category",
        "weight": "number",
        "chol": "number",
        "smoker": "boolean",
        "stage": "category",
        "income": "number",
        "visit": "date",
    }
    assert schema.table.missing == ["", "?", "NA"]
    assert schema.columns["smoker"].optional
    text = out.read_text()
    assert 'currency = "$"\nthousands = ","' in text
    assert "rows hold 0, far from all others: missing = [0]?" in text
    assert '"%d/%m/%Y"' in text
    ours = read_tables(CLINICS / "tables.toml")
    for table, expected in zip(read_tables(out).tables, ours.tables, strict=True):
        assert table.organisation == expected.organisation
        for name in ("age", "weight", "income"):
            np.testing.assert_array_equal(table.columns[name], expected.columns[name])
    code, said, complaint = proxfed(capsys, "data", "describe", str(out))
    assert code == 0, complaint


def test_a_schema_that_is_there_is_not_replaced_by_accident(capsys: Any, tmp_path: Path) -> None:
    out = tmp_path / "tables.toml"
    out.write_text("mine")
    asked = ("data", "schema", *FILES, "--target", "outcome", "--out", str(out))
    assert "is there already; --force replaces it" in refused(capsys, *asked)
    assert out.read_text() == "mine"
    assert proxfed(capsys, *asked, "--force")[0] == 0
    assert "[columns.age]" in out.read_text()


def test_without_a_file_the_schema_is_printed(capsys: Any) -> None:
    code, said, _ = proxfed(capsys, "data", "schema", FILES[0], "--target", "outcome")
    assert code == 0
    assert "[columns.age]" in said


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["FILE"], "name the target: --target COLUMN"),
        (["FILE", "--target", "out"], "has no column 'out'; did you mean 'outcome'?"),
        (["FILE", "--target", "patient"], "90 different words are too many for classes, and are no numbers"),
        (["FILE", "--time", "age"], "time = 'age' and event = '' go together"),
        (["FILE", "--target", "outcome", "--organisation", "who"], "has no column 'who'"),
        (["FILE", "--target", "outcome", "--out", "x.txt"], "must end in .toml"),
        (["FILE", "--target", "outcome", "--out", "nowhere/x.toml"], "there is no folder nowhere"),
        (["nothing.csv", "--target", "outcome"], "nothing.csv: there is no such file"),
        (["FILE", "--target", "outcome", "--separator", "ab"], "separator = 'ab' is not allowed"),
        (["FILE", "--target", "outcome", "--encoding", "xyz"], "encoding = 'xyz' is not allowed"),
    ],
)
def test_a_first_look_refuses_in_one_sentence(capsys: Any, tmp_path: Path, monkeypatch: Any, asked, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, "data", "schema", *[FILES[0] if word == "FILE" else word for word in asked])


def test_describe_says_who_holds_what_and_what_is_sent(capsys: Any) -> None:
    code, said, complaint = proxfed(capsys, "data", "describe", str(CLINICS / "tables.toml"), "--sent")
    assert code == 0, complaint
    assert "east" in said
    assert "withheld, because the count is below 5" in said
    assert "12 features are computed from 8 columns" in said
    assert "north sends" in said
    assert "age: mean" in said
    code, said, _ = proxfed(capsys, "data", "describe", str(CLINICS / "tables.toml"), "--format", "json")
    found = json.loads(said)
    assert found["rows"] == {"east": 60, "north": 90, "south": 70, "west": 40}
    assert found["missing"]["stage"]["east"] is None
    assert [one["organisation"] for one in found["sends"]] == ["east", "north", "south", "west"]
    assert len(found["features"]) == 12


def test_many_organisations_have_a_line_each(capsys: Any, tmp_path: Path) -> None:
    rows = "".join(f"{7 * k % 240},{k % 12},{k % 2}\n" for k in range(240))
    (tmp_path / "a.csv").write_text("x,who,y\n" + rows)
    asked = ("--target", "y", "--organisation", "who", "--out", str(tmp_path / "t.toml"))
    assert proxfed(capsys, "data", "schema", str(tmp_path / "a.csv"), *asked)[0] == 0
    code, said, complaint = proxfed(capsys, "data", "describe", str(tmp_path / "t.toml"))
    assert code == 0, complaint
    assert "missing values" in said


def test_describe_refuses_what_does_not_fit(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,y\nold,1\n")
    (tmp_path / "t.toml").write_text('[source]\nfiles="a.csv"\n[target]\ncolumn="y"\n[columns.age]\nkind="number"\n')
    said = refused(capsys, "data", "describe", str(tmp_path / "t.toml"))
    assert "a.csv, column 'age', row 1 holds 'old', but a number was expected" in said
    assert "cannot read" in refused(capsys, "data", "describe", str(tmp_path / "no.toml"))


def test_an_experiment_runs_on_tables(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'name = "clinics"\nrounds = 3\n'
        f'[data]\nname = "tables"\nschema = "{(CLINICS / "tables.toml").as_posix()}"\n'
        '[problem]\nname = "logistic"\nl2 = 0.01\n[[algorithms]]\nname = "fedavg"\neta = 0.1\nK = 2\n'
    )
    code, _, complaint = proxfed(capsys, "run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"))
    assert code == 0, complaint
    code, said, _ = proxfed(capsys, "data", "show", str(tmp_path / "e.toml"), "--format", "json")
    assert code == 0
    assert json.loads(said)["data"] == "clinics"


# ---- guesses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "keys"),
    [
        (["1", "2.5", "3"], {"kind": "number"}),
        (["$1,000.00", "$20.00"], {"kind": "number", "currency": "$", "thousands": ","}),
        (["1.000,5", "2,25"], {"kind": "number", "decimal": ",", "thousands": "."}),
        (["5 %", "6 %"], {"kind": "number", "currency": "%"}),
        (["Y", "N", "y"], {"kind": "category", "categories": ["N", "Y", "y"]}),
        (["yes", "no"], {"kind": "boolean"}),
        (["0", "1.0"], {"kind": "boolean"}),
        ([True, False], {"kind": "boolean"}),
        (["2020-01-02", "2021-12-31"], {"kind": "date", "format": "%Y-%m-%d"}),
        (["28-Feb-97"], {"kind": "date", "format": "%d-%b-%y"}),
        (["01234", "99999"], {"kind": "category", "categories": ["01234", "99999"]}),
        (["a", "b"], {"kind": "category", "categories": ["a", "b"]}),
        ([f"name {k}" for k in range(200)], {"kind": "ignore"}),
        ([], {"kind": "ignore"}),
    ],
)
def test_guesses(cells: list[Any], keys: dict[str, Any]) -> None:
    assert guess(cells, 1).keys == keys


@pytest.mark.parametrize(
    ("cells", "remark"),
    [
        ([*map(str, range(20, 80)), *["-9"] * 6], "6 rows hold -9, far from all others: missing = [-9]?"),
        ([*map(str, range(120, 300)), *["0"] * 6], "6 rows hold 0, far from all others: missing = [0]?"),
        ([*map(str, range(120, 300)), *["9999"] * 6], "6 rows hold 9999, far from all others: missing = [9999]?"),
        (["1", "2", "3", "4"] * 5, "4 different whole numbers: are they codes of categories?"),
        (
            [str(k) for k in range(1000, 1050)],
            "every row has another whole number: is it an identifier, to be ignored?",
        ),
        (["01/02/2020", "03/04/2020"], "the dates fit %m/%d/%Y as well: which is it?"),
        (["28-Feb-97"], "years have two digits: range = [first, last] says which century"),
    ],
)
def test_suspicions_are_remarks_and_nothing_more(cells: list[str], remark: str) -> None:
    found = guess(cells, 5)
    assert remark in found.remarks
    assert "missing" not in found.keys


def test_ordinary_numbers_raise_no_suspicion() -> None:
    assert guess([f"{k / 7:.3f}" for k in range(-50, 50)], 5).remarks == []
    assert guess([str(k % 60) for k in range(300)], 5).remarks == [], "zeros among small numbers"


@pytest.mark.parametrize("name", ['a"b', "a.b", "größe", "a\x7fb", "a b", "=1", "kind", "#x"])
def test_any_name_of_a_column_survives_the_schema(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({name: [1.5, 2.5], "y": [0, 1]}).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "t.toml").write_text(first_look([tmp_path / "a.csv"], target="y", beside=tmp_path), encoding="utf-8")
    (table,) = read_tables(tmp_path / "t.toml").tables
    assert table.columns[name].tolist() == [1.5, 2.5]


def test_a_first_look_needs_a_file() -> None:
    with pytest.raises(InputError, match="at least one file"):
        first_look([], target="y")


def test_a_first_look_notices_subjects_with_several_rows(tmp_path: Path) -> None:
    lines = [f"P{k // 4},{k // 3 + 100},{k % 7}.5" for k in range(120)]
    (tmp_path / "visits.csv").write_text("\n".join(["patient,number,y", *lines, ""]))
    text = first_look([tmp_path / "visits.csv"], target="y")
    assert text.count("each in several rows: subjects?") == 1
