"""Tables that do not fit, files that are none, and any bytes: one sentence with the place, never a traceback."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError, MissingData
from proxfed.tables import read_schema, read_tables

from support.tables import HEAD, ROWS, assert_same, refused_table, write


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            HEAD + "130,I,yes,2020-01-01,ill\n",
            "column 'age', row 1 holds '130', but a number from 0 to 120 was expected",
        ),
        (HEAD + ROWS + "=1+1,I,yes,2020-01-01,ill\n", "column 'age', row 4 holds the formula '=1+1', but a number"),
        (HEAD + "1,III,yes,2020-01-01,ill\n", "column 'stage', row 1 holds 'III', but one of I, II was expected"),
        (
            HEAD + "1,I,maybe,2020-01-01,ill\n",
            "column 'smoker', row 1 holds 'maybe', but yes (1, yes, y, true, t) or no",
        ),
        (HEAD + "1,I,yes,01/02/2020,ill\n", "column 'visit', row 1 holds '01/02/2020', but a date like 2001-12-31"),
        (HEAD + "1,I,yes,2020-01-01,dead\n", "column 'outcome', row 1 holds 'dead', but one of well, ill was expected"),
        (HEAD + "1,I,yes,2020-01-01,\n", "column 'outcome', row 1 holds '', but a value was expected"),
        (HEAD + "1,I,yes,2020-01-01\n", "row 1 has 4 fields, but the header has 5"),
        (HEAD + "1,I,yes,2020-01-01,ill\n\n" + ROWS, "row 2 is blank, but the header has 5"),
        ("age,stage,smoker,outcome\n1,I,yes,ill\n", "has no column 'visit'"),
        ("Age,stage,smoker,visit,outcome\n1,I,yes,2020-01-01,ill\n", "has no column 'age'; did you mean 'Age'?"),
        (HEAD.strip() + ",note\n1,I,yes,2020-01-01,ill,x\n", "the schema does not name its column 'note'"),
        (HEAD.strip() + ",age\n1,I,yes,2020-01-01,ill,x\n", "two columns have the same name 'age'"),
        (HEAD, "needs a header and at least one row"),
        ("", "needs a header and at least one row"),
        ("\ufeff", "needs a header and at least one row"),
        (HEAD + '"1,I,yes,2020-01-01,ill\n', "is not a CSV file in UTF-8"),
        (HEAD + '1,"I"x,yes,2020-01-01,ill\n', "is not a CSV file in UTF-8"),
        (HEAD + "1,I,yes,2020-01-01,ill\0\n", "holds a zero byte"),
        (HEAD + "1," + "I" * 200_000 + ",yes,2020-01-01,ill\n", "is not a CSV file in UTF-8 (field larger than"),
        ("a," * 1_000_000 + "b\n1\n", "line 1 has 1000001 fields, more than 100000"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_its_place(tmp_path, text: str, says: str) -> None:
    said = refused_table(write(tmp_path, north=text))
    assert said.startswith(str(tmp_path / "north.csv"))
    assert says in said
    assert len(said) < 1000


def test_other_encodings_and_marks(tmp_path) -> None:
    path = write(tmp_path, north=HEAD + ROWS)
    expected = read_tables(path)
    for encoding in ("utf-8-sig", "ascii"):
        (tmp_path / "north.csv").write_bytes((HEAD + ROWS).replace("\n", "\r\n").encode(encoding))
        assert_same(read_tables(path), expected)
    (tmp_path / "north.csv").write_bytes((HEAD + ROWS).encode("utf-16"))
    assert "is not a CSV file in UTF-8" in refused_table(path)
    (tmp_path / "north.csv").write_bytes((HEAD + ROWS).encode() + "1,é,yes,2020-01-01,ill\n".encode("latin-1"))
    assert "is not a CSV file in UTF-8" in refused_table(path)


def test_files_that_are_not_there(tmp_path) -> None:
    assert "source.files names no file" in refused_table(write(tmp_path, ""))
    for source in ('files = "*.csv"', 'files = ["a.csv"]', 'files = { north = "a.csv" }'):
        path = write(tmp_path, source)
        with pytest.raises(MissingData, match="there is no such file"):
            read_tables(path)
    path = write(tmp_path, 'files = "a.csv"\nfolder = "x"')
    with pytest.raises(MissingData, match="name the data directory with PROXFED_DATA"):
        read_tables(path, tmp_path)


def test_two_files_of_one_name_need_names_of_their_own(tmp_path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text(HEAD + ROWS)
    assert "two files are called 'a.csv'" in refused_table(write(tmp_path, 'files = ["x/a.csv", "y/a.csv"]'))
    read = read_tables(write(tmp_path, 'files = { x = "x/a.csv", y = "y/a.csv" }'))
    assert [table.organisation for table in read.tables] == ["x", "y"]


def test_a_row_of_nobody_is_refused_table(tmp_path) -> None:
    path = write(tmp_path, 'files = "a.csv"\norganisation = "who"', a=HEAD.strip() + ",who\n1,I,y,2020-01-01,ill,\n")
    assert "column 'who', row 1 does not name the row's organisation" in refused_table(path)


def test_other_files_for_the_same_agreement(tmp_path) -> None:
    schema = read_schema(write(tmp_path, north=HEAD + ROWS))
    elsewhere = schema.at(files={"west": str(tmp_path / "north.csv")})
    assert elsewhere.digest == schema.digest
    assert read_tables(elsewhere).tables[0].organisation == "west"
    with pytest.raises(InputError, match=r"unknown key 'source.file'; did you mean 'files'"):
        schema.at(file="x")


def test_an_organisation_with_test_rows_only_is_noted(tmp_path) -> None:
    source = 'files = "*.csv"\ntest = { column = "fold", words = ["test"] }'
    head, row = HEAD.strip() + ",fold\n", "50,I,yes,2020-01-01,ill,"
    path = write(tmp_path, source, north=head + row + "train\n", south=head + row + "test\n")
    read = read_tables(path)
    assert [t.organisation for t in read.tables] == ["north"]
    assert [t.organisation for t in read.test] == ["south"]
    assert read.notes == ("south: all rows are held out for testing",)
    assert "all rows are held out" in refused_table(write(tmp_path, source, north=head + row + "test\n"))


@given(st.binary(max_size=300) | st.text(alphabet='age,stage\n"\r;=é0123.I-', max_size=200).map(str.encode))
def test_any_bytes_are_a_table_or_refused_table(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder))
        for content_ in (content, HEAD.encode() + content, (HEAD + ROWS).encode() + content):
            (Path(folder) / "north.csv").write_bytes(content_)
            with contextlib.suppress(InputError):
                assert len(read_tables(path).tables) == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_parquet_and_npz_or_refused_table(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.parquet", "a.npz", "a.csv.gz", "a.csv.bz2"):
            path = write(Path(folder), f'files = "{name}"')
            (Path(folder) / name).write_bytes(content)
            with contextlib.suppress(InputError):
                assert len(read_tables(path).tables) == 1
