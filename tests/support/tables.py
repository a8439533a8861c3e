"""Small tables for the tests."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.tables import Schema, Table, Tables, parse_schema, read_frame, read_tables

CLINICS = Path(__file__).parents[2] / "examples" / "tables" / "clinics"
EXAMPLES = CLINICS.parent


def schema_of(text: str) -> Schema:
    """A schema from its text."""
    return parse_schema(tomllib.loads(text))


def table_of(schema: Schema, columns: dict[str, Any], organisation: str = "one") -> Table:
    """The table of one organisation, without a target."""
    (table,) = read_frame(schema, columns, organisation, target=False).tables
    return table


def stacked(tables: list[Table], name: str) -> np.ndarray:
    """A column of all organisations together, as nobody could have it."""
    return np.concatenate([table.columns[name] for table in tables])


# ---- files ----------------------------------------------------------------------------------------------------------

COLUMNS = """
[columns.age]
kind = "number"
range = [0, 120]
[columns.stage]
kind = "category"
categories = ["I", "II"]
[columns.smoker]
kind = "boolean"
[columns.visit]
kind = "date"
"""
TARGET = '[target]\ncolumn = "outcome"\nclasses = ["well", "ill"]\n'
HEAD = "age,stage,smoker,visit,outcome\n"
ROWS = "50,I,yes,2020-01-01,ill\n61.5,II,no,2020-02-29,well\n,,,,well\n"


def write(folder: Path, source: str = 'files = "*.csv"', **files: str) -> Path:
    """A schema and its files; where the schema is."""
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "tables.toml").write_text(f"[source]\n{source}\n{TARGET}{COLUMNS}")
    return folder / "tables.toml"


def refused_table(path: Path, **options: Any) -> str:
    """The one sentence with which the tables of a schema are refused."""
    with pytest.raises(InputError) as error:
        read_tables(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_same(a: Tables, b: Tables) -> None:
    """The same organisations with the same numbers."""
    assert [t.organisation for t in a.tables] == [t.organisation for t in b.tables]
    for one, other in zip(a.tables, b.tables, strict=True):
        assert list(one.columns) == list(other.columns)
        for name in one.columns:
            np.testing.assert_array_equal(one.columns[name], other.columns[name], err_msg=name)
        np.testing.assert_array_equal(one.labels, other.labels)
