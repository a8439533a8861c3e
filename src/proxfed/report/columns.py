"""The only table of columns: the name of each number of a run, its format, and which values are better.

rows.csv has the columns of `ROW`, then the study's additional columns and the problem's own measures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any

from proxfed.errors import InputError

if TYPE_CHECKING:
    from proxfed.types import Better

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table, or one axis of a plot."""

    name: str
    label: str
    """Its name in the head of a table."""
    kind: str
    """Its format: text, count, number (4 digits), fine (6 digits), bytes or seconds."""
    words: str = ""
    """Its name at an axis; the label if empty."""
    log: bool = False
    """It goes to zero: a linear axis would hide all but the first rounds."""
    better: Better = ""
    """'lower', 'higher', or '' if neither is simply better."""
    heading: str = ""
    """Its name in the terminal; the name of the column if empty."""
    rank: int = 9
    """A narrow terminal leaves out the columns of the highest rank first."""


KNOWN = {
    column.name: column
    for column in (
        Column("run", "run", "text"),
        Column("algorithm", "algorithm", "text", rank=0),
        Column("seed", "seed", "count"),
        Column("round", "rounds", "count", "round", better="lower"),
        Column("gradients", "gradients", "count", better="lower"),
        Column("proxes", "prox steps", "count", better="lower"),
        Column("bytes_total", "bytes, total", "bytes", "communicated", better="lower", heading="bytes", rank=1),
        Column("bytes_up", "bytes up", "bytes", "sent to the server", better="lower", heading="up", rank=7),
        Column("bytes_down", "bytes down", "bytes", "sent by the server", better="lower", heading="down", rank=7),
        Column("bytes_edge", "bytes over edges", "bytes", "sent over edges", better="lower", heading="edges", rank=7),
        Column(
            "bytes_best",
            "bytes, best encoding",
            "bytes",
            "communicated, best encoding",
            better="lower",
            heading="best",
            rank=8,
        ),
        Column(
            "wire_bytes", "bytes on the wire", "bytes", "sent between sites", better="lower", heading="wire", rank=8
        ),
        Column("absent", "absences", "count", "sites that missed a round", better="lower", rank=8),
        Column("epsilon", "epsilon", "number", "of differential privacy, spent so far", better="lower", rank=3),
        Column("wall_seconds", "wall seconds", "seconds", better="lower", heading="time", rank=3),
        Column("sim_seconds", "simulated seconds", "seconds", better="lower", heading="simulated", rank=4),
        Column("objective", "objective", "fine", better="lower", rank=2),
        Column("gap", "gap", "number", "objective above its minimum", True, "lower", rank=1),
        Column("error", "error", "number", "relative distance to the solution", True, "lower", rank=3),
        Column("stationarity", "stationarity", "number", "squared norm of the prox-gradient", True, "lower", rank=4),
        Column("consensus", "consensus", "number", "squared distance from consensus", True, "lower", rank=6),
        Column("nonzeros", "nonzeros", "count", "non-zeros of the model", rank=2),
        Column("accuracy", "accuracy", "number", "accuracy on held-out data", better="higher", rank=1),
        # of a result, or of an axis: computed from columns
        Column("rounds", "rounds", "count", better="lower", rank=1),
        Column("steps", "gradients per client", "count", better="lower"),
        Column("bytes", "bytes, total", "bytes", "communicated", better="lower"),
        Column("gradients_per_client", "gradients per client", "count", better="lower", heading="grads/client", rank=5),
        Column("sent_per_client", "bytes a client sends", "bytes", better="lower", heading="sent/client", rank=5),
        Column(
            "received_per_client", "bytes a client receives", "bytes", better="lower", heading="received/client", rank=6
        ),
        Column("seeds", "seeds", "count", rank=5),
        Column("tuning", "tuning", "text", rank=0),
    )
}

ROW = (
    "run",
    "algorithm",
    "seed",
    "round",
    "gradients",
    "proxes",
    "bytes_up",
    "bytes_down",
    "bytes_edge",
    "bytes_best",
    "wall_seconds",
    "sim_seconds",
    "objective",
    "gap",
    "error",
    "stationarity",
    "consensus",
    "nonzeros",
)
"""The fixed columns of rows.csv, in their order."""


class RunStatus(StrEnum):
    """The status of an algorithm with one seed."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"  # marked as running, but no process works on it
    STOPPED = "stopped"  # by Ctrl-C or a signal, with a checkpoint
    ASIDE = "aside"  # with a checkpoint, by a search that may return to it
    FINISHED = "finished"
    EARLY = "early"  # a hook stopped it before its last round, and the message says why
    DIVERGED = "diverged"


DONE = (RunStatus.FINISHED, RunStatus.EARLY, RunStatus.DIVERGED)
UNDER_WAY = tuple(status for status in RunStatus if status not in DONE)

MEASURED = ROW[ROW.index("objective") :]
"""The measures of every problem; the other columns are the run's progress and costs."""

COMPUTED = ("steps", "bytes")
"""Axes that are not columns."""

PROGRESS = tuple(
    KNOWN[name]
    for name in (
        "round",
        "gradients",
        "proxes",
        "bytes_total",
        "bytes_up",
        "bytes_down",
        "bytes_edge",
        "bytes_best",
        "wire_bytes",
        "absent",
        "epsilon",
        "sim_seconds",
        "wall_seconds",
    )
)
"""The costs of a run."""

MEASURES = tuple(KNOWN[name] for name in (*MEASURED, "accuracy"))
"""The measures that evaluate a run."""

FAMILIES: dict[str, Better] = {
    "accuracy": "higher",
    "worst": "higher",
    "average": "higher",
    "train_accuracy": "higher",
    "test_loss": "lower",
    "train_loss": "lower",
    "objective": "lower",
    "stationarity": "lower",
    "consensus": "lower",
    "estimation": "lower",
    "approximate": "lower",
    "epsilon": "lower",
    "size": "",
    "largest": "",
    "mean": "",
}
"""Measures of our own losses, and of sites (accuracy_lyon) and of the clients' states (worst_x), which `_` joins."""

Directions = Mapping[str, "Better"]
"""Which values are better, for measures of a custom f. A run's settings keep it under `better`."""

NONE: Directions = {}


def column(name: str, own: Directions = NONE) -> Column:
    """The column of any name, with f's directions for its own measures."""
    found = KNOWN.get(name)
    if found is None:
        family = next((kind for kind in FAMILIES if name == kind or name.startswith(f"{kind}_")), "")
        found = Column(name, name.replace("_", " "), "number", better=FAMILIES.get(family, ""))
    return replace(found, better=own[name]) if name in own else found


def direction(name: str, own: Directions = NONE, where: str = "measure") -> Better:
    """'lower' or 'higher'; a measure without a direction is refused."""
    if found := column(name, own).better:
        return found
    how = f"where f has its measures, write Measure({name!r}, 'higher') or Measure({name!r}, 'lower')"
    raise InputError(f"{where} = {name!r}: it is not known whether lower or higher values are better; {how}")


def better(way: Better, a: float, b: float) -> bool:
    """Is a at least as good as b?"""
    return a >= b if way == "higher" else a <= b


def agreed(several: Iterable[Directions]) -> Directions:
    """The directions of several runs; if two contradict each other, neither lower nor higher is better."""
    found: dict[str, Better] = {}
    for own in several:
        found |= {name: way if found.get(name, way) == way else "" for name, way in own.items()}
    return found


# ---- cells of rows.csv ----------------------------------------------------------------------------------------------


FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""The beginning of a text that a spreadsheet would evaluate as a formula."""


def cell(value: Any) -> str:
    """A value as text for a CSV file: floats to the last bit, empty for None, and text that is never a formula."""
    if isinstance(value, str):
        return f"'{value}" if FORMULA.match(value) else value
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def parse(name: str, text: str) -> Any:
    """The value of a cell."""
    kind = KNOWN[name].kind if name in KNOWN else "number"
    if kind == "text":
        return text[1:] if text.startswith("'") and FORMULA.match(text) else text
    if text == "":
        return None
    return int(text) if kind in ("count", "bytes") else float(text)


# ---- display on a page or in a terminal -----------------------------------------------------------------------------


def axis_value(row: Row, axis: str, clients: int | None = None) -> float | None:
    """A row's position on an axis: 'steps' are gradients per client, 'bytes' are all on the network, else a column."""
    if axis == "steps":
        return None if clients is None or row.get("gradients") is None else row["gradients"] / clients
    if axis == "bytes":
        counted = [row[name] for name in ("bytes_up", "bytes_down", "bytes_edge") if row.get(name) is not None]
        return sum(counted) if counted else None
    return row.get(axis)


def number(row: Row, name: str) -> float | None:
    """The value of a column of the row, if it is a finite number."""
    value = row.get(name)
    return value if isinstance(value, (int, float)) and isfinite(value) else None


def with_total(row: Row) -> dict[str, Any]:
    """The row with `bytes_total`: all bytes on the network, None if they were not counted."""
    return {**row, "bytes_total": axis_value(row, "bytes")}


def further_measures(rows: Iterable[Row]) -> list[Column]:
    """The problem's own measures: the columns that are not in the table above, by name."""
    return [column(name) for name in dict.fromkeys(chain.from_iterable(rows)) if name not in KNOWN]


def worth_showing(rows: Sequence[Row], own: Directions = NONE) -> tuple[list[Column], list[Column]]:
    """(progress, measures) without empty columns, work that is always zero, and bytes that only repeat the total."""

    def spent(name: str) -> bool:
        return any(number(row, name) for row in rows)

    def repeats(name: str) -> bool:
        parts = ("bytes_up", "bytes_down", "bytes_edge", "bytes_best")
        return name in parts and all(row.get(name) == row["bytes_total"] for row in rows)

    progress = [c for c in PROGRESS if c.name == "round" or (spent(c.name) and not repeats(c.name))]
    measures = [c for c in (*MEASURES, *further_measures(rows)) if any(number(row, c.name) is not None for row in rows)]
    return progress, [column(c.name, own) for c in measures]


def show(value: Any, kind: str, digits: int = 3) -> str:
    """A number in few characters: 1.2e-10, 12.3 MB (with so many digits), 4.5 s; empty for None."""
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
    """With so many digits and a decimal prefix; rounds first, so that 999,999 becomes 1 M and not 1000 k."""
    value = float(f"{value:.{digits}g}")
    power = 0
    while abs(value) >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.{max(digits, 4)}g}{units[power]}"
