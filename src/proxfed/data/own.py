"""Users' own data: a folder with one file per client, or one file with a column that names the client of each row.

CSV (with a header) and Parquet: one column is the label, one may be the client, all others are features. An .npz file
has the array `features`, of any shape (samples, ...), and arrays with the names of those two columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proxfed.data.column_files import READERS, Columns, is_numeric, read_columns, stack
from proxfed.data.federated import Dataset
from proxfed.data.partitions import NaturalPartition
from proxfed.errors import InputError, require
from proxfed.keyed_random import generator


def own(
    path: str | Path,
    label: str = "label",
    client: str | None = None,
    classes: int | None = None,
    test: str | Path | None = None,
    held_out: float = 0.0,
    seed: int = 0,
) -> Dataset:
    """Your own files (CSV, Parquet, .npz): a folder with a file per client, or one file with a client column or none.

    label      the column of labels; strings become classes, numbered in alphabetical order
    client     the column with the client of each row; one file without it needs a partition
    classes    the number of classes of numeric labels; None: they are numbers, as in a regression, or -1/+1
    test       a file of samples that no client holds
    held_out   instead of a test file: the fraction of every client's rows that is held out, drawn with `seed`
    """
    path = Path(path).expanduser()
    require(path.exists(), f"own: path = {str(path)!r} does not exist")
    require(0 <= held_out < 1, f"own: held_out = {held_out!r} must be at least 0 and below 1")
    one = test is None or held_out == 0
    require(one, f"own: test = {str(test)!r} and held_out = {held_out!r} exclude each other: give one of them")
    beside = None if test is None else Path(test).expanduser()
    if path.is_dir():
        require(client is None, f"own: {path} has a file per client, so client = {client!r} has no meaning")
        tables = [_read(file, label) for file in _client_files(path, beside)]
        names, sizes = [table.path.name for table in tables], [len(table.labels) for table in tables]
        groups: np.ndarray | None = np.repeat(names, sizes)
    else:
        tables = [_read(path, label, client)]
        groups = tables[0].clients
    rows = sum(len(table.labels) for table in tables)
    if beside is not None:
        tables.append(_read(beside, label, client, of_clients=False))
    features = _features(tables)
    labels, classes, words = _numbered(tables, classes)

    train, out = np.arange(rows), np.arange(rows, len(labels))
    if held_out:
        train, out = _hold_out(np.zeros(rows) if groups is None else groups, held_out, seed)
    return Dataset(
        features[train],
        labels[train],
        features[out] if len(out) else None,
        labels[out] if len(out) else None,
        classes,
        path.stem,
        None if groups is None else groups[train],
        None if tables[0].path.suffix == ".npz" else tuple(tables[0].columns),
        class_names=words,
    )


class Table(NamedTuple):
    """One file."""

    path: Path
    columns: Columns
    """The features."""
    labels: np.ndarray
    clients: np.ndarray | None


def _client_files(folder: Path, test: Path | None) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix in READERS)
    files = [file for file in files if test is None or file.resolve() != test.resolve()]
    require(len(files) > 0, f"own: there is no {', '.join(READERS)} file in {folder}")
    return files


def _read(path: Path, label: str, client: str | None = None, of_clients: bool = True) -> Table:
    columns = read_columns(path, client)
    for name in [label] if client is None or not of_clients else [label, client]:
        require(name in columns, f"{path}: has no column {name!r}, only {', '.join(columns)}")
        _require_no_gaps(path, name, columns[name])
    labels, clients = columns.pop(label), columns.pop(client, None) if client else None
    require(len(columns) > 0, f"{path}: has no features beside its labels")
    return Table(path, columns, labels, clients)


def _require_no_gaps(path: Path, name: str, values: np.ndarray) -> None:
    gaps = np.zeros(0, bool)
    if values.dtype.kind == "U":
        gaps = values == ""
    elif values.dtype.kind == "f":
        gaps = np.isnan(values)
    if gaps.any():
        raise InputError(f"{path}, column {name!r}: row {gaps.argmax() + 1} is empty")


def _features(tables: Sequence[Table]) -> np.ndarray:
    """The features (N, ...) of all tables, with columns in the order of the first."""
    first, parts = tables[0], list[np.ndarray]()
    for table in tables:
        missing, extra = first.columns.keys() - table.columns.keys(), table.columns.keys() - first.columns.keys()
        if missing or extra:
            has = f"has no column {min(missing)!r}" if missing else f"has a column {min(extra)!r}"
            raise InputError(f"{table.path}: {has}, unlike {first.path}")
        part = stack(table.path, {name: table.columns[name] for name in first.columns})
        require(len(part) == len(table.labels), f"{table.path}: {len(part)} samples but {len(table.labels)} labels")
        shape, other = part.shape[1:], parts[0].shape[1:] if parts else part.shape[1:]
        require(shape == other, f"{table.path}: samples have shape {shape}, but those of {first.path} have {other}")
        parts.append(part)
    return np.concatenate(parts)


def _numbered(tables: Sequence[Table], classes: int | None) -> tuple[np.ndarray, int | None, tuple[str, ...] | None]:
    """(labels of all tables as numbers, the number of classes, their names if they are strings)."""
    for table in tables[1:]:
        same = is_numeric(table.labels) == is_numeric(tables[0].labels)
        require(same, f"{table.path} and {tables[0].path}: one has words as labels, the other numbers")
    labels = np.concatenate([table.labels for table in tables])
    if is_numeric(labels):
        return labels, classes, None
    words, numbers = np.unique(labels, return_inverse=True)
    shown = ", ".join(words[:8].tolist()) + (", ..." if len(words) > 8 else "")
    require(classes in (None, len(words)), f"own: classes = {classes} but the labels are {len(words)} words: {shown}")
    return numbers, len(words), tuple(words.tolist())


def _hold_out(groups: np.ndarray, part: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out) rows, ascending; the same fraction of every client's rows, rounded down."""
    rng, out = generator(seed, "held out"), np.zeros(len(groups), bool)
    for rows in NaturalPartition()(groups, groups):
        out[rng.permutation(rows)[: int(part * len(rows))]] = True
    require(bool(out.any()), f"own: held_out = {part} is less than one row of every client")
    return np.flatnonzero(~out), np.flatnonzero(out)
