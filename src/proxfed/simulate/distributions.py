"""Times and speeds: a constant, a distribution or a measured trace, for many clients at once.

An amount is a function of (seed, client, round), so it is reproducible anywhere. A trace is played in a loop, one line
per round, from an offset that each client draws once.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.errors import InputError, nearest, non_negative, positive, real, require
from proxfed.files import LARGEST_ROWS, read
from proxfed.keyed_random import Key, keys, normals, uniforms
from proxfed.registry import Registry, Table, build, describe


@dataclass(frozen=True)
class Constant:
    """A constant.

    value   the amount
    """

    value: float

    def __post_init__(self) -> None:
        non_negative(self, "value")

    @property
    def never_zero(self) -> bool:
        """Whether every value is above 0, as a bandwidth must be."""
        return self.value > 0


@dataclass(frozen=True)
class LogNormalDistribution:
    """median * exp(sigma z) with z normal: most values near the median, some much larger.

    median   half of the values are below
    sigma    spread of the logarithm: 0.5 puts 1 in 20 above 2.3 medians
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        positive(self, "median")
        non_negative(self, "sigma")

    @property
    def never_zero(self) -> bool:
        """Whether every value is above 0, as a bandwidth must be."""
        return True

    @staticmethod
    def draw(key: Key, median: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """One value per key."""
        return median * np.exp(sigma * normals(key, 1)[:, 0])


@dataclass(frozen=True)
class UniformDistribution:
    """Uniform between two ends.

    low    the smallest value
    high   the largest value
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        non_negative(self, "low", "high")
        require(self.low <= self.high, f"UniformDistribution: low = {self.low!r} must be <= high = {self.high!r}")

    @property
    def never_zero(self) -> bool:
        """Whether every value is above 0, as a bandwidth must be."""
        return self.low > 0

    @staticmethod
    def draw(key: Key, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """One value per key."""
        return low + (high - low) * uniforms(key, 1)[:, 0]


@dataclass(frozen=True)
class ExponentialDistribution:
    """A shifted exponential distribution.

    shift   the smallest value
    mean    of the exponential part
    """

    shift: float
    mean: float

    def __post_init__(self) -> None:
        non_negative(self, "shift", "mean")

    @property
    def never_zero(self) -> bool:
        """Whether every value is above 0, as a bandwidth must be."""
        return self.shift > 0

    @staticmethod
    def draw(key: Key, shift: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """One value per key."""
        return shift - mean * np.log1p(-uniforms(key, 1)[:, 0])


@dataclass(frozen=True)
class Trace:
    """Measured values from a CSV file with a header.

    file     its path
    column   the column of the values; by default named like the key that the trace is given for
    device   the lines to use, if the file has a column `device`
    sha256   of the file, written into config.toml: a file that has changed since is refused
    """

    file: str
    column: str
    device: str | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        require(self.sha256 in (None, self.digest), f"Trace: file = {self.file!r} has changed since the run")
        require(len(self.values) > 0, f"Trace: file = {self.file!r} has no lines below its header")

    @cached_property
    def _text(self) -> bytes:
        try:
            return read(Path(self.file).expanduser(), LARGEST_ROWS)
        except OSError as e:
            raise InputError(f"Trace: cannot read file = {self.file!r}: {e.strerror}") from e

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self._text).hexdigest()

    @cached_property
    def values(self) -> np.ndarray:
        """The numbers in its column, for its device."""
        lines = csv.DictReader(self._text.decode("utf-8-sig", errors="replace").splitlines())
        columns = [name.strip() for name in lines.fieldnames or ()]
        lines.fieldnames = columns
        missing = self.column not in columns
        require(not missing, f"Trace: {self.file} has no column {self.column!r}; {nearest(self.column, columns)}")
        rows = [(lines.line_num, row) for row in lines]
        if "device" in columns or self.device is not None:
            require("device" in columns, f"Trace: {self.file} has no column 'device', but device = {self.device!r}")
            devices = [str(row["device"]).strip() for _, row in rows]
            known = dict.fromkeys(devices)
            allowed = nearest(self.device or "", known)
            require(self.device in known, f"Trace: {self.file} has no lines of device = {self.device!r}; {allowed}")
            rows = [row for row, device in zip(rows, devices, strict=True) if device == self.device]
        return np.array([self._number(row[self.column], line) for line, row in rows])

    def _number(self, cell: str, line: int) -> float:
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = np.nan
        good = np.isfinite(value) and value >= 0
        require(bool(good), f"Trace: {self.file}, line {line}: {self.column} = {cell!r} must be a number >= 0")
        return value

    @property
    def never_zero(self) -> bool:
        """Whether every value is above 0, as a bandwidth must be."""
        return bool(self.values.min() > 0)


Amount = Constant | LogNormalDistribution | UniformDistribution | ExponentialDistribution | Trace

AMOUNTS: Registry[type] = Registry(
    "distributions",
    {
        "constant": Constant,
        "lognormal": LogNormalDistribution,
        "uniform": UniformDistribution,
        "exponential": ExponentialDistribution,
        "trace": Trace,
    },
)


def amount(value: Any, where: str, column: str) -> Amount:
    """An amount from a bare number or a table with a name."""
    if real(value):
        value = {"name": "constant", "value": float(value)}
    if isinstance(value, dict) and value.get("name") == "trace":
        value = {"column": column} | value
    try:
        return build(AMOUNTS, value, where)
    except InputError as e:
        said = str(e)
        raise InputError(said if said.startswith(where) else f"{where}: {said}") from e


def table_of(a: Amount) -> Table | float:
    """The inverse of `amount`: a bare number or a table."""
    if isinstance(a, Constant):
        return a.value
    return describe(a, AMOUNTS) | ({"sha256": a.digest} if isinstance(a, Trace) else {})


class Amounts:
    """An amount for each of many clients (or edges), drawn for any of them at once."""

    def __init__(
        self, amounts: Sequence[Amount], ids: np.ndarray, purpose: str, which: np.ndarray | None = None
    ) -> None:
        """`which`: the amount of each id, (c,); None: one amount per id, in this order."""
        self.ids, self.purpose = ids, purpose
        self.which = np.arange(len(amounts)) if which is None else which
        kinds = [type(a) for a in amounts]
        self.drawn: list[tuple[Any, np.ndarray, list[np.ndarray]]] = []
        for kind in (LogNormalDistribution, UniformDistribution, ExponentialDistribution):
            if kind in kinds:
                place = np.full(len(amounts), -1)  # the position of each amount among those of its kind
                at = [k for k, a in enumerate(kinds) if a is kind]
                place[at] = np.arange(len(at))
                fields = [np.array(column) for column in zip(*(astuple(amounts[k]) for k in at), strict=True)]
                self.drawn.append((kind, place, fields))
        self.fixed = np.array([a.value if isinstance(a, Constant) else 0.0 for a in amounts])
        self.traces = _Traces(amounts) if Trace in kinds else None

    def __call__(self, seed: int, t: int, some: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(c,) amounts in round t, or those of the ids at some positions."""
        ids, which = self.ids[some], self.which[some]
        out: np.ndarray = self.fixed[which]
        for kind, place, fields in self.drawn:
            at = np.flatnonzero(place[which] >= 0)
            own = place[which[at]]
            out[at] = kind.draw(keys(seed, self.purpose, ids[at], t), *(column[own] for column in fields))
        if self.traces is not None:
            self.traces(out, seed, t, ids, which)
        return out


class _Traces:
    """The traces among some amounts: all values in one array, with the start of each trace."""

    def __init__(self, amounts: Sequence[Amount]) -> None:
        values = [a.values if isinstance(a, Trace) else np.empty(0) for a in amounts]
        self.length = np.array([len(v) for v in values])
        self.start = np.cumsum(self.length) - self.length
        self.values = np.concatenate(values)

    def __call__(self, out: np.ndarray, seed: int, t: int, ids: np.ndarray, which: np.ndarray) -> None:
        at = np.flatnonzero(self.length[which])
        start, length = self.start[which[at]], self.length[which[at]]
        # The same offset for all traces of a client: columns of one file stay side by side.
        offset = uniforms(keys(seed, "trace offset", ids[at], 0), 1)[:, 0]
        out[at] = self.values[start + ((offset * length).astype(np.int64) + t) % length]
