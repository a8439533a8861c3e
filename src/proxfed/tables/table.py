"""Tables that fit a schema, one per organisation, and their readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from proxfed.errors import InputError, require
from proxfed.tables.cells import is_missing, parse
from proxfed.tables.column_kinds import LARGEST, Boolean, Category, Ignore, Number, canonical, numbered, words_of
from proxfed.tables.folds import units
from proxfed.tables.raw import Raw, find_files, from_frame, joined, nearest_column, read_raw
from proxfed.tables.schema import Schema, Target, read_schema

LIGHTEST = 1e-9
"""The smallest weight of a row; 0 is not allowed."""


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of one organisation, as numbers: NaN is missing, a category its index, a date days since its origin."""

    organisation: str
    """Its name."""
    schema: Schema
    """With every column of [others] written out."""
    columns: dict[str, np.ndarray]
    """(N,) each, the inputs of the schema in order."""
    labels: np.ndarray | None = None
    """(N,) the index of the class, the number, or the time; None: the table has no target."""
    events: np.ndarray | None = None
    """(N,) for a survival target: 1 if the event happened at that time, 0 if it is censored."""
    weights: np.ndarray | None = None
    """(N,) the weights of the rows; None: all equal."""
    offset: np.ndarray | None = None
    """(N,) the offsets added to the scores; None: no offsets."""
    clusters: np.ndarray | None = None
    """(N,) words: rows with the same word are dependent; None: all rows are independent."""
    units: np.ndarray | None = None
    """(N,) words: rows with the same word are held out together; None: each row is its own unit."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: np.ndarray) -> Table:
        """Some of its rows."""
        more: dict[str, Any] = {name: v[rows] for name in BESIDES if (v := getattr(self, name)) is not None}
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, **more)


BESIDES = ("labels", "events", "weights", "offset", "clusters", "units")
"""The optional parts of a table beside its columns."""


class Tables(NamedTuple):
    """The tables read: one per organisation, in the order of their names."""

    schema: Schema
    """With every column of [others] written out."""
    tables: tuple[Table, ...]
    """Training rows, by organisation."""
    test: tuple[Table, ...]
    """Held-out rows, by organisation; none if the schema holds none out."""
    notes: tuple[str, ...]
    """The rows and columns that were left out, and why."""


def read_tables(schema: Schema | str | Path, directory: str | Path | None = None, target: bool = True) -> Tables:
    """The tables of all organisations that a schema's [source] names.

    schema      a schema, or its file; files are looked for beside it, or in the data directory if it says so
    directory   the data directory; default: PROXFED_DATA
    target      False: the tables are for prediction and need no target
    """
    beside = Path() if isinstance(schema, Schema) else Path(schema).expanduser().parent
    schema = schema if isinstance(schema, Schema) else read_schema(schema)
    source, notes, parts = schema.source, list[str](), list[tuple[str, Raw]]()
    for stem, path in find_files(source, beside, directory).items():
        table = read_raw(path, source)
        for join in source.join:
            other = source.model_copy(update={"files": join.file})
            (further,) = find_files(other, beside, directory).values()
            table, lost = joined(table, read_raw(further, source), join)
            if lost:
                notes.append(f"{path}: {lost} rows are left out, which {further} does not have")
        parts += _by_organisation(table, schema, stem, target, notes)
    return _tables(schema, parts, notes, target)


def read_frame(
    schema: Schema, frame: Any, organisation: str = "", target: bool = True, name: str = "frame", besides: bool = True
) -> Tables:
    """The same for a frame of pandas, polars or Arrow, or a dict of columns, of one organisation or by a column.

    Give `organisation` if the schema names no column for it. Not `besides`: the rows are not for a fit, so they need
    no weights, offsets, clusters or units.
    """
    notes = list[str]()
    parts = _by_organisation(from_frame(frame, name), schema, organisation or name, target, notes)
    return _tables(schema, parts, notes, target, besides)


# ---- rows by organisation -------------------------------------------------------------------------------------------


def _by_organisation(table: Raw, schema: Schema, alone: str, target: bool, notes: list[str]) -> list[tuple[str, Raw]]:
    """The rows of each organisation, without rows that lack a required value."""
    source = schema.source
    gaps = set(words_of(schema.table.missing))
    outcome = () if schema.target is None else schema.target.columns
    for name in source.drop:
        if target or name not in outcome:
            own = schema.target if name in outcome else schema.columns.get(name)
            table = _without_gaps(table, name, gaps | set(words_of(getattr(own, "missing", []))), notes)
    if not source.organisation:
        return [(alone, table)]
    owners = _owners(table, schema, gaps)
    order = np.argsort(owners, kind="stable")
    names, starts = np.unique(owners[order], return_index=True)
    return [(str(name), table.take(rows)) for name, rows in zip(names, np.split(order, starts[1:]), strict=True)]


def _without_gaps(table: Raw, name: str, gaps: set[str], notes: list[str]) -> Raw:
    lacks = np.array([is_missing(cell, gaps) for cell in table.column(name).tolist()], bool)
    if lacks.any():
        notes.append(f"{table.name}: {lacks.sum()} rows are left out, which have no {name!r}")
    require(not lacks.all(), f"{table.name}: no row has a value in the column {name!r}")
    return table.take(np.flatnonzero(~lacks))


def _owners(table: Raw, schema: Schema, gaps: set[str]) -> np.ndarray:
    source = schema.source
    known = {word: name for name, words in numbered(dict(source.organisations)).items() for word in words}
    cells = table.column(source.organisation).tolist()
    owners: dict[tuple[type, Any], str] = {}
    for row, cell in enumerate(cells):
        if (type(cell), cell) in owners:
            continue
        word = "" if cell is None or cell != cell else canonical(cell)
        if known and word not in known:
            expected = ", ".join([*known][:12])
            raise InputError(f"{table.place(source.organisation, row)} holds {word[:40]!r}, not one of {expected}")
        if not known and word in gaps | {""}:
            raise InputError(f"{table.place(source.organisation, row)} does not name the row's organisation")
        owners[type(cell), cell] = known.get(word, word)
    return np.array([owners[type(cell), cell] for cell in cells])


# ---- from cells to numbers ------------------------------------------------------------------------------------------


def _tables(
    schema: Schema, parts: Sequence[tuple[str, Raw]], notes: list[str], target: bool, besides: bool = True
) -> Tables:
    sizes = Counter[str]()
    for name, table in parts:
        sizes[name] += len(table)
    small = {name: size for name, size in sizes.items() if size < schema.source.smallest}
    if small:
        rows = sum(small.values())
        fewer = f"fewer than {schema.source.smallest} rows"
        notes.append(f"{len(small)} organisations with {fewer}, together {rows}, are left out")
    kept = [(name, table) for name, table in parts if name not in small]
    require(len(kept) > 0, f"no organisation has {schema.source.smallest} rows or more")
    schema = schema.expanded(name for _, table in kept for name in table.columns)
    require(len(schema.inputs) > 0, "the schema names no column that predicts: [columns.NAME] with its kind")
    if target:
        require(schema.target is not None, "the schema has no [target]: give its column, or time and event")
    train: dict[str, list[Table]] = {}
    test: dict[str, list[Table]] = {}
    for name, table in kept:
        read = _table(name, table, schema, target, besides)
        out = _held_out(table, schema)
        train.setdefault(name, []).append(read.take(np.flatnonzero(~out)))
        test.setdefault(name, []).append(read.take(np.flatnonzero(out)))
    tested = [name for name, tables in train.items() if not any(map(len, tables))]
    if tested:
        notes.append(f"{', '.join(sorted(tested))}: all rows are held out for testing")
    require(len(tested) < len(train), f"source.test = {schema.source.test}: all rows are held out for testing")
    return Tables(schema, _together(train), _together(test), tuple(notes))


def _together(parts: dict[str, list[Table]]) -> tuple[Table, ...]:
    """One table per organisation, from all the files in which it has rows."""
    whole = [_stacked(tables) for _, tables in sorted(parts.items())]
    return tuple(table for table in whole if len(table))


def _stacked(tables: list[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    columns = {name: np.concatenate([t.columns[name] for t in tables]) for name in tables[0].columns}
    has = [name for name in BESIDES if getattr(tables[0], name) is not None]
    more: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in tables]) for name in has}
    return replace(tables[0], columns=columns, **more)


def _held_out(table: Raw, schema: Schema) -> np.ndarray:
    test = schema.source.test
    if test is None:
        return np.zeros(len(table), bool)
    words = set(words_of(test.words))
    cells = table.column(test.column).tolist()
    return np.array([cell is not None and canonical(cell) in words for cell in cells], bool)


def _table(organisation: str, table: Raw, schema: Schema, target: bool, besides: bool) -> Table:
    _check_columns(table, schema)
    missing, columns = schema.table.missing, {}
    for name, column in schema.inputs.items():
        if name in table.columns:
            columns[name] = parse(column, table.columns[name], _where(table, name), missing)
        else:
            empty = np.full(len(table), None, dtype=object)
            columns[name] = parse(column, empty, _where(table, name), missing)
    if not target or schema.target is None:
        return Table(organisation, schema, columns)
    labels, events = _outcome(table, schema.target, missing)
    if not besides:
        return Table(organisation, schema, columns, labels, events)
    weights, offset = _weights(table, schema.target, missing), _offset(table, schema.target, missing)
    more = _clusters(table, schema), units(schema.folds, schema.columns, table.column, table.place, missing)
    return Table(organisation, schema, columns, labels, events, weights, offset, *more)


def transformed(transform: str, values: np.ndarray, back: bool = False) -> np.ndarray:
    """A target as in the model; `back`: as in the table."""
    there: dict[str, Callable[[np.ndarray], np.ndarray]] = {"log": np.log, "log1p": np.log1p}
    again: dict[str, Callable[[np.ndarray], np.ndarray]] = {"log": np.exp, "log1p": np.expm1}
    change = (again if back else there).get(transform)
    return values if change is None else change(values)


def _where(table: Raw, name: str) -> Callable[[int], str]:
    return lambda row: table.place(name, row)


def _check_columns(table: Raw, schema: Schema) -> None:
    for name, column in schema.inputs.items():
        if name not in table.columns and not column.optional:
            table.column(name)
    if schema.others is not None and isinstance(schema.others, Ignore):
        return
    for name in table.columns:
        if name not in schema.columns and name not in schema.besides:
            hint = nearest_column(name, schema.columns)
            out = "or leave such columns out with [others] kind = 'ignore'"
            raise InputError(f"{table.name}: the schema does not name its column {name[:40]!r}; {hint} {out}")


def _weights(table: Raw, target: Target, missing: Iterable[Any]) -> np.ndarray | None:
    if not target.weight:
        return None
    positive = Number(kind="number", range=[LIGHTEST, LARGEST], impute="refuse")
    return parse(positive, table.column(target.weight), _where(table, target.weight), missing)


def _offset(table: Raw, target: Target, missing: Iterable[Any]) -> np.ndarray | None:
    name = target.offset or target.exposure
    if not name:
        return None
    low = LIGHTEST if target.exposure else -LARGEST
    number = Number(kind="number", range=[low, LARGEST], impute="refuse")
    values = parse(number, table.column(name), _where(table, name), missing)
    return np.log(values) if target.exposure else values


def _clusters(table: Raw, schema: Schema) -> np.ndarray | None:
    name = "" if schema.target is None else schema.target.cluster
    if not name:
        return None
    gaps = set(words_of(schema.table.missing))
    cells = table.column(name).tolist()
    row = next((k for k, cell in enumerate(cells) if is_missing(cell, gaps)), None)
    require(row is None, f"{table.place(name, row or 0)} does not name the row's cluster")
    return np.array([canonical(cell) for cell in cells], dtype=object)


def _outcome(table: Raw, target: Target, missing: Iterable[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """(labels, events): none may be missing."""
    form: dict[str, Any] = {"decimal": target.decimal, "thousands": target.thousands, "currency": target.currency}
    common: dict[str, Any] = {"missing": target.missing, "impute": "refuse"}
    first = target.columns[0]
    cells, where = table.column(first), _where(table, first)
    if target.kind == "classes":
        kind = Category(kind="category", categories=target.classes or [], **common)
        return parse(kind, cells, where, missing).astype(np.int64), None
    if target.kind == "number":
        number = Number(kind="number", transform=target.transform, **form, **common)
        return transformed(target.transform, parse(number, cells, where, missing)), None
    times = parse(Number(kind="number", range=[0.0, LARGEST], **form, **common), cells, where, missing)
    events = Boolean(kind="boolean", yes=target.happened, no=target.censored, **common)
    return times, parse(events, table.column(target.event), _where(table, target.event), missing)
