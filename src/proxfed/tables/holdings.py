"""Who holds what: rows, missing values and classes of each organisation, with small counts withheld."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from proxfed.tables.disclosure import suppress_small
from proxfed.tables.table import Table, Tables

Counts = dict[str, dict[str, int | None]]
"""Counts by subject and organisation; None: withheld."""


class Holdings(NamedTuple):
    """Withholds counts below `fewest`, and counts from which they would follow."""

    rows: dict[str, int | None]
    """By organisation."""
    missing: Counts
    """By column."""
    outcomes: Counts
    """By class, or by whether the event happened; none for numbers."""
    missing_by_outcome: dict[str, Counts]
    """By column with gaps, outcome and organisation. An organisation shows all or none of its counts for a column."""
    fewest: int
    """The smallest count that is shown."""

    def plain(self) -> dict[str, Any]:
        """In JSON; null: withheld."""
        return self._asdict()


def holdings(tables: Tables) -> Holdings:
    """The holdings of all tables, without held-out rows."""
    fewest = tables.schema.table.fewest
    rows = {table.organisation: len(table) if len(table) >= fewest else None for table in tables.tables}
    missing: Counts = {name: {} for name in tables.schema.inputs}
    outcomes: Counts = {}
    both: dict[str, Counts] = {}
    for table in tables.tables:
        enough = rows[table.organisation] is not None
        for name, values in table.columns.items():
            gaps = int(np.isnan(values).sum())
            cells = suppress_small({"missing": gaps, "there": len(table) - gaps}, fewest)
            missing[name][table.organisation] = cells["missing"] if enough else None
            if gaps:
                for outcome, count in _gaps_by_outcome(table, values, fewest if enough else len(table) + 1).items():
                    both.setdefault(name, {}).setdefault(outcome, {})[table.organisation] = count
        counted = _outcomes(table)
        for outcome, count in suppress_small(counted, fewest).items():
            outcomes.setdefault(outcome, {})[table.organisation] = count if enough else None
    return Holdings(rows, missing, outcomes, both, fewest)


def _gaps_by_outcome(table: Table, values: np.ndarray, fewest: int) -> dict[str, int | None]:
    """The number of rows of each outcome that lack a value; nothing for a table with any small count, since its margins
    are shown as well."""
    every, gaps = _outcomes(table), _outcomes(table.take(np.flatnonzero(np.isnan(values))))
    cells = [count for name in every for count in (gaps[name], every[name] - gaps[name])]
    small = any(0 < count < fewest for count in cells)
    return {name: None if small else count for name, count in gaps.items()}


def _outcomes(table: Table) -> dict[str, int]:
    target = table.schema.target
    if table.labels is None or target is None or target.kind == "number":
        return {}
    if table.events is not None:
        happened = int(table.events.sum())
        return {"censored": len(table.labels) - happened, "happened": happened}
    counts = np.bincount(table.labels, minlength=len(target.names)).tolist()
    return dict(zip(target.names, counts, strict=True))
