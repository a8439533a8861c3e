"""Readers of CSV, Parquet and .npz files, and of frames of pandas, polars or Arrow, as columns of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.data.column_files import MOST_COLUMNS, read_arrow, read_npz, read_words
from proxfed.data.directory import data_directory
from proxfed.errors import InputError, MissingData, nearest, require
from proxfed.tables.column_kinds import canonical
from proxfed.tables.schema import Join, Source


@dataclass(frozen=True, eq=False)
class Raw:
    """A table as read. Columns are numbers, or objects: words, dates, booleans, None."""

    name: str
    """Its name in messages: its path."""
    columns: dict[str, np.ndarray]
    rows: np.ndarray
    """(N,) the number of each row in its file, from 1."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """The cells of a required column."""
        if name not in self.columns:
            raise InputError(f"{self.name}: has no column {name!r}; {nearest_column(name, self.columns)}")
        return self.columns[name]

    def place(self, column: str, row: int) -> str:
        """The name of a cell in messages."""
        return f"{self.name}, column {column!r}, row {self.rows[row]}"

    def take(self, keep: np.ndarray) -> Raw:
        """Some of its rows, by index."""
        return replace(self, columns={name: cells[keep] for name, cells in self.columns.items()}, rows=self.rows[keep])


def nearest_column(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown column: the same name in other case, or the nearest one."""
    alike = next((other for other in known if other.strip().casefold() == name.strip().casefold()), None)
    if alike is not None:
        return f"did you mean {alike!r}?"
    return nearest(name, known) if len(known) < 50 else f"there are {len(known)} others"


def raw(name: str, columns: dict[str, np.ndarray]) -> Raw:
    """A table from columns of the same length."""
    require(len(columns) > 0, f"{name}: has no columns")
    rows = len(next(iter(columns.values())))
    require(rows > 0, f"{name}: has no row")
    return Raw(name, columns, np.arange(1, rows + 1))


# ---- files ----------------------------------------------------------------------------------------------------------


def find_files(source: Source, beside: Path, directory: str | Path | None = None) -> dict[str, Path]:
    """The files of a source, by the default name of each file's organisation."""
    folder = data_directory(directory) / source.folder if source.folder else beside
    if isinstance(source.files, dict):
        found = {name: folder / file for name, file in source.files.items()}
    else:
        patterns = [source.files] if isinstance(source.files, str) else source.files
        paths = [path for pattern in patterns for path in _matching(folder, pattern)]
        stems = [path.name.partition(".")[0] for path in paths]
        called = stems if len(set(stems)) == len(stems) else [path.name for path in paths]
        twice = next((name for name, count in Counter(called).items() if count > 1), None)
        require(twice is None, f"source.files: two files are called {twice!r}; name the organisation of each")
        found = dict(zip(called, paths, strict=True))
    require(len(found) > 0, "source.files names no file")
    for path in found.values():
        _require_there(path, source.folder)
    return found


def _require_there(path: Path, in_directory: str) -> None:
    if not path.is_file():
        hint = "; name the data directory with PROXFED_DATA or --data" if in_directory else ""
        raise MissingData(f"{path}: there is no such file{hint}")


def _matching(folder: Path, pattern: str) -> list[Path]:
    if not has_magic(pattern):
        return [folder / pattern]
    found = sorted(glob(pattern, root_dir=folder))
    if not found:
        raise MissingData(f"{folder / pattern}: there is no such file")
    return [folder / file for file in found]


def read_raw(path: Path, source: Source) -> Raw:
    """Reads a file by its suffix: .parquet, .npz, or otherwise text in columns."""
    if path.suffix == ".parquet":
        return from_frame(read_arrow(path), str(path))
    if path.suffix == ".npz":
        return _from_npz(path, source)
    words = read_words(path, source.names, source.separator, source.encoding)
    return raw(str(path), {name: np.array(cells, dtype=object) for name, cells in words.items()})


def _from_npz(path: Path, source: Source) -> Raw:
    arrays = read_npz(path)
    columns = {name: values for name, values in arrays.items() if name not in (source.matrix, source.matrix_names)}
    if source.matrix:
        for name in (source.matrix, source.matrix_names):
            require(name in arrays, f"{path}: has no array {name!r}; {nearest(name, arrays)}")
        matrix, names = arrays[source.matrix], arrays[source.matrix_names].tolist()
        fits = matrix.ndim == 2 and matrix.shape[1] == len(names)
        require(fits, f"{path}: {source.matrix} of shape {matrix.shape} does not fit {len(names)} names")
        columns |= {str(name): matrix[:, j] for j, name in enumerate(names)}
    rows = {values.shape for values in columns.values()}
    require(len(rows) == 1 and len(next(iter(rows))) == 1, f"{path}: its arrays are not columns of the same length")
    return raw(str(path), {name: v if v.dtype.kind in "iuf" else _objects(v.tolist()) for name, v in columns.items()})


PLAIN = (str, bool, int, float, Decimal, date, type(None))


def _objects(cells: Sequence[Any]) -> np.ndarray:
    """Cells of any kind; lists, dicts and other objects in a frame become their str()."""
    held = np.empty(len(cells), dtype=object)
    held[:] = [cell if isinstance(cell, PLAIN) else str(cell) for cell in cells]
    return held


# ---- frames ---------------------------------------------------------------------------------------------------------


def from_frame(frame: Any, name: str = "frame") -> Raw:
    """A frame of pandas, polars, Arrow or another library that narwhals supports; a dict of columns; or a Raw table."""
    if isinstance(frame, Raw):
        return frame
    if isinstance(frame, dict):
        return _from_dict(frame, name)
    try:
        import narwhals
    except ImportError as error:
        missing = "frames are read with narwhals, which is not installed: pip install 'proxfed[tables]'"
        raise InputError(f"{name}: {missing}") from error
    try:
        held = narwhals.from_native(frame, eager_only=True)
        names = [str(column) for column in held.columns]
        require(len(names) <= MOST_COLUMNS, f"{name}: has {len(names)} columns, more than {MOST_COLUMNS}")
        require(len(set(names)) == len(names), f"{name}: two columns have the same name")
        return raw(name, {column: _cells(held[held.columns[j]]) for j, column in enumerate(names)})
    except (TypeError, ValueError, narwhals.exceptions.NarwhalsError) as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"{name}: is not a frame that can be read ({said})") from error


def _from_dict(frame: dict[Any, Any], name: str) -> Raw:
    held = [isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) == 1 for values in frame.values()]
    require(all(held), f"{name}: a column must be a list or an array of one dimension")
    same = len({len(values) for values in frame.values()}) <= 1
    require(same, f"{name}: its columns are not all of the same length")
    return raw(name, {str(key): _from_values(values) for key, values in frame.items()})


def _from_values(values: Any) -> np.ndarray:
    array = values if isinstance(values, np.ndarray) else _as_numbers(values)
    if array.dtype.kind in "iuf":
        return array
    if array.dtype.kind == "M":
        return _objects(array.astype("datetime64[us]").tolist())
    return _objects(values.tolist() if isinstance(values, np.ndarray) else list(values))


def _as_numbers(values: Any) -> np.ndarray:
    """An array if all are plain numbers; otherwise unchanged."""
    plain = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return np.asarray(values) if plain else np.empty(0, dtype=object)


def _cells(series: Any) -> np.ndarray:
    if series.dtype.is_numeric() and not series.dtype.is_decimal() and not bool(series.is_null().any()):
        return series.to_numpy()
    gaps = series.is_null().to_list()  # some libraries have several kinds of null
    return _objects([None if gap else cell for cell, gap in zip(series.to_list(), gaps, strict=True)])


# ---- another file ---------------------------------------------------------------------------------------------------


def joined(table: Raw, other: Raw, join: Join) -> tuple[Raw, int]:
    """The table with the other one's columns added, and the number of its rows that were left out."""
    for name in other.columns.keys() & table.columns.keys() - {join.on}:
        raise InputError(f"{other.name}: has a column {name!r}, which {table.name} has as well")
    keys = [canonical(cell) for cell in other.column(join.on).tolist()]
    places = {key: i for i, key in enumerate(keys)}
    if len(places) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise InputError(f"{other.name}, column {join.on!r}: {twice[:40]!r} appears twice")
    found = np.array([places.get(canonical(cell), -1) for cell in table.column(join.on).tolist()])
    if (found < 0).any() and join.unmatched == "refuse":
        row = int((found < 0).argmax())
        shown = str(table.columns[join.on][row])[:40]
        raise InputError(f"{table.place(join.on, row)} holds {shown!r}, which {other.name} does not have")
    kept = table.take(np.flatnonzero(found >= 0))
    require(len(kept) > 0, f"{table.name}: {other.name} has none of its rows")
    more = {name: cells[found[found >= 0]] for name, cells in other.columns.items() if name != join.on}
    return replace(kept, columns=kept.columns | more), int((found < 0).sum())
