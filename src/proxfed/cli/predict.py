"""`proxfed predict`: a model's predictions for the rows of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from proxfed.cli.common import (
    EncodingOption,
    Format,
    FormatOption,
    NamesOption,
    SeparatorOption,
    check_new_file,
    text_form,
)
from proxfed.files import write
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say, visible


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.json or its folder.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Table: CSV, Parquet or .npz, also compressed.")],
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="File for the predictions; default: print them.")
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Evaluate the predictions; the file must have the target.")
    ] = False,
    time: Annotated[
        float | None, typer.Option("--time", min=0, help="Survival only: also the risk of an event until this time.")
    ] = None,
    names: NamesOption = "",
    separator: SeparatorOption = ",",
    encoding: EncodingOption = "utf-8",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Predict the rows of a file, prepared like the model's own tables; columns may be in any order.

    Writes classes with probabilities, numbers, or for survival the linear predictor, the hazard relative to score 0
    and, with --time, the risk until then. The first column is the row number in the file. Columns that the model does
    not use are left out. A row with a word that is not in the schema, or a number outside its range, has no prediction,
    and the last column gives the reason. With --evaluate, rows without a value that the fit needs (`drop` of the
    schema) are left out.

    Example: [bold]proxfed predict runs/model west.csv --out predicted.csv[/bold]
    """
    from proxfed.fit.model_file import read_model
    from proxfed.fit.predictions import evaluated, predictions, read_rows, written

    if to is not None:
        check_new_file(to, force)
    known = read_model(model)
    rows = read_rows(known, file, evaluate, **text_form(names, separator, encoding))
    table = rows.table
    if rows.unused:
        say(f"note: the model does not use {', '.join(rows.unused)}", err)
    if rows.dropped:
        say(f"note: {rows.dropped:,} rows have no value in {' or '.join(known.drop)} and are left out", err)
    if rows.strange:
        first = next(iter(rows.strange.values()))
        say(f"note: {len(rows.strange):,} rows have no prediction, the first because {first}", err)
    columns = predictions(known, rows, time)
    if to is not None:
        write(to, written(columns))
        say(f"{len(table):,} predictions are in {to}", err if format is Format.json else out)
    found: dict[str, Any] = evaluated(known, table) if evaluate else {}
    if format is Format.json:
        lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        print(
            json.dumps(
                {**({"rows": lines} if to is None else {}), **({"measures": found} if evaluate else {})}, indent=1
            )
        )
        return
    if to is None:
        text = written(columns)
        print(visible(text) if sys.stdout.isatty() else text, end="")
    if evaluate:
        shown = plain_table("measure", "", "interval")
        for name, (value, low, high) in found.items():
            cells = ["-" if value is None else f"{value:.4f}", "" if low is None else f"{low:.4f} to {high:.4f}"]
            shown.add_row(name.replace("_", " "), *cells)
        (out if to is not None else err).print(shown)
