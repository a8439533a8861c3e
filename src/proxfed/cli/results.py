"""`proxfed results`: what is kept of the papers' experiments, and what holds of the papers' claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption, err, out, say
from proxfed.errors import nearest, require
from proxfed.report.summary import plain_table

if TYPE_CHECKING:
    from proxfed.papers.claims import Verdict
    from proxfed.papers.verdicts import Reproduction

app = typer.Typer(
    name="results",
    help="The papers' claims: show what holds, keep new runs, write and check the page.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

ResultsOption = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where results are kept.")]
DocsOption = Annotated[Path, typer.Option("--docs", metavar="DIR", help="Where the page results.md is.")]
RESULTS, DOCS = Path("results"), Path("docs")
COLOURS = {"confirmed": "green", "not confirmed": "red", "not run": "yellow"}


@app.command()
def show(
    what: Annotated[str, typer.Argument(metavar="PAPER[/EXPERIMENT]", help="depositum, or depositum/fig3.")],
    results: ResultsOption = RESULTS,
    format: FormatOption = Format.table,
) -> None:
    """What holds of one paper: how many claims of each experiment, and then those that do not hold.

    Of one experiment, all claims with the numbers that they were judged by.

    Examples: [bold]proxfed results show depositum[/bold], [bold]proxfed results show fedcef/mnist[/bold]
    """
    from proxfed.papers.reproduce import papers
    from proxfed.papers.verdicts import reproduction

    _check_folder(results)
    known = papers()
    paper, slash, _ = what.partition("/")
    require(paper in known, f"there are no experiments of a paper {paper!r}; {nearest(paper, known)}")
    require(not slash or what in known[paper], f"there is no experiment {what!r}; {nearest(what, known[paper])}")
    found = [reproduction(results, name) for name in ([what] if slash else known[paper])]
    if format is Format.json:
        print(json.dumps({entry.name: _plain(entry) for entry in found}, indent=1))
        return
    _print_counts(found)
    if slash:
        _print_claims([(entry.name, v) for entry in found for v in entry.verdicts], found=True)
    elif against := [(e.name.partition("/")[2], v) for e in found for v in e.verdicts if v.status == "not confirmed"]:
        _print_claims(against, found=False)
        say(f"`proxfed results show {paper}/EXPERIMENT` has all claims of an experiment, with the numbers.")


@app.command()
def keep(
    runs: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="The --out of `proxfed reproduce`.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Keep what finished reproductions found, small enough for the repository.

    Other seeds that are kept already stay, if they had the same settings and versions; what is dropped is said.

    Example: [bold]proxfed results keep runs/reproduce[/bold]
    """
    from proxfed.papers import results_store

    kept = results_store.keep(runs, results, lambda sentence: say(sentence, err))
    count = sum(map(len, kept.values()))
    say(f"kept {count} run{'' if count == 1 else 's'} of {', '.join(kept) or 'no experiment'} in {results}")


@app.command()
def page(
    results: ResultsOption = RESULTS,
    docs: DocsOption = DOCS,
    experiments: Annotated[
        bool, typer.Option("--experiments", help="Also a page with figures for each experiment, in DIR/results/.")
    ] = False,
) -> None:
    """Write results.md, the summary of what holds, from what is kept.

    Example: [bold]proxfed results page --experiments[/bold]
    """
    from proxfed.papers.results_page import write_pages, write_summary
    from proxfed.papers.verdicts import gather

    _check_folder(results)
    found = gather(results)
    write_summary(found, docs / "results.md")
    if experiments:
        write_pages(found, docs / "results")


@app.command()
def check(results: ResultsOption = RESULTS, docs: DocsOption = DOCS) -> None:
    """Fail if the summary is not up to date, or a claim that does not hold is not explained in the notes.

    Example: [bold]proxfed results check[/bold]
    """
    from proxfed.papers.results_page import problems
    from proxfed.papers.verdicts import gather

    _check_folder(results)
    wrong = list(problems(gather(results), docs / "results.md"))
    for sentence in wrong:
        say(sentence, err)
    raise typer.Exit(1 if wrong else 0)


def _check_folder(results: Path) -> None:
    where = "run this in a checkout of the repository, or give --results DIR"
    require(results.is_dir(), f"there is no folder {results}: {where}")


def _plain(entry: Reproduction) -> dict[str, Any]:
    """As plain tables."""
    return {
        "paper": entry.about.title,
        "figure": entry.about.figure,
        "counts": entry.counts._asdict(),
        "claims": [{"says": v.claim.says, "status": v.status, "found": v.found} for v in entry.verdicts],
        "notes": entry.notes,
    }


def _print_counts(found: list[Reproduction]) -> None:
    from proxfed.papers.verdicts import total

    headings = ("confirmed", "not confirmed", "holds otherwise", "undecided", "not run")
    table = plain_table("experiment", "in the paper")
    for heading in headings:
        table.add_column(heading, justify="right")
    for entry in found:
        numbers = [str(number or "") for number in entry.counts]
        table.add_row(*map(Text, (entry.name, entry.about.figure, *numbers)))
    if len(found) > 1:
        table.add_row("all", "", *map(str, total(entry.counts for entry in found)))
    say(found[0].about.title, style="bold")
    out.print(table)
    out.print()


def _print_claims(claims: list[tuple[str, Verdict]], found: bool) -> None:
    """Each with what was found, or each on one line with its experiment."""
    table = plain_table()
    for heading in ("", "the paper says", "ours") if found else ("", "experiment", "the paper says"):
        short = heading in ("", "experiment")
        least = len("not confirmed") if short else None
        table.add_column(heading, min_width=least, no_wrap=short or not found, overflow="fold" if found else "ellipsis")
    for name, v in claims:
        status, says = Text(v.status, style=COLOURS[v.status]), Text(v.claim.says)
        table.add_row(*((status, says, Text(v.found)) if found else (status, Text(name), says)))
    out.print(table)
