"""The result of a run, one entry per algorithm: the median over the seeds, each at its last recorded round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from proxfed.errors import finite
from proxfed.report.columns import (
    KNOWN,
    MEASURES,
    PROGRESS,
    UNDER_WAY,
    Column,
    Directions,
    Row,
    RunStatus,
    further_measures,
    number,
    show,
    with_total,
)
from proxfed.report.columns import column as column_of
from proxfed.report.targets import half_reached

if TYPE_CHECKING:
    from proxfed.harness.results import Results

REACHED = tuple(KNOWN[name] for name in ("rounds", "gradients", "bytes_total", "sim_seconds"))
"""The costs of reaching a target."""

NONE = "not tuned"
CHANGED = "but changed since"
"""The remark of a table about tuning."""


def result_table(results: Results, targets: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """One JSON-able entry per algorithm, in the order of the rows.

    A seed that diverged counts with its last row; a value that is missing or not finite counts as none. Where the
    number of clients is known there are gradients per client. With `targets` = {measure: values} an entry says under
    `reached` after how many rounds, gradients, bytes and simulated seconds half of the seeds got there (None: they did
    not), and whether the measure was `measured` at all. `tuning` is how much the algorithm's settings were tuned, and
    `spread` what the seeds differ by: {column: {min, max, mean, sd}}, where they do.
    """
    rows, status, clients = [with_total(row) for row in results.rows], results.status, results.clients
    columns = (*MEASURES, *further_measures(rows), *PROGRESS[1:])
    runs: dict[str, dict[Any, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: row["round"]):
        runs.setdefault(row["algorithm"], {}).setdefault(row["seed"], []).append(row)
    for state in status:
        runs.setdefault(state["algorithm"], {})
    tuning = {table.get("label"): effort(table) for table in results.settings.get("algorithms", ())}

    table = []
    for algorithm, seeds in runs.items():
        last = [history[-1] for history in seeds.values()]
        states = [state for state in status if state["algorithm"] == algorithm]
        entry = {
            "algorithm": algorithm,
            "status": verdict(states, last, max(len(states), len(results.seeds))),
            "diverged": sum(state["status"] == RunStatus.DIVERGED for state in states),
            "seeds": max(len(seeds), len(states)),
            "rounds": _median(last, "round"),
            **{column.name: _median(last, column.name) for column in columns},
        }
        if spread := {c.name: found for c in columns if c.kind != "seconds" and (found := _spread(last, c.name))}:
            entry["spread"] = spread
        if clients:
            entry |= per_client(entry, clients)
        if targets:
            goals = [(measure, target) for measure, values in targets.items() for target in values]
            entry["reached"] = [
                _reached(list(seeds.values()), measure, target, results.directions) for measure, target in goals
            ]
        if algorithm in tuning:
            entry["tuning"] = tuning[algorithm]
        table.append(entry)
    return table


def verdict(states: Sequence[Mapping[str, Any]], last: Sequence[Row], seeds: int) -> str:
    """The outcome of an algorithm's seeds in a few words; `last` are their last rows."""
    diverged = sorted(state["round"] for state in states if state["status"] == RunStatus.DIVERGED)
    under_way = [state for state in states if state["status"] in UNDER_WAY]
    if diverged and len(diverged) == seeds:
        first, final = diverged[0], diverged[-1]
        return f"diverged in round {first}" if first == final else f"diverged in rounds {first} to {final}"
    if diverged:
        return f"{len(diverged)} of {seeds} diverged, first in round {diverged[0]}"
    if under_way:
        rows = {row["seed"]: row["round"] for row in last}  # the status has the round of the start
        t, status = min((max(state["round"], rows.get(state["seed"], 0)), state["status"]) for state in under_way)
        return f"{status}, round {t}"
    if not states:
        return "unknown"
    early = sorted(state["round"] for state in states if state["status"] == RunStatus.EARLY)
    if early and len(early) == seeds:
        first, final = early[0], early[-1]
        return f"stopped early in round {first}" if first == final else f"stopped early in rounds {first} to {final}"
    if early and len(states) == seeds:
        return f"{len(early)} of {seeds} stopped early, first in round {early[0]}"
    return "finished" if len(states) == seeds else f"{len(states)} of {seeds} seeds finished"


def _median(rows: Iterable[Row], name: str) -> float | None:
    numbers = [value for row in rows if (value := number(row, name)) is not None]
    return median(numbers) if numbers else None


def _spread(rows: Iterable[Row], name: str) -> dict[str, float]:
    """The spread over several seeds; empty if they agree."""
    numbers = [value for row in rows if (value := number(row, name)) is not None]
    if len({*numbers}) < 2:
        return {}
    return {"min": min(numbers), "max": max(numbers), "mean": mean(numbers), "sd": stdev(numbers)}


def per_client(entry: Mapping[str, Any], clients: int) -> dict[str, float]:
    """The average work, sent and received bytes per client; bytes on an edge count at both ends."""
    out = {} if entry["gradients"] is None else {"gradients_per_client": entry["gradients"] / clients}
    for name, way in (("sent_per_client", "bytes_up"), ("received_per_client", "bytes_down")):
        counted = [entry[key] for key in (way, "bytes_edge") if entry.get(key) is not None]
        out |= {name: sum(counted) / clients} if counted else {}
    return out


STATS = ("median", "mean")


def with_spread(entry: Mapping[str, Any], column: Column, stat: str = "median") -> str:
    """A cell of a table: 'median [min, max]' or 'mean ± sd' over the seeds; only the number if they agree."""
    spread = entry.get("spread", {}).get(column.name)
    if spread is None:
        return show(entry.get(column.name), column.kind)
    middle, low, high, sd = (
        show(value, column.kind) for value in (entry[column.name], spread["min"], spread["max"], spread["sd"])
    )
    if stat == "mean":
        return f"{show(spread['mean'], column.kind)} ± {sd}"
    return middle if low == high else f"{middle} [{low}, {high}]"


def _reached(histories: Sequence[Sequence[Row]], measure: str, target: float, own: Directions) -> dict[str, Any]:
    def spent(column: str) -> float | None:
        found = half_reached(histories, measure, target, "round" if column == "rounds" else column, own=own)
        return found if finite(found) else None

    found = [[value for row in history if (value := number(row, measure)) is not None] for history in histories]
    best = max if column_of(measure, own).better == "higher" else min
    nearest = [best(values) for values in found if values]
    costs = {column.name: spent(column.name) for column in REACHED}
    near = median(nearest) if nearest else None
    return {"measure": measure, "target": target, "measured": bool(nearest), "nearest": near, **costs}


def goal_cells(goal: Mapping[str, Any], columns: Sequence[Column]) -> list[str]:
    """The costs of reaching a target, by column; if it was not reached, the first cell has the closest value."""
    if all(goal[c.name] is None for c in columns):
        return [missed(goal), *("-" for _ in columns[1:])]
    return [show(goal[c.name], c.kind) or "-" for c in columns]


def missed(goal: Mapping[str, Any]) -> str:
    """A table's text for a target that was not reached: the closest value."""
    return f"Did not reach ({show(goal['nearest'], 'number')})" if goal["measured"] else "Not measured"


def reached_columns(table: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Rounds, bytes, and seconds if time was simulated."""
    goals = [goal for entry in table for goal in entry.get("reached", ())]
    timed = any(goal["sim_seconds"] is not None for goal in goals)
    return [
        column
        for column in REACHED
        if column.name in ("rounds", "bytes_total") or (column.name == "sim_seconds" and timed)
    ]


# ---- tuning effort: a comparison is fair if it is the same for all --------------------------------------------------


def effort(algorithm: Mapping[str, Any]) -> str:
    """Of the table of an algorithm in a run's settings: '19 tried, 499 rounds', or 'not tuned'."""
    tuned = algorithm.get("tuned")
    if not isinstance(tuned, Mapping):
        return NONE
    words = f"{tuned.get('configurations', '?')} tried, {tuned.get('rounds', '?')} rounds"
    if not tuned.get("values"):
        return f"{words}, all diverged"
    same = all(_value(algorithm, key) == value for key, value in tuned["values"].items())
    return words if same else f"{words}, {CHANGED}"


def _value(algorithm: Any, key: str) -> Any:
    """The value of a dotted key."""
    for word in key.split("."):
        algorithm = algorithm.get(word) if isinstance(algorithm, Mapping) else None
    return algorithm


def fairness(table: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about the effort behind the lines of a comparison; empty if there is nothing to compare."""
    said = [entry["tuning"] for entry in table if "tuning" in entry]
    if len(said) < 2:
        return ""
    if {*said} == {NONE}:
        return (
            "No algorithm was tuned here: settings are as they were given (`proxfed tune` tunes all with equal effort)."
        )
    tried = {words if words.endswith(CHANGED) else words.partition(" tried")[0] for words in said}
    if len(tried) == 1:
        return "All algorithms were tuned with the same number of configurations."
    return "The algorithms were not tuned with the same effort: see the column tuning."


def tuning_column(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tuning effort of each algorithm; empty if none was tuned."""
    said = [entry.get("tuning", "") for entry in table]
    return said if {*said} - {"", NONE} else []


# ---- in the terminal ------------------------------------------------------------------------------------------------


def rich_results(table: Sequence[Mapping[str, Any]], width: int = 100) -> Group:
    """The results of each algorithm, and the costs of reaching the targets, if there are any."""
    results, targets = rich_table(table, width), rich_targets(table)
    return Group(results) if targets is None else Group(results, Text(), targets)


def rich_targets(table: Sequence[Mapping[str, Any]]) -> Table | None:
    """For the terminal: the costs of reaching the targets; None if there are none."""
    if not any(entry.get("reached") for entry in table):
        return None
    columns = reached_columns(table)
    drawn = plain_table()
    for heading in ("target", "algorithm", *(column.heading or column.name for column in columns)):
        drawn.add_column(heading, justify="left" if heading in ("target", "algorithm") else "right")
    for place in range(len(table[0]["reached"])):
        for entry in table:
            goal = entry["reached"][place]
            cells = goal_cells(goal, columns)
            drawn.add_row(*map(Text, [f"{goal['measure']} {goal['target']:g}", entry["algorithm"], *cells]))
    return drawn


class Shown(NamedTuple):
    """A column of the terminal; rank 0 always stays, then the largest rank goes first."""

    rank: int
    heading: str
    cells: list[str]

    def width(self) -> int:
        widest = max(map(len, [self.heading, *self.cells]))
        return min(widest, 24) if self.rank == 0 else widest  # rank 0 is text, which may wrap


def rich_table(table: Sequence[Mapping[str, Any]], width: int = 100) -> Table:
    """The result for the terminal, without empty columns and, until it fits, without the least important ones."""
    return fitted(_terminal_columns(table), width)


def fitted(columns: Sequence[Shown], width: int) -> Table:
    """These columns without the empty ones, and without the least important ones until they fit."""
    shown = [column for column in columns if any(column.cells)]
    while sum(column.width() + 2 for column in shown) - 2 > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    drawn = plain_table()
    for column in shown:
        drawn.add_column(column.heading, justify="right" if column.rank else "left", no_wrap=column.rank > 0)
    for line in zip(*(column.cells for column in shown), strict=True):
        drawn.add_row(*map(Text, line))
    return drawn


TERMINAL = ("rounds", "objective", "gap", "error", "stationarity", "consensus", "nonzeros", "accuracy")
SPENT = (
    "bytes_total",
    "bytes_up",
    "bytes_down",
    "bytes_edge",
    "bytes_best",
    "sent_per_client",
    "received_per_client",
    "gradients_per_client",
    "sim_seconds",
)


def _terminal_columns(table: Sequence[Mapping[str, Any]]) -> list[Shown]:
    def shown(column: Column) -> Shown:
        cells = [with_spread(entry, column) for entry in table]
        filled = any(entry.get(column.name) for entry in table)
        return Shown(column.rank, column.heading or column.name, cells if filled else [])

    statuses = [entry["status"] for entry in table]
    return [
        Shown(0, "algorithm", [entry["algorithm"] for entry in table]),
        *(Shown(0, name, cells) for name, cells in swept_columns(table).items()),
        Shown(0, "status", [] if set(statuses) == {"finished"} else statuses),
        Shown(0, "tuning", tuning_column(table)),
        *(shown(KNOWN[name]) for name in TERMINAL),
        *(shown(replace(column, heading=column.label)) for column in own_columns(table)),
        *(shown(KNOWN[name]) for name in (*SPENT, "wall_seconds", "seeds")),
    ]


def swept_columns(table: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings in which the lines of a sweep differ, as text."""
    names = dict.fromkeys(name for entry in table for name in entry.get("swept", ()))
    return {name: [_word(entry.get(name)) for entry in table] for name in names}


def _word(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def own_columns(table: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The problem's own measures in a table of results."""
    others = {"status", "diverged", "reached", "spread", "swept", *swept_columns(table)}
    return [c for c in further_measures(table) if c.name not in others]


def plain_table(*headings: str, title: str | None = None) -> Table:
    """A table without lines between columns; text under `headings` is folded if it is too wide."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
