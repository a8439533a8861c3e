"""Tables as they are: any format, any order of columns, whose rows they are, and everything that may be wrong."""

from __future__ import annotations

import gzip
import subprocess
import sys
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch

from proxfed.errors import InputError
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.regularisers import L1
from proxfed.tables import Schema, Tables, design, read_frame, read_schema, read_tables

from support.tables import CLINICS, COLUMNS, HEAD, ROWS, assert_same, refused_table, schema_of, write

# ---- what is read ---------------------------------------------------------------------------------------------------


def test_a_file_is_an_organisation(tmp_path) -> None:
    swapped = "outcome,visit,smoker,stage,age\nill,2020-01-01,yes,I,50\n"
    read = read_tables(write(tmp_path, south=HEAD + ROWS, north=swapped))
    assert [table.organisation for table in read.tables] == ["north", "south"]
    north, south = read.tables
    np.testing.assert_array_equal(south.columns["age"], [50, 61.5, np.nan])
    np.testing.assert_array_equal(south.columns["stage"], [0, 1, np.nan])
    np.testing.assert_array_equal(south.columns["smoker"], [1, 0, np.nan])
    np.testing.assert_array_equal(south.columns["visit"], [7305, 7364, np.nan])
    assert south.labels is not None
    assert south.labels.tolist() == [1, 0, 0]
    assert {name: values.tolist() for name, values in north.columns.items()} == {
        name: values[:1].tolist() for name, values in south.columns.items()
    }


def test_a_column_names_the_organisation(tmp_path) -> None:
    rows = "50,I,yes,2020-01-01,ill,b\n51,I,yes,2020-01-01,ill,a\n52,I,yes,2020-01-01,well,b\n"
    path = write(tmp_path, 'files = "all.csv"\norganisation = "who"', all=HEAD.strip() + ",who\n" + rows)
    ages = {table.organisation: table.columns["age"].tolist() for table in read_tables(path).tables}
    assert ages == {"a": [51], "b": [50, 52]}
    named = 'files = "all.csv"\norganisation = "who"\norganisations = { north = ["a", "b"] }'
    ages = {table.organisation: table.columns["age"].tolist() for table in read_tables(write(tmp_path, named)).tables}
    assert ages == {"north": [50, 51, 52]}
    only = 'files = "all.csv"\norganisation = "who"\norganisations = { north = "a" }'
    assert "column 'who', row 1 holds 'b', not one of a" in refused_table(write(tmp_path, only))


def test_small_organisations_and_rows_without_an_outcome_are_left_out_with_a_note(tmp_path) -> None:
    rows = "50,I,yes,2020-01-01,ill,b\n51,I,yes,2020-01-01,,a\n52,I,yes,2020-01-01,well,b\n5,I,no,2020-01-01,well,a\n"
    source = 'files = "all.csv"\norganisation = "who"\ndrop = ["outcome"]\nsmallest = 2'
    read = read_tables(write(tmp_path, source, all=HEAD.strip() + ",who\n" + rows))
    assert [table.organisation for table in read.tables] == ["b"]
    assert any("1 rows are left out, which have no 'outcome'" in note for note in read.notes)
    assert any("1 organisations with fewer than 2 rows, together 1, are left out" in note for note in read.notes)
    assert len(read_tables(write(tmp_path, source), target=False).tables) == 2, "no outcome is needed to predict"


def test_an_organisation_may_have_several_files(tmp_path) -> None:
    who = HEAD.strip() + ",who\n"
    first, second = "50,I,yes,2020-01-01,ill,b\n", "51,I,yes,2020-01-01,well,b\n52,I,no,2020-01-01,ill,a\n"
    path = write(tmp_path, 'files = "*.csv"\norganisation = "who"', x=who + first, y=who + second)
    assert {t.organisation: t.columns["age"].tolist() for t in read_tables(path).tables} == {"a": [52], "b": [50, 51]}


def test_files_without_header_of_other_countries(tmp_path) -> None:
    schema = tmp_path / "tables.toml"
    schema.write_text(
        '[source]\nfiles = "a.txt.gz"\nnames = ["größe", "y"]\nseparator = ";"\nencoding = "latin-1"\n'
        '[target]\ncolumn = "y"\ndecimal = ","\n["columns"."größe"]\nkind = "number"\ndecimal = ","\nthousands = "."\n'
    )
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("1.234,5;0,5\n2;1\n".encode("latin-1")))
    (table,) = read_tables(schema).tables
    assert table.organisation == "a"
    assert table.columns["größe"].tolist() == [1234.5, 2]
    assert table.labels.tolist() == [0.5, 1]


def test_a_further_file_has_more_columns_of_the_same_rows(tmp_path) -> None:
    more = "id,stage,fold\n2,II,test\n1,I,train\n3,I,train\n"
    source = 'files = "a.csv"\njoin = [{ file = "more.csv", on = "id" }]\ntest = { column = "fold", words = ["test"] }'
    head = "id,age,smoker,visit,outcome\n"
    rows = "1,50,yes,2020-01-01,ill\n2,51,no,2020-01-01,well\n"
    path = write(tmp_path, source, a=head + rows, more=more)
    read = read_tables(path)
    assert [t.columns["age"].tolist() for t in (*read.tables, *read.test)] == [[50], [51]]
    assert read.test[0].columns["stage"].tolist() == [1]
    path = write(tmp_path, source, a=head + rows + "9,50,yes,2020-01-01,ill\n")
    assert "column 'id', row 3 holds '9', which" in refused_table(path)
    path = write(tmp_path, source.replace('"id" }', '"id", unmatched = "drop" }'))
    assert "1 rows are left out" in read_tables(path).notes[0]
    path = write(tmp_path, source, more=more + "1,I,train\n")
    assert "'1' appears twice" in refused_table(path)


def test_npz_files_have_columns_or_a_matrix(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", X=np.arange(6).reshape(2, 3), genes=["g2", "g1", "g3"], y=[0, 1])
    text = '[source]\nfiles = "a.npz"\nmatrix = "X"\nmatrix_names = "genes"\n[target]\ncolumn = "y"\n'
    (tmp_path / "tables.toml").write_text(text + '[others]\nkind = "number"\n')
    (table,) = read_tables(tmp_path / "tables.toml").tables
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        "g1": [1, 4],
        "g2": [0, 3],
        "g3": [2, 5],
    }
    assert list(table.schema.inputs) == ["g1", "g2", "g3"], "the order does not depend on the file"
    (tmp_path / "tables.toml").write_text(text.replace('"genes"', '"y"') + '[others]\nkind = "number"\n')
    assert "does not fit 2 names" in refused_table(tmp_path / "tables.toml")


def test_events_and_their_times() -> None:
    schema = schema_of('[target]\ntime = "T"\nevent = "E"\n[columns.a]\nkind = "number"')
    (table,) = read_frame(schema, {"a": [1, 2], "T": [10, 20.5], "E": ["1.0", 0]}, "x").tables
    assert table.labels.tolist() == [10, 20.5]
    assert table.events.tolist() == [1, 0]
    with pytest.raises(InputError, match="column 'T', row 2 holds '-1'"):
        read_frame(schema, {"a": [1, 2], "T": [10, -1], "E": [1, 0]})
    with pytest.raises(InputError, match="column 'E', row 1 holds 'dead'"):
        read_frame(schema, {"a": [1], "T": [10], "E": ["dead"]})


# ---- other formats say the same -------------------------------------------------------------------------------------


@pytest.fixture
def clinics() -> tuple[Schema, Tables]:
    schema = read_schema(CLINICS / "tables.toml")
    return schema, read_tables(CLINICS / "tables.toml")


def test_the_clinics_are_as_their_script_makes_them(tmp_path) -> None:
    subprocess.run([sys.executable, str(CLINICS / "make.py"), str(tmp_path)], check=True)
    for file in sorted(CLINICS.glob("*.csv")):
        assert file.read_bytes() == (tmp_path / file.name).read_bytes()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_give_what_their_files_give(library: str, clinics) -> None:
    pytest.importorskip("narwhals", reason="frames are read with narwhals")
    schema, expected = clinics
    for table in expected.tables:
        path = CLINICS / f"{table.organisation}.csv"
        if library == "pandas":
            frame: Any = pytest.importorskip("pandas").read_csv(path)
        elif library == "polars":
            frame = pytest.importorskip("polars").read_csv(path)
        else:
            frame = pytest.importorskip("pyarrow.csv").read_csv(path)
        read = read_frame(schema, frame, table.organisation)
        assert_same(read, Tables(expected.schema, (table,), (), ()))


def test_parquet_with_types_gives_what_text_gives(tmp_path, clinics) -> None:
    """Numbers, dates and truth values as such, with gaps, instead of their words."""
    pytest.importorskip("narwhals", reason="frames are read with narwhals")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    _, expected = clinics
    for file in CLINICS.glob("*.csv"):
        frame = pandas.read_csv(file, na_values=["?", "NA", ""], dtype={"patient": str})
        frame["visit"] = pandas.to_datetime(frame["visit"], format="%d/%m/%Y")
        frame["income"] = frame["income"].str.replace("[$,]", "", regex=True).astype(float)
        if "smoker" in frame:
            frame["smoker"] = frame["smoker"].map({"yes": True, "no": False}).astype("boolean")
        frame["stage"] = frame["stage"].astype("category")
        frame.to_parquet(tmp_path / f"{file.stem}.parquet")
    toml = (CLINICS / "tables.toml").read_text().replace("*.csv", "*.parquet")
    (tmp_path / "tables.toml").write_text(toml)
    assert_same(read_tables(tmp_path / "tables.toml"), expected)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_gaps_of_every_kind_are_gaps(library: str) -> None:
    pytest.importorskip("narwhals", reason="frames are read with narwhals")
    schema = schema_of(COLUMNS)
    columns: dict[str, Any] = {"age": [50, None], "stage": ["I", None], "smoker": [True, None]}
    if library == "pandas":
        pandas = pytest.importorskip("pandas")
        frame: Any = pandas.DataFrame(columns | {"visit": pandas.to_datetime(["2020-01-01", None])})
        other = frame.astype({"age": "Int64", "stage": "string", "smoker": "boolean"})
    else:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(columns | {"visit": [date(2020, 1, 1), None]})
        other = frame.with_columns(polars.col("stage").cast(polars.Categorical), polars.col("age").cast(polars.Float32))
    for one in (frame, other):
        (table,) = read_frame(schema, one, target=False).tables
        rows = [values.tolist() for values in table.columns.values()]
        assert [row[0] for row in rows] == [50, 0, 1, 7305]
        assert all(np.isnan(row[1]) for row in rows)


def test_cells_that_no_table_should_have_are_refused_table() -> None:
    schema = schema_of('[columns.a]\nkind = "number"')
    for cell in ([1, 2], {"x": 1}, b"1", 10**400, object(), complex(1, 2)):
        with pytest.raises(InputError, match="column 'a', row 2 holds"):
            read_frame(schema, {"a": [1, cell]}, target=False)
    dates = np.array(["2020-01-01", "NaT"], "datetime64[ns]")
    (table,) = read_frame(schema_of('[columns.d]\nkind = "date"'), {"d": dates}, target=False).tables
    np.testing.assert_array_equal(table.columns["d"], [7305, np.nan])
    with pytest.raises(InputError, match="list or an array of one dimension"):
        read_frame(schema, {"a": 3}, target=False)


def test_frames_that_are_none() -> None:
    schema = schema_of('[columns.a]\nkind = "number"')
    for frame, says in (
        (3, "is not a frame"),
        ({}, "has no columns"),
        ({"a": []}, "has no row"),
        ({"a": [1], "b": [1, 2]}, "not all of the same length"),
    ):
        with pytest.raises(InputError, match=says):
            read_frame(schema, frame, target=False)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="frame"):
        read_frame(schema, pandas.DataFrame([[1, 2]], columns=["a", "a"]), target=False)


def test_parquet_with_two_columns_of_one_name(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["age", "age"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "a.parquet: " in refused_table(write(tmp_path, 'files = "a.parquet"'))


def test_files_of_any_folder(tmp_path) -> None:
    odd = tmp_path / "[a] *b"
    odd.mkdir()
    assert len(read_tables(write(odd, 'files = "*.csv"', north=HEAD + ROWS, south=HEAD + ROWS)).tables) == 2


def test_frames_without_narwhals_say_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(InputError, match=r"pip install 'proxfed\[tables\]'"):
        read_frame(schema_of('[columns.a]\nkind = "number"'), object())


# ---- weights of rows ------------------------------------------------------------------------------------------------

WEIGHED = """
[source]
organisation = "site"
[table]
fewest = 1
[target]
column = "ill"
classes = ["no", "yes"]
weight = "count"
[columns]
age = { kind = "number", scale = "none" }
dose = { kind = "number", scale = "none" }
"""


def test_a_row_of_weight_three_is_three_rows() -> None:
    rng = np.random.default_rng(0)
    n = 60
    count = rng.integers(1, 4, n)
    ill = np.where(rng.random(n) < 0.5, "yes", "no")
    frame = {"site": np.repeat(["a", "b", "c"], 20), "age": rng.normal(size=n), "dose": rng.normal(size=n), "ill": ill}
    many = {name: np.repeat(values, count) for name, values in frame.items()} | {"count": np.ones(count.sum())}
    problems = []
    for rows in (frame | {"count": count}, many):
        data = design(read_frame(schema_of(WEIGHED), rows)).federated()
        problems.append(linear_model(data, "logistic", L1(0.01)))
    assert problems[0].f.data.sample_weights is not None
    weighed, repeated = (Solver(1e-12).fit(problem).x for problem in problems)
    torch.testing.assert_close(weighed, repeated, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [0, -1, "", "many"])
def test_a_weight_must_be_a_positive_number(count: object) -> None:
    row = {"site": ["a", "a"], "age": [1, 2], "dose": [1, 2], "ill": ["yes", "no"], "count": ["1", str(count)]}
    with pytest.raises(InputError, match=r"column 'count', row 2"):
        read_frame(schema_of(WEIGHED), row)
    with pytest.raises(InputError, match=r"columns.count is the target, so it cannot be a column that predicts"):
        schema_of(WEIGHED + 'count = { kind = "number" }')
