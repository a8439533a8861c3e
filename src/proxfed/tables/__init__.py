"""Tables as organisations hold them, the schema they agree on, and their preparation without sharing rows."""

from proxfed.explained import explain
from proxfed.tables.design import Design, design, load_tables
from proxfed.tables.first_look import first_look
from proxfed.tables.holdings import Holdings, holdings
from proxfed.tables.merging import merge
from proxfed.tables.preparation import Feature, Preparation
from proxfed.tables.schema import Schema, parse_schema, read_schema
from proxfed.tables.sums import Summary, decode, summarise
from proxfed.tables.table import Table, Tables, read_frame, read_tables

__all__ = [
    "Design",
    "Feature",
    "Holdings",
    "Preparation",
    "Schema",
    "Summary",
    "Table",
    "Tables",
    "decode",
    "design",
    "first_look",
    "holdings",
    "load_tables",
    "merge",
    "parse_schema",
    "read_frame",
    "read_schema",
    "read_tables",
    "summarise",
]


explain(__name__)
