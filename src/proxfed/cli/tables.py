"""`proxfed data schema` and `proxfed data describe`: tables of organisations, before a fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from proxfed.cli.common import (
    DataOption,
    EncodingOption,
    Format,
    FormatOption,
    NamesOption,
    SeparatorOption,
    check_new_file,
    text_form,
)
from proxfed.errors import require
from proxfed.files import write
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say

if TYPE_CHECKING:
    from proxfed.tables import Holdings, Summary

# ---- schema --------------------------------------------------------------------------------------------------------


def schema(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Tables: CSV, Parquet or .npz, also compressed.")
    ],
    target: Annotated[str, typer.Option("--target", metavar="COLUMN", help="Column to predict.")] = "",
    time: Annotated[str, typer.Option("--time", metavar="COLUMN", help="For survival: the column of times.")] = "",
    event: Annotated[
        str,
        typer.Option("--event", metavar="COLUMN", help="For survival: the column of events (happened or not)."),
    ] = "",
    organisation: Annotated[
        str,
        typer.Option(
            "--organisation", metavar="COLUMN", help="Column of organisations; default: one organisation per file."
        ),
    ] = "",
    names: NamesOption = "",
    separator: SeparatorOption = ",",
    encoding: EncodingOption = "utf-8",
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.toml", help="File for the schema; default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing schema.")] = False,
) -> None:
    """Draft a schema from a first look at tables: kinds, categories, words for missing. Review and edit it.

    It leaves out words that fewer than five rows have, and smallest and largest values, so that it can be shared.

    Example: [bold]proxfed data schema clinics/*.csv --target outcome --out tables.toml[/bold]
    """
    from proxfed.tables import first_look

    require(bool(target) or bool(time), "name the target: --target COLUMN, or --time COLUMN and --event COLUMN")
    if to is not None:
        require(to.suffix == ".toml", f"--out {to}: the name of a schema must end in .toml")
        check_new_file(to, force)
    text = first_look(
        files,
        target,
        time,
        event,
        organisation,
        beside=Path() if to is None else to.parent,
        **text_form(names, separator, encoding),
    )
    if to is None:
        say(text.rstrip())
        return
    write(to, text)
    say(f"The schema is in {to}; look through it, then: proxfed data describe {to}")


# ---- describe ------------------------------------------------------------------------------------------------------


def describe(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Schema file.")],
    sent: Annotated[bool, typer.Option("--sent", help="List every number that an organisation would send.")] = False,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Check tables against their schema; show the holdings and preparation messages of each organisation.

    Counts below `fewest` are withheld, and so are counts from which they would follow.

    Example: [bold]proxfed data describe tables.toml --sent[/bold]
    """
    from proxfed.tables import holdings, merge, read_tables, summarise

    tables = read_tables(file, data)
    messages = [summarise(table) for table in tables.tables]
    held = holdings(tables)
    if format is Format.table:
        _print_holdings(held)
        _print_messages(messages, sent)
    preparation = merge(tables.schema, messages)
    if format is Format.json:
        sends = [
            {
                "organisation": m.organisation,
                "bytes": m.size,
                "numbers": m.numbers() if sent else len(m.numbers()),
                "withheld": m.withheld,
            }
            for m in messages
        ]
        features = [feature._asdict() for feature in preparation.features]
        found = {"notes": [*tables.notes, *preparation.notes], "features": features, "sends": sends}
        print(json.dumps(held.plain() | found, indent=1))
        return
    out.print()
    say(f"{len(preparation.features)} features are computed from {len(tables.schema.inputs)} columns.")
    for note in (*tables.notes, *preparation.notes):
        say(f"note: {note}")


def _print_holdings(held: Holdings) -> None:
    names = list(held.rows)
    if len(names) <= 8:
        table = plain_table("", *names)
        table.add_row("rows", *_cells(held.rows, names))
        for outcome, counts in held.outcomes.items():
            table.add_row(Text(outcome), *_cells(counts, names))
        some = {name: c for name, c in held.missing.items() if any(count != 0 for count in c.values())}
        for name, counts in some.items():
            table.add_row(Text(f"{name} missing"), *_cells(counts, names))
    else:
        table = plain_table("", "rows", *held.outcomes, "missing values")
        for name in names:
            gaps = [counts[name] for counts in held.missing.values()]
            total = None if None in gaps else sum(gap or 0 for gap in gaps)
            counts = {"rows": held.rows[name], **{o: c[name] for o, c in held.outcomes.items()}, "": total}
            table.add_row(Text(name), *_cells(counts, list(counts)))
    out.print(table)
    say(f"-: withheld, because the count is below {held.fewest}, or such a count would follow from it")


def _cells(counts: Mapping[str, int | None], names: Sequence[str]) -> list[str]:
    return ["-" if counts[name] is None else f"{counts[name]:,}" for name in names]


def _print_messages(messages: Sequence[Summary], every: bool) -> None:
    out.print()
    table = plain_table("sends once", "bytes", "numbers", "withheld")
    for m in messages:
        table.add_row(Text(m.organisation), f"{m.size:,}", f"{len(m.numbers()):,}", f"{len(m.withheld):,}")
    out.print(table)
    if every:
        for m in messages:
            say(f"\n{m.organisation} sends")
            for name, what, number in m.numbers():
                say(f"  {name + ': ' if name else ''}{what} {number:.10g}")
            for name, what in m.withheld.items():
                say(f"  {name + ': ' if name else ''}withheld: {what}")
