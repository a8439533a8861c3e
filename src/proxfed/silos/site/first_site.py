"""A draft of site.toml from a first look at a holder's table: commented text for the holder to read and edit."""

from __future__ import annotations

import json
import os
import re
import tomllib
from math import prod
from pathlib import Path
from typing import NamedTuple

import tomli_w

from proxfed.data.own import own
from proxfed.errors import InputError, require
from proxfed.registry import read_toml
from proxfed.silos.site.config import Limits, Site, parse_site
from proxfed.tables import first_look, parse_schema, read_tables
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
minibatches = false       # true: gradients of some rows only, of which the coordinator knows which they are
code = []                 # "module:Class" that a job may name; what is not listed is never imported

[limits]
rows = {rows}                 # the fewest that anything is told about: a client, a batch, the test rows
rounds = {rounds}             # of a job
bytes = {bytes}        # that leave for a job, all messages together
answers = {answers}            # that depend on rows, of a job: rounds, measures, summaries
total = {total}             # the same over all jobs, for as long as this site has its key
norm = {norm}              # the largest norm of a model that anything is told about
step = {step}               # how far a model may be from those before it
weights = {weights}            # how many times more than another client one may count
partners = {partners}              # the fewest sites by which two jobs with masks may differ, unless they are the same
change = {change}               # the fewest rows by which the tables of two jobs may differ, unless they are the same
failures = {failures}             # answers that may fail, over all jobs: each tells that a number was too large
# feature = 5             # the fewest rows of a category; without it 5 where sums of this site alone can be read, as
                          # without masks or between two sites, and 1 under masks between more

[require]
secure_aggregation = true   # the coordinator may read sums of messages only; needs [partners]
fraction_bits = 40          # numbers of such sums are rounded to 2^-40
same_cohort = true          # all sums of a job are over the same sites
recovery = 0                # how many sites must agree to undo the masks of one that drops out; 0: more than half
sites = 2                   # the fewest of a job, and of a sum
# privacy = {{noise = 8.0, epsilon = 10.0, delta = 1e-5}}   # at least this noise, at most this epsilon in all

[fit]                     # of `proxfed fit`
folds = 5                 # into which the rows are divided, once and for all jobs
masked = true             # only sums over all sites are told
rows_per_coefficient = 10.0   # fewer: neither Hessians nor Gram matrices are told
apart = false             # true: one organisation at a time may be left out
dominance = 0.5           # the largest share of one row in a sum of a loss that grows as e^score
measures = false          # true: rounded measures on this site's own held-out rows
inference = true          # sums for standard errors, tests and survival curves
estimates = false         # true: this site's estimates of its own rows alone, for a forest plot

[ranges]                  # every number of a job has one: those that are not here are in protection/ranges.py
# K = [1, 20]

[partners]                # fingerprints of the others' keys, as they tell them by telephone: these and no other sites
# oslo = "0123-4567-89ab-cdef-0123-4567-89ab-cdef"

[files]
key = "site.key"          # private: only this user may read it
audit = "audit.jsonl"     # everything that leaves, before it leaves
state = "state"           # jobs under way
"""


MORE = "# held_out = 0.2          # the part of the rows that nobody trains on, for test measures"


class FirstSite(NamedTuple):
    """The result of a first look."""

    text: str
    """site.toml."""
    site: Site
    rows: int
    columns: int
    schema: str
    """The text for schema.toml, if the table has other columns than numbers."""
    why: str
    """Why a schema is needed; empty: it was given."""


def first_site(data: Path, label: str, name: str, folder: Path) -> FirstSite:
    """Look at a table, without writing anything. `folder` will contain site.toml."""
    require(data.is_file(), f"--data {data}: there is no such file")
    name = name or _called(data)
    schema = why = ""
    try:
        numbers = own(data, label)
        rows, columns = len(numbers.labels), prod(numbers.features.shape[1:])
        where = Path(os.path.relpath(data, folder)).as_posix()
        table = f"path = {_text(where)}\nlabel = {_text(label)}\n{MORE}"
    except InputError as e:
        if data.suffix == ".npz":
            raise
        why, table = str(e), SCHEMA
        schema = first_look([data], label, beside=folder)
        raw = read_raw(data, parse_schema(tomllib.loads(schema)).source)
        rows, columns = len(raw), len(raw.columns) - 1
    return FirstSite(*_site(name, table, folder), rows, columns, schema, why)


OF_ONE_HOLDER = ("files", "folder", "organisation", "organisations", "smallest")
"""Keys of [source] that describe one holder's files."""


def joined_site(schema: Path, data: Path, name: str, folder: Path) -> FirstSite:
    """The same with a partner's schema: the columns are taken from it, the location of the rows is our own."""
    require(data.is_file(), f"--data {data}: there is no such file")
    table = read_toml(schema)
    parse_schema(table, str(schema))
    source = {key: value for key, value in table.get("source", {}).items() if key not in OF_ONE_HOLDER}
    where = Path(os.path.relpath(data, folder)).as_posix()
    table["source"] = {"files": [where], **source}
    found = read_tables(parse_schema(table | {"source": {"files": [str(data.resolve())], **source}}, str(schema)))
    text = (
        f"# From {_text(schema.name)}. Everything but [source] is agreed with the other sites.\n{tomli_w.dumps(table)}"
    )
    rows, columns = sum(map(len, found.tables)), len(found.schema.inputs)
    return FirstSite(*_site(name or _called(data), SCHEMA, folder), rows, columns, text, "")


SCHEMA = 'schema = "schema.toml"'


def _site(name: str, data: str, folder: Path) -> tuple[str, Site]:
    text = TEXT.format(name=_text(name), data=data, **Limits().model_dump())
    return text, parse_site(tomllib.loads(text), f"--name {name}", folder)


def _called(data: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", data.name.partition(".")[0]).strip("-._")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
