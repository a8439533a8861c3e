"""`proxfed list`: the available algorithms, regularisers and other parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, visible

COLUMNS = {"name": "name", "runs on": "runs on", "h": "handles h by", "exact": "exact", "what it is": "about"}
"""The headings of the list of algorithms, by the keys of an entry."""


def list_(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="algorithms, regularisers, compressors, topologies, ...")
    ] = "",
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Show one entry and explain each of its settings.")
    ] = "",
    server: Annotated[bool, typer.Option("--server", help="Only algorithms with a server.")] = False,
    peers: Annotated[bool, typer.Option("--peers", help="Only algorithms between peers.")] = False,
    prox: Annotated[bool, typer.Option("--prox", help="Only algorithms that take prox steps.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Only algorithms that reach the solution on heterogeneous data.")
    ] = False,
    compressed: Annotated[bool, typer.Option("--compressed", help="Only algorithms that compress messages.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """List the available parts of experiments, one line per entry, including plug-ins of installed packages.

    Examples: [bold]proxfed list[/bold], [bold]proxfed list algorithms --peers --prox[/bold],
    [bold]proxfed list algorithms depositum[/bold]
    """
    from proxfed.harness.catalogue import catalogue

    wanted = {"server": server, "peers": peers, "prox": prox, "exact": exact, "compressed": compressed}
    asked = [f"--{key}" for key, value in wanted.items() if value]
    of_algorithms = kind == "algorithms" and not name
    require(of_algorithms or not asked, f"{' '.join(asked)} filters the list of algorithms: proxfed list algorithms")
    if name:
        _list_one(kind, name, format)
        return
    kinds = {
        title: [entry for entry in entries if _fits(entry, wanted)] if asked else entries
        for title, entries in catalogue(kind).items()
    }
    if format is Format.json:
        print(json.dumps(kinds, indent=1))
    elif kind == "":
        _list_kinds(kinds)
    else:
        _list_kind(kind, kinds[kind])


def _fits(entry: Mapping[str, str], wanted: Mapping[str, bool]) -> bool:
    """Whether an algorithm has every requested property."""
    has = {
        "server": entry["runs on"] == "server",
        "peers": entry["runs on"] == "peers",
        "prox": entry["handles h by"] == "prox",
        "exact": entry["exact"] != "no",
        "compressed": "C(d)" in entry["sends"],
    }
    return all(has[key] for key, asked in wanted.items() if asked)


def _list_kinds(kinds: Mapping[str, list[dict[str, str]]]) -> None:
    """The number of entries of each kind, and the first few names."""
    counted = (
        [title, str(len(each)), ", ".join(entry["name"] for entry in each[:12])] for title, each in kinds.items()
    )
    _lines(["kind", "entries", "such as"], counted)
    out.print("\nproxfed list KIND shows one line per entry; add a NAME to see its settings.", style="dim")


def _list_kind(kind: str, entries: list[dict[str, str]]) -> None:
    columns = COLUMNS if kind == "algorithms" else {"name": "name", "what it is": "about"}
    if not entries:
        out.print("No entry has all of these properties.")
        return
    _lines([*columns], ([entry[key] for key in columns.values()] for entry in entries))
    out.print(f"\nproxfed list {kind} NAME shows one of them with all its settings.", style="dim")


def _lines(headings: list[str], rows: Iterable[list[str]]) -> None:
    """One line per row; on a terminal the last column is cut to fit."""
    table = [[visible(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *table, strict=True)]
    for k, row in enumerate([headings, *table]):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if out.is_terminal and len(line) > out.width:
            line = line[: out.width - 1] + "…"
        out.print(line, style="bold" if k == 0 else None, highlight=False, soft_wrap=True)


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
