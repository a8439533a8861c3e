"""`proxfed check`: do the laws hold for your own algorithm, regulariser, compressor or topology?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say

if TYPE_CHECKING:
    from proxfed.testing.law import Report

STYLES = {"holds": "green", "does not hold": "bold red", "does not apply": "dim"}


def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="package.module:Class, ./file.py:Class, or a registered name.")
    ],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "-c", "--change", metavar="KEY=VALUE", help="A setting of the class, e.g. -c eta=0.5; may be repeated."
        ),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Check that an algorithm, regulariser, compressor or topology, yours or ours, obeys the laws of its kind.

    An algorithm runs on a small sparse logistic regression: five clients with heterogeneous data, d = 10, smoothness
    0.24. It must converge as its facts say (to 1e-8 if they say exact), keep dtypes, never write into its inputs, send
    the bytes that it declares, and resume bit by bit. A regulariser or compressor is tested on vectors of 12 numbers, a
    topology with 8 nodes unless -c n=... changes it. Settings are the same as in a configuration file.

    Exit code 0 if all laws hold, 1 if one does not, 2 if the name or a setting is wrong.

    Examples: [bold]proxfed check ./mine.py:Mine -c eta=0.5 -c K=3[/bold], [bold]proxfed check my_package.module:Mine -c
    eta=0.5 -c compressor.name=top_k -c compressor.k=3[/bold], [bold]proxfed check ./mine.py:Penalty -c
    weight=0.1[/bold]
    """
    from proxfed.harness.overrides import override
    from proxfed.testing.named import check_named

    settings: dict[str, Any] = {}
    for text in change or []:
        override(settings, text)
    report = check_named(name, settings)
    if format is Format.json:
        laws = [o._asdict() for o in report.outcomes]
        print(json.dumps({"name": name, "kind": report.kind, "holds": report.holds, "laws": laws}, indent=1))
    else:
        _print(report)
    raise typer.Exit(0 if report.holds else 1)


def _print(report: Report) -> None:
    table = plain_table("law", "", "", title=f"{report.subject}, {report.kind}")
    said = set()
    for o in report.outcomes:
        why = "the same" if o.says in said and o.status == "does not hold" else o.says  # one exception breaks many laws
        said.add(o.says)
        table.add_row(Text(o.law), Text(o.status, STYLES[o.status]), Text(why))
    out.print(table)
    say(f"\n{report}.")
