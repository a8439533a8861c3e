"""`proxfed report`: tables and a page from run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxfed.cli.common import Format, FormatOption
from proxfed.report.terminal import print_results, say


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    page: Annotated[
        Path | None, typer.Option("--out", help="The page; report.html in the first folder if not given.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Tables and plots from finished (or unfinished) runs; several folders are compared on one page.

    Example: [bold]proxfed report runs/demo runs/quick --out compare.html[/bold]
    """
    from proxfed.harness.results import Results
    from proxfed.report.page import write_report

    page = page or folders[0] / "report.html"
    runs = [Results.read(folder) for folder in folders]
    write_report(runs, page)
    tables = [run.table() for run in runs]
    if format is Format.json:
        print(json.dumps({"report": str(page), "results": dict(zip(map(str, folders), tables, strict=True))}, indent=1))
        return
    for folder, table in zip(folders, tables, strict=True):
        say(str(folder), style="bold")
        print_results(table)
    say(f"The report is in {page}")
