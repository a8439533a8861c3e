"""What a model says of the rows of a file, as columns. Torch is imported to judge predictions, not to make them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from proxfed.errors import require
from proxfed.fit.model_file import Model
from proxfed.report.columns import cell
from proxfed.tables.cells import is_missing, misfits
from proxfed.tables.column_kinds import Ignore, words_of
from proxfed.tables.raw import Raw, read_raw
from proxfed.tables.schema import Source
from proxfed.tables.table import Table


class Rows(NamedTuple):
    """The rows of a file, as far as the model's schema can read them."""

    table: Table
    numbers: list[int]
    """Of these rows in the file, from 1."""
    strange: dict[int, str]
    """By its number, why a row cannot be read: a word that the schema does not know, a number out of its range."""
    dropped: int
    """Rows that are left out of an evaluation, as such rows were left out of the fit."""
    unused: list[str]
    """Columns that the model has no use for."""


def read_rows(
    model: Model,
    path: str | Path,
    target: bool = False,
    names: list[str] | None = None,
    separator: str = ",",
    encoding: str = "utf-8",
) -> Rows:
    """The rows of a file as the model's schema reads them, in their order.

    target: with what is predicted, which must then be there.
    """
    schema = model.prepare.schema.at(files=str(path), separator=separator, encoding=encoding)
    source = Source(files=str(path), names=names, separator=schema.source.separator, encoding=schema.source.encoding)
    found = read_raw(Path(path).expanduser(), source)
    outcome = () if schema.target is None else schema.target.columns
    if target:
        lacks = next((name for name in outcome if name not in found.columns), None)
        require(lacks is None, f"{path}: has no column {lacks!r}, the target, so predictions cannot be evaluated")
    used = {*schema.inputs, *(outcome if target else ())}
    quiet = {name for name, column in schema.columns.items() if isinstance(column, Ignore)} | set(outcome)
    left_out = [name for name in found.columns if name not in used and name not in quiet]
    require(any(name in used for name in found.columns), f"{path}: has none of the model's columns, such as "
            f"{next(iter(schema.inputs))!r}")  # fmt: skip
    dropped = _without_value(model, found) if target else np.zeros(len(found), bool)
    require(not dropped.all(), f"{path}: no row has a value in all of {', '.join(model.drop)}")
    found = found.take(np.flatnonzero(~dropped))
    strange: dict[int, str] = {}
    for name, column in schema.inputs.items():
        if name in found.columns:
            where = partial(found.place, name)
            strange = misfits(column, found.columns[name], where, schema.table.missing) | strange
    require(len(strange) < len(found), next(iter(strange.values()), ""))
    fine = found.take(np.array([row for row in range(len(found)) if row not in strange], np.int64))
    kept = {name: cells for name, cells in fine.columns.items() if name in used}
    table = model.read(replace(fine, columns=kept), target, str(path))
    by_number = {int(found.rows[row]): said.removeprefix(f"{found.name}, ") for row, said in sorted(strange.items())}
    return Rows(table, fine.rows.tolist(), by_number, int(dropped.sum()), left_out)


def _without_value(model: Model, found: Raw) -> np.ndarray:
    """(N,) which rows lack a value that rows of the fit had to have."""
    schema = model.prepare.schema
    gaps = set(words_of(schema.table.missing))
    out = np.zeros(len(found), bool)
    for name in model.drop:
        if name in found.columns:
            own = schema.target if schema.target and name in schema.target.columns else schema.columns.get(name)
            words = gaps | set(words_of(getattr(own, "missing", [])))
            out |= np.array([is_missing(cell, words) for cell in found.columns[name].tolist()], bool)
    return out


def predictions(model: Model, rows: Rows, time: float | None = None) -> dict[str, list[Any]]:
    """By column: the number of the row, and what the model says of it; of survival, the risk until a time.

    Rows that cannot be read have no prediction, and a last column says why.
    """
    columns = _predicted(model, rows.table, rows.numbers, time)
    if not rows.strange:
        return columns
    numbers = [*rows.numbers, *rows.strange]
    order = np.argsort(numbers, kind="stable").tolist()
    padded = {
        name: [*values, *([None] * len(rows.strange) if name != "row" else rows.strange)]
        for name, values in columns.items()
    }
    padded["problem"] = [*([""] * len(rows.numbers)), *rows.strange.values()]
    return {name: [values[k] for k in order] for name, values in padded.items()}


def _predicted(model: Model, table: Table, numbers: list[int], time: float | None) -> dict[str, list[Any]]:
    s, name = model.scores(table), model.loss["name"]
    columns: dict[str, list[Any]] = {"row": numbers}
    require(time is None or name == "cox", f"time = {time}: a model with loss {name!r} has no risk until a time")
    if name == "cox":
        risk = {} if time is None else {f"risk until {time:g}": model.risk(table, time).tolist()}
        return columns | {"linear_predictor": s[:, 0].tolist(), "relative_hazard": np.exp(s[:, 0]).tolist()} | risk
    columns["prediction"] = model.predict(table).tolist()
    if name in ("logistic", "cross_entropy"):
        p = model.predict_proba(table)
        columns |= {f"probability of {c}": p[:, k].tolist() for k, c in enumerate(model.classes)}
    return columns


def written(columns: dict[str, list[Any]]) -> str:
    """As CSV."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(map(cell, columns))
    lines.writerows(map(cell, row) for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def evaluated(model: Model, table: Table) -> dict[str, list[float | None]]:
    """Every measure of these rows, with its interval."""
    from proxfed.fit.external import labels_of
    from proxfed.fit.judge import judge, plain
    from proxfed.problems.named_losses import find_loss

    judged = judge(find_loss(model.loss), model.scores(table), labels_of(model, table), [len(table)], ["these rows"])
    return plain(judged)["these rows"]
