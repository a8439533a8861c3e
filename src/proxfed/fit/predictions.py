"""What a model says of the rows of a file, as columns. Torch is imported to judge predictions, not to make them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.errors import require
from proxfed.fit.model_file import Model
from proxfed.report.columns import cell
from proxfed.tables.column_kinds import Ignore
from proxfed.tables.raw import read_raw
from proxfed.tables.schema import Source
from proxfed.tables.table import Table


def read_rows(
    model: Model,
    path: str | Path,
    target: bool = False,
    names: list[str] | None = None,
    separator: str = ",",
    encoding: str = "utf-8",
) -> tuple[Table, list[str]]:
    """The rows of a file as the model's schema reads them, in their order, and the columns that it has no use for.

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
    kept = {name: cells for name, cells in found.columns.items() if name in used}
    require(len(kept) > 0, f"{path}: has none of the model's columns, such as {next(iter(schema.inputs))!r}")
    return model.read(kept, target, str(path)), left_out


def predictions(model: Model, table: Table, time: float | None = None) -> dict[str, list[Any]]:
    """By column: the number of the row, and what the model says of it; of survival, the risk until a time."""
    s, name = model.scores(table), model.loss["name"]
    columns: dict[str, list[Any]] = {"row": list(range(1, len(table) + 1))}
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
    from proxfed.fit.judge import judge, plain
    from proxfed.problems.named_losses import find_loss

    labels = table.labels
    assert labels is not None, "read_rows asks for them"
    if table.events is not None:
        labels = np.copysign(labels, table.events - 0.5)
    elif model.loss["name"] == "logistic":
        labels = 2.0 * labels - 1.0
    judged = judge(find_loss(model.loss), model.scores(table), labels, [len(table)], ["these rows"])
    return plain(judged)["these rows"]
