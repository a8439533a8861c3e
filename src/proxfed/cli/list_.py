"""`proxfed list`: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out


def list_(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="algorithms, regularisers, compressors, topologies, ...; else all")
    ] = "",
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One of them, with what each setting means.")] = "",
    format: FormatOption = Format.table,
) -> None:
    """What there is to choose from, with the settings of each; plug-ins of installed packages, too.

    Examples: [bold]proxfed list compressors[/bold], [bold]proxfed list algorithms depositum[/bold]
    """
    from proxfed.harness.catalogue import catalogue

    if name:
        _list_one(kind, name, format)
        return
    kinds = catalogue(kind)
    if format is Format.json:
        print(json.dumps(kinds, indent=1))
        return
    for title, entries in kinds.items():
        wide = (
            ["runs on", "needs", "sends", "different data", "some clients", "paper"]
            if title == "algorithms"
            else ["settings", "about"]
        )
        table = plain_table("name", *wide, title=title)
        for entry in entries:
            table.add_row(*(Text(entry[column]) for column in ("name", *wide)))
        out.print(table)
        out.print()


def _list_one(kind: str, name: str, format: Format) -> None:
    from proxfed.harness.catalogue import about, find, recursion, settings

    make = find(kind, name)
    text = recursion(make) if kind == "algorithms" else about(make)
    if format is Format.json:
        print(json.dumps({"name": name, "about": text, "settings": [s._asdict() for s in settings(make)]}, indent=1))
        return
    out.print(text, highlight=False, markup=False)
    table = plain_table("name", "default", "meaning", title="settings")
    for setting in settings(make):
        table.add_row(*map(Text, (setting.name, setting.default or "", setting.about)))
    out.print()
    out.print(table)
