"""From the messages of organisations to the parameters of a preparation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from proxfed.errors import require
from proxfed.tables.column_kinds import Boolean, Category, Date, Number
from proxfed.tables.disclosure import quantile, refine
from proxfed.tables.preparation import Parameters, Preparation
from proxfed.tables.schema import Schema
from proxfed.tables.sums import Histogram, Moments, Summary
from proxfed.tables.views import ends, views


def merge(schema: Schema, messages: Sequence[Summary]) -> Preparation:
    """The preparation that follows from these messages, in any order.

    `schema` is the tables' schema (`Tables.schema`).
    """
    require(len(messages) > 0, "there are no messages to merge")
    names = [message.organisation for message in messages]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    require(twice is None, f"two messages are of the organisation {twice!r}")
    for message in messages:
        agrees = message.schema_digest == schema.digest
        require(agrees, f"{message.organisation}: its message was made with another schema")
    messages = sorted(messages, key=lambda message: message.organisation)
    parameters: dict[str, Parameters] = {}
    modes: dict[str, str] = {}
    left_out: list[str] = []
    notes = [f"{m.organisation}: {m.withheld.get('', 'everything')}" for m in messages if m.rows is None]
    for name, column in schema.inputs.items():
        if isinstance(column, Category):
            if column.impute == "mode":
                modes[name] = _mode(name, column, messages, notes)
        elif isinstance(column, Boolean):
            parameters[name] = Parameters(impute=_proportion(name, messages) if column.impute == "mean" else None)
        else:
            for feature in views(name, column):
                if column.scale == "standard" and not any(feature in message.moments for message in messages):
                    left_out.append(feature)
                else:
                    parameters[feature] = _scaled(feature, column, messages)
    if schema.table.standardise_dummies:
        notes += _dummies(schema, messages, parameters)
    if left_out:
        few = f"no organisation sent enough to scale {_some(left_out)}"
        hint = "untold = 'drop' in [table] leaves out such features"
        require(schema.table.untold == "drop", f"{schema.table.name}: {few}; {hint}, kind = 'ignore' the column")
        notes.append(f"{few}: left out")
    notes += _what_follows(schema, parameters)
    return Preparation(schema, parameters, modes, tuple(sorted(names)), tuple(left_out), tuple(notes))


def _what_follows(schema: Schema, parameters: dict[str, Parameters]) -> list[str]:
    """Notes on features that cannot be imputed, and on constant ones."""
    given = {f: column for name, column in schema.inputs.items() for f in views(name, column) if f in parameters}
    gaps = [f for f, column in given.items() if column.impute != "refuse" and parameters[f].impute is None]
    constant = [f for f, one in parameters.items() if one.scale == 1.0 and one.centre]
    notes = [f"no organisation sent enough to impute {_some(gaps)}: a missing value is refused"] if gaps else []
    same = "the same in all rows that were summarised, so not scaled"
    return notes + ([f"{_some(constant)}: {same}"] if constant else [])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def pooled(moments: Iterable[Moments]) -> Moments:
    """The moments of all rows, from those of each part."""
    parts = list(moments)
    count = sum(part.count for part in parts)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    squares = math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
    return Moments(count=count, mean=mean, squares=squares)


def _scaled(feature: str, column: Number | Date, messages: Sequence[Summary]) -> Parameters:
    sent = [message.moments[feature] for message in messages if feature in message.moments]
    impute = None
    if column.impute == "median":
        assert isinstance(column, Number)
        impute = _median(column, [m.histograms[feature] for m in messages if feature in m.histograms])
    if not sent:
        return Parameters(impute=impute)
    whole = pooled(sent)
    if column.impute == "mean":
        impute = whole.mean
    if column.scale == "none":
        return Parameters(impute=impute)
    deviation = math.sqrt(whole.squares / whole.count)
    if deviation <= 1e-12 * abs(whole.mean):  # the same in all rows
        deviation = 1.0
    return Parameters(impute=impute, centre=whole.mean, scale=deviation)


def _median(column: Number, histograms: Sequence[Histogram]) -> float | None:
    if not histograms:
        return None
    fits = all(h.last and h.last[-1] == column.bins - 1 for h in histograms)
    require(fits, f"a histogram does not have the agreed {column.bins} bins")
    counts = sum(refine(h.last, h.counts, column.bins) for h in histograms)
    return quantile(np.asarray(counts), *ends(column))


def _proportion(name: str, messages: Sequence[Summary]) -> float | None:
    yes = rows = 0
    for message in messages:
        counts = message.counts.get(name, {})
        positive, negative = counts.get("yes"), counts.get("no")
        if positive is not None and negative is not None:
            yes, rows = yes + positive, rows + positive + negative
    return yes / rows if rows else None


def _dummies(schema: Schema, messages: Sequence[Summary], parameters: dict[str, Parameters]) -> list[str]:
    """Centres and scales of 0/1 features, from the counts in messages; a note on those that are not standardised."""
    kept = []
    for name, column in schema.inputs.items():
        told: list[tuple[str, str, str]] = []  # (feature, name of the counts, what is counted)
        if isinstance(column, Category):
            told += [(f"{name}={c}", name, c) for c in column.names if c != column.reference]
        elif isinstance(column, Boolean):
            told.append((name, name, "yes"))
        if column.indicator:
            told.append((f"{name} missing", f"{name} missing", "yes"))
        for feature, counts, what in told:
            q = _share(messages, counts, what)
            if q is None or not 0 < q < 1:
                kept.append(feature)
            else:
                impute = parameters.get(feature, Parameters()).impute
                parameters[feature] = Parameters(impute=impute, centre=q, scale=math.sqrt(q * (1 - q)))
    return [f"{_some(kept)}: no organisation sent counts that vary, so 0 or 1, not standardised"] if kept else []


def _share(messages: Sequence[Summary], name: str, what: str) -> float | None:
    """The fraction of rows with a known value, over the organisations that send counts."""
    there = rows = 0
    for message in messages:
        counts = message.counts.get(name, {})
        count, every = counts.get(what), [*counts.values()]
        if count is not None:
            known = [n for n in every if n is not None]
            there += count
            rows += sum(known) if len(known) == len(every) else message.rows or sum(known)
    return there / rows if rows else None


def _mode(name: str, column: Category, messages: Sequence[Summary], notes: list[str]) -> str:
    sums = {c: sum(message.counts.get(name, {}).get(c) or 0 for message in messages) for c in column.names}
    most = max(sums, key=lambda c: sums[c])  # ties: the first in the schema
    if not sums[most]:
        notes.append(f"{name}: no organisation sent which category most rows have, so a missing one becomes {most!r}")
    return most
