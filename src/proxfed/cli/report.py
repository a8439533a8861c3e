"""`proxfed report`: tables and a page from run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxfed.cli.common import Format, FormatOption, command_line
from proxfed.errors import require
from proxfed.report.terminal import print_results, say

if TYPE_CHECKING:
    from proxfed.harness.results import Results


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    page: Annotated[
        Path | None, typer.Option("--out", help="Page to write; default: report.html in the first folder.")
    ] = None,
    figures: Annotated[
        str, typer.Option("--figures", metavar="FORMATS", help="Write a figure per measure, e.g. pdf,svg,png.")
    ] = "",
    latex: Annotated[Path | None, typer.Option("--latex", metavar="FILE", help="Write the table as LaTeX.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV.")] = None,
    stat: Annotated[
        str, typer.Option("--stat", help="Statistic in LaTeX: median (with range) or mean (with standard deviation).")
    ] = "median",
    format: FormatOption = Format.table,
) -> None:
    """Write tables and plots from finished (or unfinished) runs; several folders are compared on one page.

    Figures go into the folder of the page: every measure over rounds and over bytes, with the range over the seeds.

    Examples: [bold]proxfed report runs/demo runs/quick --out compare.html[/bold], [bold]proxfed report runs/demo
    --figures pdf --latex table.tex --stat mean[/bold]
    """
    from proxfed.files import write
    from proxfed.harness.results import Results
    from proxfed.report.page import write_report

    page = page or folders[0] / "report.html"
    runs = [Results.read(folder) for folder in folders]
    one = len(runs) == 1
    require(one or not (figures or latex or csv), "--figures, --latex and --csv are of one run: name one folder")
    write_report(runs, page, command=command_line())
    tables = [run.table() for run in runs]
    drawn = _draw(runs[0], page.parent, figures) if figures else []
    if latex is not None:
        write(latex, runs[0].to_latex(stat=stat, targets=bool(runs[0].targets)) + "\n")
    if csv is not None:
        write(csv, runs[0].to_csv())
    if format is Format.json:
        print(json.dumps({"report": str(page), "results": dict(zip(map(str, folders), tables, strict=True))}, indent=1))
        return
    for folder, table in zip(folders, tables, strict=True):
        say(str(folder), style="bold")
        print_results(table)
    say(f"The report is in {page}")
    for file in [*drawn, *filter(None, (latex, csv))]:
        say(f"wrote {file}")


def _draw(results: Results, folder: Path, formats: str) -> list[Path]:
    """A figure for every measure that the rows have, over rounds and over bytes."""
    from proxfed.report.columns import with_total, worth_showing

    endings = [word.strip().lstrip(".") for word in formats.split(",")]
    known = ("pdf", "svg", "png")
    for word in endings:
        require(word in known, f"--figures {formats}: {word!r} is not one of {', '.join(known)}")
    written = []
    _, measures = worth_showing([with_total(row) for row in results.rows], results.directions)
    for column in measures:
        for axis in ("round", "bytes"):
            figure = results.plot(column.name, x=axis)
            for ending in endings:
                file = folder / f"{column.name}-{axis}.{ending}"
                figure.savefig(file)
                written.append(file)
    return written
