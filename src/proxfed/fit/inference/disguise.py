"""Features that are an organisation in disguise: constant at one of them, in a way that chance does not explain.

If one hospital never measures cholesterol, an indicator of missing cholesterol says above all: a patient of that
hospital. Its coefficient is then what is different about the hospital.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from proxfed.tables.design import Design

MOST = 10
"""Features that are named at most."""
CHANCE = 1e-3
"""How likely a constant would be, if the organisation's rows were like the others'."""


def disguised(made: Design) -> dict[str, list[str]]:
    """By feature: the organisations at which it is constant, although it varies elsewhere.

    An organisation says of each feature whether it is constant among at least `fewest` rows; of others it says the
    mean. A feature of zeros and ones is constant by chance with the probability that the others' mean gives.
    """
    fewest = made.tables.schema.table.fewest
    tables = [table for table in made.tables.tables if len(table) >= fewest]
    found: dict[str, list[str]] = {}
    if len(tables) < 2:
        return found
    rows = [made.preparation.apply(table, scaled=False) for table in tables]
    low, high = (np.array([f(part, 0) for part in rows]) for f in (np.min, np.max))
    means, sizes = np.array([part.mean(0) for part in rows]), np.array([len(part) for part in rows])
    constant = low == high
    for j, name in enumerate(made.preparation.names):
        binary = bool((low[:, j] >= 0).all() and (high[:, j] <= 1).all()) and set(np.unique(low[:, j])) <= {0.0, 1.0}
        for i in np.flatnonzero(constant[:, j]):
            others = np.delete(np.arange(len(rows)), i)
            if (constant[others, j] & (low[others, j] == low[i, j])).all():
                continue
            mean = float(np.average(means[others, j], weights=sizes[others]))
            rate = mean if low[i, j] == 1 else 1 - mean
            if not binary or rate ** sizes[i] < CHANCE:
                found.setdefault(name, []).append(tables[i].organisation)
    return found


class Disguise(NamedTuple):
    """A feature that may stand for organisations."""

    feature: str
    missing: bool
    """Its column is missing there; otherwise, it is the same in all rows."""
    organisations: tuple[str, ...]


def disguises(made: Design) -> list[Disguise]:
    """Those of tables that lie here."""
    column = {feature.name: feature.column for feature in made.preparation.features}
    gaps = {
        (name, table.organisation): bool(np.isnan(values).all())
        for table in made.tables.tables
        for name, values in table.columns.items()
    }
    return [
        Disguise(name, name == column[name] and all(gaps[name, each] for each in where), tuple(where))
        for name, where in disguised(made).items()
    ]


def warnings(found: Sequence[Disguise], site_intercepts: bool) -> list[str]:
    """A sentence for each."""
    advice = "" if site_intercepts else ": its coefficient may be that of the organisation (try site intercepts)"
    lines = []
    for name, missing, where in found:
        what = "missing" if missing else "the same"
        lines.append(f"{name!r} is {what} in all rows of {', '.join(where)}, but not elsewhere{advice}")
    more = len(lines) - MOST
    return lines if more <= 0 else [*lines[:MOST], f"and {more:,} more features are the same in all rows of one"]
