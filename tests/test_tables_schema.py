"""The schema that participants agree on: what it may say, and how it refuses."""

from __future__ import annotations

import json
import tomllib

import pytest

from proxfed.errors import InputError
from proxfed.tables import parse_schema, read_schema
from proxfed.tables.column_kinds import canonical
from proxfed.tables.schema import from_plain

from support.tables import CLINICS, EXAMPLES, schema_of

SMALL = """
[target]
column = "y"
classes = { no = 0, yes = [1, 2.0] }
[columns.age]
kind = "number"
range = [0, 120]
[columns.day]
kind = "date"
range = [1990-01-01, 2000-01-01]
"""


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.toml")), ids=lambda p: p.stem)
def test_the_examples_are_schemas_and_survive_being_stored(file) -> None:
    schema = read_schema(file)
    assert from_plain(schema.plain()).digest == schema.digest


def test_participants_compare_what_matters_and_nothing_else() -> None:
    digest = schema_of(SMALL).digest
    assert schema_of(SMALL + '[source]\nfiles = "mine.csv"\nencoding = "latin-1"\n').digest == digest
    assert schema_of(SMALL.replace("120", "130")).digest != digest
    swapped = SMALL.replace("[columns.age]", "[columns.x]").replace("[columns.day]", "[columns.age]")
    assert schema_of(swapped.replace("columns.x", "columns.day")).digest != digest
    assert schema_of(SMALL.replace("no = 0, yes = [1, 2.0]", "yes = [1, 2.0], no = 0")).digest != digest


UNSORTED = (
    SMALL
    + """
[columns.pain]
kind = "category"
categories = { typical = 1, atypical = 2, none = 3 }
[columns.blood]
kind = "boolean"
"""
)


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.toml")), ids=lambda p: p.stem)
def test_the_order_of_everything_survives_json_with_sorted_keys(file) -> None:
    schema = read_schema(file)
    back = from_plain(json.loads(json.dumps(schema.plain(), sort_keys=True)))
    assert (back.digest, list(back.columns)) == (schema.digest, list(schema.columns))
    if schema.target is not None:
        assert back.target is not None
        assert list(back.target.names.items()) == list(schema.target.names.items())
    assert not schema.differences(back)


def test_columns_and_keys_may_be_in_any_order_and_classes_and_categories_may_not() -> None:
    def reversed_keys(table: dict, *within: str) -> dict:
        return {k: reversed_keys(v) if isinstance(v, dict) else v for k, v in reversed(table.items())}

    table = tomllib.loads(UNSORTED)
    one, other = parse_schema(table), parse_schema(table | {"columns": dict(reversed(table["columns"].items()))})
    assert list(one.columns) != list(other.columns)
    assert one.digest == other.digest
    every = parse_schema(reversed_keys(table))
    assert every.digest != one.digest  # with other numbers for classes and categories, a model would be another one
    assert len(one.differences(every)) == 2


def test_differences_are_named_key_by_key() -> None:
    one = schema_of(UNSORTED)
    other = schema_of(UNSORTED.replace("120", "130").replace("[columns.blood]", "[columns.sugar]"))
    assert one.differences(other) == [
        "columns.age.range = [0.0, 120.0], not [0.0, 130.0]",
        *(f"columns.sugar.{key} = nothing, not {value}" for key, value in _said("boolean")),
        *(f"columns.blood.{key} = {value}, not nothing" for key, value in _said("boolean")),
    ]


def _said(kind: str) -> list[tuple[str, str]]:
    (column,) = (value for value in schema_of(UNSORTED).columns.values() if value.kind == kind)
    return [(key, json.dumps(value)) for key, value in column.model_dump(mode="json").items()]


@pytest.mark.parametrize(
    ("word", "one_way"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1.000", "1"),
        (1, "1"),
        (1.0, "1"),
        ("-3.", "-3"),
        (" a ", "a"),
        ("1.50", "1.50"),
        ("007", "007"),
        ("007.0", "007.0"),
        ("0.0", "0"),
        ("a.0", "a.0"),
        (".0", ".0"),
        ("١.0", "١.0"),
        (True, "true"),
    ],
)
def test_whole_numbers_have_one_way_of_writing(word, one_way: str) -> None:
    assert canonical(word) == one_way


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[sorce]\na = 1", "unknown key 'sorce'; did you mean 'source'"),
        ('[columns.a]\nkind = "numbr"', "columns.a.kind = 'numbr' is not one of number, .* did you mean 'number'"),
        ("[columns.a]\nrange = [0, 1]", "columns.a: the key 'kind' is missing, one of number"),
        ('[columns.a]\nkind = "number"\nrnge = [0, 1]', "unknown key 'columns.a.rnge'; did you mean 'range'"),
        ('[columns.a]\nkind = "number"\nrange = [1, 0]', r"columns.a: range = \[1.0, 0.0\] must go from a lower"),
        ('[columns.a]\nkind = "number"\nrange = [0, inf]', "columns.a.range.1 = inf is not allowed"),
        ('[columns.a]\nkind = "number"\nimpute = "zero"', "columns.a.impute = 'zero' is not allowed: .*'median'"),
        ('[columns.a]\nkind = "number"\nimpute = "median"', "columns.a: impute = 'median' needs range"),
        (
            '[columns.a]\nkind = "number"\nclip = [0, 9]\ntransform = "log"',
            "'log' needs values above 0.0",
        ),
        (
            '[columns.a]\nkind = "number"\ndecimal = ","\nthousands = ","',
            "decimal and thousands = ',' must be",
        ),
        ('[columns.a]\nkind = "number"\nmissing = [nan]', "columns.a.missing.0 = nan is not allowed"),
        ('[columns.a]\nkind = "category"', "the key 'columns.a.categories' is missing"),
        ('[columns.a]\nkind = "category"\ncategories = []', "columns.a: categories must name at least 1"),
        ('[columns.a]\nkind = "category"\ncategories = [1, 1.0]', "columns.a: categories: '1' appears twice"),
        ('[columns.a]\nkind = "category"\ncategories = ["other"]\nunseen = "other"', "adds a category 'other'"),
        ('[columns.a]\nkind = "category"\ncategories = ["x"]\nreference = "y"', "reference = 'y' is not one of"),
        ('[columns.a]\nkind = "boolean"\nyes = ["1"]\nno = [1]', "yes and no: '1' appears twice"),
        (
            '[columns.a]\nkind = "date"\nformat = "day"',
            "columns.a.format = 'day' is not allowed: it must be made",
        ),
        ('[columns.a]\nkind = "date"\nparts = ["days", "days"]', "one of them appears twice"),
        ('[target]\ncolumn = "a"\nclasses = ["x"]', "target: classes must name at least 2"),
        ('[target]\ntime = "T"', "target: time = 'T' and event = '' go together"),
        (
            '[target]\ncolumn = "a"\ntime = "T"\nevent = "E"',
            "column = 'a' and time = 'T': a target is a column, or a time",
        ),
        ('[target]\ncolumn = "a"\n[columns.a]\nkind = "number"', "columns.a is the target"),
        ('[source]\nseparator = "ab"', "source.separator = 'ab' is not allowed: it must be one sign"),
        ('[source]\nencoding = "rot13"', "source.encoding = 'rot13' is not allowed"),
        ('[source]\norganisations = { a = "b" }', "organisations needs organisation"),
        ('[source]\nmatrix = "X"', "matrix = 'X' and matrix_names = '' go together"),
        ('[source]\njoin = [{ file = "a", on = "b", x = 1 }]', "unknown key 'source.join.0.x'; known: file, on"),
        ("[table]\nfewest = 0", "table.fewest = 0 is not allowed: input should be greater than or equal to 1"),
        ("columns = 1", "columns = 1 is not allowed"),
        ("[columns]\na = 1", "columns.a = 1 is not allowed"),
    ],
)
def test_a_wrong_schema_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        schema_of(text)
    assert "\n" not in str(error.value)


def test_a_schema_that_is_not_there_or_no_toml(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_schema(tmp_path / "tables.toml")
    (tmp_path / "tables.toml").write_text("a = ")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_schema(tmp_path / "tables.toml")


def test_stored_schemas_are_checked_like_written_ones() -> None:
    plain = read_schema(CLINICS / "tables.toml").plain()
    dict(plain["columns"])["age"]["kind"] = "old"
    with pytest.raises(InputError, match=r"columns.age.kind = 'old' is not one of"):
        from_plain(plain, "model.json")
