"""Files as named columns: CSV, .npz, and Parquet."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.data.directory import DamagedFile, read_bytes, require_room
from proxfed.errors import InputError, require

Columns = dict[str, np.ndarray]


def read_columns(path: Path, names: str | None = None) -> Columns:
    """The columns of a file, each of numbers or of strings; an .npz file's arrays may have further dimensions.

    The column `names` has identifiers: in a CSV file its 007 differs from its 7.
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
    """Whether the values are numbers or booleans, not strings."""
    return values.dtype.kind in "biuf"


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


MOST_COLUMNS = 100_000
"""A file with more columns is refused."""


def read_words(
    path: Path, names: Sequence[str] | None = None, separator: str = ",", encoding: str = "utf-8"
) -> dict[str, list[str]]:
    """The columns of a CSV file as strings; it may be compressed. Give `names` if its first line is not a header."""
    lines = _lines(path, separator, encoding)
    while lines and not lines[-1]:
        lines.pop()
    if names is None:
        require(len(lines) > 1, f"{path}: needs a header and at least one row")
        header = [name.strip() for name in lines.pop(0)]
    else:
        require(len(lines) > 0, f"{path}: has no row")
        header = list(names)
    for name, count in Counter(header).items():
        require(count == 1, f"{path}: two columns have the same name {name[:40]!r}")
    for i, row in enumerate(lines, start=1):
        if len(row) != len(header):
            what = f"has {len(row)} fields" if row else "is blank"
            raise InputError(f"{path}: row {i} {what}, but the header has {len(header)}")
    return {name: list(words) for name, words in zip(header, zip(*lines, strict=True), strict=True)}


def _lines(path: Path, separator: str, encoding: str) -> list[list[str]]:
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path}: is not a CSV file in {encoding.upper()} ({error})") from error
    require("\0" not in text, f"{path}: is not a CSV file in {encoding.upper()} (it holds a zero byte)")
    lines: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for line in reader:
            if len(line) > MOST_COLUMNS:
                raise InputError(f"{path}: line {reader.line_num} has {len(line)} fields, more than {MOST_COLUMNS}")
            lines.append(line)
    except csv.Error as error:
        raise DamagedFile(f"{path}: is not a CSV file in {encoding.upper()} ({error})") from error
    return lines


def _read_csv(path: Path, names: str | None = None) -> Columns:
    words = read_words(path)
    return {name: _names(values) if name == names else _column(values) for name, values in words.items()}


def _column(values: Sequence[str]) -> np.ndarray:
    """As numbers if all values are numbers, else as strings."""
    with suppress(ValueError):
        return np.fromiter(map(_number, values), np.float64, len(values))
    return np.array([value.strip() for value in values])


def _number(word: str) -> float:
    """A plainly written number; Python's float would also accept the digits of other scripts, and 1_000."""
    if not word.isascii() or "_" in word:
        raise ValueError(word)
    return float(word)


def _names(values: Sequence[str]) -> np.ndarray:
    """As whole numbers if all are plainly written, else as strings."""
    words = [value.strip() for value in values]
    plain = all(word.isdecimal() and str(int(word)) == word and int(word) < 2**63 for word in words)
    return np.array(words, np.int64) if plain else np.array(words)


NPZ_ERRORS = (
    ValueError, TypeError, AttributeError, OSError, EOFError, MemoryError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions of damaged files: an array larger than memory, an unknown compression, not an archive."""


def read_npz(path: Path, only: str | None = None) -> Columns:
    """Its arrays; or only the array `only`, if the file has it."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            require_room(path, sum(member.file_size for member in stored.zip.infolist()))
            return {name: stored[name] for name in stored.files if only in (None, name)}
    except NPZ_ERRORS as error:
        raise DamagedFile(f"{path}: is not an .npz file of plain arrays ({_first_line(error)})") from error


def _read_parquet(path: Path) -> Columns:
    table = read_arrow(path)
    return {name: _plain(table[name].to_numpy()) for name in table.column_names}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def read_arrow(path: Path) -> Any:
    """A Parquet file as a table of Arrow."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        missing = "Parquet needs pyarrow, which is not installed: pip install 'proxfed[tables]'"
        raise InputError(f"{path}: {missing}") from error
    try:
        about = pyarrow.parquet.read_metadata(path)
        groups = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
        require_room(path, max(groups, 8 * about.num_rows * about.num_columns))
        return pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
        raise DamagedFile(f"{path}: is not a Parquet file ({_first_line(error)})") from error


def _plain(values: np.ndarray) -> np.ndarray:
    """Convert Arrow's strings, which are Python objects with None for missing values."""
    return np.array(["" if value is None else str(value) for value in values]) if values.dtype == object else values


READERS: dict[str, Callable[[Path], Columns]] = {".csv": _read_csv, ".npz": read_npz, ".parquet": _read_parquet}
