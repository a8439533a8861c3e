"""What the columns of rows.csv are called and how their numbers are written, in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from proxfed.errors import finite
from proxfed.harness.run_folder import Row
from proxfed.report.targets import axis_value


class Column(NamedTuple):
    """`kind` decides how a number is written: number (4 digits), fine (6 digits), count, bytes or seconds."""

    name: str
    label: str
    kind: str


IDENTITY = ("run", "algorithm", "seed")

PROGRESS = (
    Column("round", "rounds", "count"),
    Column("gradients", "gradients", "count"),
    Column("proxes", "prox steps", "count"),
    Column("bytes_total", "bytes, total", "bytes"),
    Column("bytes_up", "bytes up", "bytes"),
    Column("bytes_down", "bytes down", "bytes"),
    Column("bytes_edge", "bytes over edges", "bytes"),
    Column("bytes_best", "bytes, best encoding", "bytes"),
    Column("sim_seconds", "simulated seconds", "seconds"),
    Column("wall_seconds", "wall seconds", "seconds"),
)

MEASURES = (
    Column("objective", "objective", "fine"),
    Column("gap", "gap", "number"),
    Column("error", "error", "number"),
    Column("stationarity", "stationarity", "number"),
    Column("consensus", "consensus", "number"),
    Column("nonzeros", "nonzeros", "count"),
    Column("accuracy", "accuracy", "number"),
)

LOGARITHMIC = ("gap", "error", "stationarity", "consensus")
"""Measures that go to zero: a linear axis would hide all but their first rounds."""


def with_total(row: Row) -> dict[str, Any]:
    """The row with `bytes_total`: what crossed the network in any direction, None if nothing was counted."""
    return {**row, "bytes_total": axis_value(row, "bytes")}


def further_measures(rows: Iterable[Row]) -> list[Column]:
    """The problem's own measures: columns that we do not know, under their name."""
    known = {column.name for column in (*PROGRESS, *MEASURES)} | set(IDENTITY)
    names = dict.fromkeys(chain.from_iterable(rows))
    return [Column(name, name.replace("_", " "), "number") for name in names if name not in known]


def worth_showing(rows: Sequence[Row]) -> tuple[list[Column], list[Column]]:
    """(progress, measures): all but empty columns, work that is always zero, and bytes that only repeat the total."""

    def spent(name: str) -> bool:
        return any(finite(row.get(name)) and row[name] != 0 for row in rows)

    def repeats(name: str) -> bool:
        parts = ("bytes_up", "bytes_down", "bytes_edge", "bytes_best")
        return name in parts and all(row.get(name) == row["bytes_total"] for row in rows)

    progress = [c for c in PROGRESS if c.name == "round" or (spent(c.name) and not repeats(c.name))]
    measures = [c for c in (*MEASURES, *further_measures(rows)) if any(finite(row.get(c.name)) for row in rows)]
    return progress, measures


def show(value: Any, kind: str, digits: int = 3) -> str:
    """A number in few characters: 1.2e-10, 12.3 MB (of so many digits), 4.5 s; empty if there is none."""
    if value is None:
        return ""
    if kind == "bytes":
        return _scaled(value, (" B", " kB", " MB", " GB", " TB"), digits)
    if kind == "count":
        return f"{value:,.0f}" if abs(value) < 1e6 else _scaled(value, ("", "k", "M", "G", "T"), digits)
    if kind == "seconds":
        unit, name = (1, "s") if value < 120 else (60, "min") if value < 7200 else (3600, "h")
        return f"{value / unit:.3g} {name}"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.6g}" if kind == "fine" else f"{value:.4g}"


def _scaled(value: float, units: tuple[str, ...], digits: int) -> str:
    """So many digits and a decimal prefix; rounding first, so that 999,999 becomes 1 M and not 1000 k."""
    value = float(f"{value:.{digits}g}")
    power = 0
    while abs(value) >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.{max(digits, 4)}g}{units[power]}"
