"""site.toml from a first look at a holder's table: text with comments, to be read and changed by the holder."""

from __future__ import annotations

import json
import os
import re
import tomllib
from math import prod
from pathlib import Path
from typing import NamedTuple

from proxfed.data.own import own
from proxfed.errors import InputError, require
from proxfed.silos.site import Limits, Site, parse_site
from proxfed.tables import first_look, parse_schema
from proxfed.tables.raw import read_raw

TEXT = """\
# What this site allows. Whoever coordinates a job sees none of this file, only what is refused, in a sentence.
name = {name}

[data]
{data}

[allow]
algorithms = "all"        # every one that is installed here, or a list: ["fedavg", "fedcomposite"]
measures = "all"          # what may be told of a model's fit here, or a list: ["value", "gradient", "test"]
preparations = "all"      # what may be told to prepare tables: "all" is ["summary"]
counts = false            # true: counts of rows may be told, as weights by size and summaries of tables need it
code = []                 # "module:Class" that a job may name; what is not listed is never imported

[limits]
rows = {rows}                 # the fewest that this site answers for
rounds = {rounds}             # of a job
bytes = {bytes}        # that leave for a job, all messages together

[require]
secure_aggregation = false  # true: the coordinator may read sums of messages only
sites = 2                   # the fewest of a job
# privacy = {{noise = 8.0, epsilon = 10.0, delta = 1e-5}}   # at least this noise, at most this epsilon in all

[partners]                # fingerprints of the others' keys, as they tell them by telephone
# oslo = "0123-4567-89ab-cdef-0123-4567-89ab-cdef"

[files]
key = "site.key"          # private: only this user may read it
audit = "audit.jsonl"     # everything that leaves, before it leaves
state = "state"           # jobs under way
"""


MORE = "# held_out = 0.2          # the part of the rows that nobody trains on, for test measures"


class FirstSite(NamedTuple):
    """What a first look found."""

    text: str
    """site.toml."""
    site: Site
    rows: int
    columns: int
    schema: str
    """The text of a schema, if the table is not one of numbers; it goes into schema.toml."""
    why: str
    """Why it needs a schema."""


def first_site(data: Path, label: str, name: str, folder: Path) -> FirstSite:
    """Look at a table; nothing is written. `folder` is where site.toml will be."""
    require(data.is_file(), f"--data {data}: there is no such file")
    name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", data.name.partition(".")[0]).strip("-._")
    schema = why = ""
    try:
        numbers = own(data, label)
        rows, columns = len(numbers.labels), prod(numbers.features.shape[1:])
        where = Path(os.path.relpath(data, folder)).as_posix()
        table = f"path = {_text(where)}\nlabel = {_text(label)}\n{MORE}"
    except InputError as e:
        if data.suffix == ".npz":
            raise
        why, table = str(e), 'schema = "schema.toml"'
        schema = first_look([data], label, beside=folder)
        raw = read_raw(data, parse_schema(tomllib.loads(schema)).source)
        rows, columns = len(raw), len(raw.columns) - 1
    limits = Limits()
    text = TEXT.format(name=_text(name), data=table, rows=limits.rows, rounds=limits.rounds, bytes=limits.bytes)
    return FirstSite(text, parse_site(tomllib.loads(text), f"--name {name}", folder), rows, columns, schema, why)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
