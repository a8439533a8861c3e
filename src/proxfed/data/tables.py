"""Files as named columns: CSV with a header, .npz, and Parquet."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from proxfed.data.directory import DamagedFile, read_bytes
from proxfed.errors import InputError, require

Columns = dict[str, np.ndarray]


def read_columns(path: Path, names: str | None = None) -> Columns:
    """The columns of a file, each of numbers or of words; an .npz file's arrays may have further dimensions.

    The column `names` tells things apart: in a CSV file its 007 is not its 7.
    """
    require(path.suffix in READERS, f"{path}: is not one of the formats {', '.join(READERS)}")
    require(path.is_file(), f"{path}: there is no such file")
    return _read_csv(path, names) if path.suffix == ".csv" else READERS[path.suffix](path)


def stack(path: Path, columns: Columns) -> np.ndarray:
    """The columns as one array (N, p) of floats; the array `features` of an .npz file as it is."""
    for name, values in columns.items():
        if not is_numeric(values):
            row = next((i for i, value in enumerate(values.ravel().tolist()) if not _is_number(value)), 0)
            held = str(values.ravel()[row])[:40]
            raise InputError(f"{path}, column {name!r}: row {row + 1} holds {held!r}, which is not a number")
    if path.suffix == ".npz":
        only = list(columns) == ["features"]
        require(only, f"{path}: beside labels and clients it must hold the array 'features', not {', '.join(columns)}")
        return columns["features"]
    return np.column_stack(list(columns.values())).astype(np.float64)


def is_numeric(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf"


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _read_csv(path: Path, names: str | None = None) -> Columns:
    try:
        lines = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedFile(f"{path}: is not a CSV file in UTF-8 ({error})") from error
    lines = [line for line in lines if line]
    require(len(lines) > 1, f"{path}: needs a header and at least one row")
    header, *rows = lines
    require(len(set(header)) == len(header), f"{path}: two columns have the same name")
    for i, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise InputError(f"{path}: row {i} has {len(row)} fields, but the header has {len(header)}")
    columns = zip(header, zip(*rows, strict=True), strict=True)
    return {name: _names(values) if name == names else _column(values) for name, values in columns}


def _column(values: Sequence[str]) -> np.ndarray:
    """Numbers if all of them are, else words."""
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except ValueError:
        return np.array([value.strip() for value in values])


def _names(values: Sequence[str]) -> np.ndarray:
    """Whole numbers if all of them are plainly written, else words."""
    words = [value.strip() for value in values]
    plain = all(word.isdecimal() and str(int(word)) == word and int(word) < 2**63 for word in words)
    return np.array(words, np.int64) if plain else np.array(words)


def _read_npz(path: Path) -> Columns:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFile(f"{path}: is not an .npz file of plain arrays ({error})") from error


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow.parquet
    except ImportError as error:
        missing = "Parquet needs pyarrow, which is not installed: pip install 'proxfed[parquet]'"
        raise InputError(f"{path}: {missing}") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
        raise DamagedFile(f"{path}: is not a Parquet file ({error})") from error
    return {name: _plain(table[name].to_numpy()) for name in table.column_names}


def _plain(values: np.ndarray) -> np.ndarray:
    """Arrow's words are Python objects, with None for a gap."""
    return np.array(["" if value is None else str(value) for value in values]) if values.dtype == object else values


READERS: dict[str, Callable[[Path], Columns]] = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
