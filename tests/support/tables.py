"""Small tables for the tests."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.tables import Schema, Table, parse_schema, read_frame

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
