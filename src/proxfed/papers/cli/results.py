"""`proxfed results`: what is kept of the papers' experiments, and what holds of the papers' claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
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
COLOURS = {"confirmed": "green", "not run": "yellow"}
"""Of what became of a claim; red are those that are not confirmed, whatever the cause."""


@app.command()
def show(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[PAPER[/EXPERIMENT]]", help="depositum, or depositum/fig3; all papers without."),
    ] = None,
    results: ResultsOption = RESULTS,
    format: FormatOption = Format.table,
) -> None:
    """What holds of all papers, on one screen; of one paper, with the claims that are not confirmed and their causes.

    Of one experiment, all claims with the numbers that they were judged by.

    Examples: [bold]proxfed results show[/bold], [bold]proxfed results show depositum[/bold],
    [bold]proxfed results show fedcef/mnist[/bold]
    """
    from proxfed.papers.reproduce import experiments_of
    from proxfed.papers.results_store import notes
    from proxfed.papers.verdicts import gather, reproduction

    _check_folder(results)
    if what is None:
        every = gather(results)
        if format is Format.json:
            print(
                json.dumps({paper: [_plain(entry) for entry in entries] for paper, entries in every.items()}, indent=1)
            )
        else:
            _print_counts("paper", [(paper, entries) for paper, entries in every.items()])
            say("`proxfed results show PAPER` has the claims that are not confirmed, with their causes.")
        return
    found = [reproduction(results, name) for name in experiments_of(what)]
    if format is Format.json:
        print(json.dumps({entry.name: _plain(entry) for entry in found}, indent=1))
        return
    say(found[0].file.paper.title, style="bold")
    if "/" not in what and (text := notes(results, what)):
        say(text)
    _print_counts("experiment", [(entry.name.partition("/")[2], [entry]) for entry in found])
    if "/" in what:
        _print_claims([(found[0].became(k), _said(found[0], k), v.found) for k, v in enumerate(found[0].verdicts)])
        for form in found[0].forms:
            say(f"`{found[0].command(form)}` runs the {form.name} form again.")
    else:
        _print_explained(found)
        say(f"`proxfed results show {what}/EXPERIMENT` has all claims of an experiment, with the numbers.")


@app.command()
def keep(
    runs: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="The --out of `proxfed reproduce`.")],
    results: ResultsOption = RESULTS,
) -> None:
    """Keep what finished reproductions found, small enough for the repository.

    Other seeds that are kept already stay, if they had the same settings and versions; what is dropped is printed.

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
    write_summary(found, results, docs / "results.md")
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
    wrong = list(problems(gather(results), results, docs / "results.md"))
    for sentence in wrong:
        say(sentence, err)
    raise typer.Exit(1 if wrong else 0)


def _check_folder(results: Path) -> None:
    where = "run this in a checkout of the repository, or give --results DIR"
    require(results.is_dir(), f"there is no folder {results}: {where}")


def _plain(entry: Reproduction) -> dict[str, Any]:
    """As plain tables."""
    return {
        "paper": entry.file.paper.title,
        "figure": entry.file.paper.figure,
        "counts": {
            rank: {", ".join(filter(None, key)): n for key, n in entry.counts(rank).items()}
            for rank in ("main", "minor", "ours")
        },
        "claims": [_claim(entry, k) for k in range(len(entry.verdicts))],
        "notes": entry.notes,
    }


def _claim(entry: Reproduction, k: int) -> dict[str, Any]:
    v = entry.verdicts[k]
    why = {"cause": entry.cause(k)._asdict()} if v.status == "not confirmed" else {}
    told = {"says": v.claim.says, "where": entry.where(k), "rank": v.claim.rank, "status": v.status}
    return told | {"scale": entry.scale(k), "found": v.found} | why


def _print_counts(what: str, lines: list[tuple[str, list[Reproduction]]]) -> None:
    from proxfed.papers.results_page import COLUMNS, counted

    rows = [(name, *counted(entries)) for name, entries in lines]
    if len(lines) > 1:
        rows.append(("all", *counted([entry for _, entries in lines for entry in entries])))
    table = plain_table()
    table.padding = (0, 1, 0, 0)  # so that all of them fit on a terminal
    for heading, *cells in zip((what, *COLUMNS), *rows, strict=True):
        width = max(map(len, (*heading.split(), *cells)))
        table.add_column(heading, justify="left" if heading == what else "right", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)
    out.print()


def _said(entry: Reproduction, k: int) -> str:
    """What claim k says, and where the paper says it."""
    where = entry.where(k)
    return entry.verdicts[k].claim.says + (f" ({where})" if where else "")


def _print_claims(claims: list[tuple[str, str, str]]) -> None:
    """Each with what was found."""
    table = plain_table()
    for heading in ("", "the paper says", "ours"):
        table.add_column(heading, overflow="fold", min_width=None if heading else len("not confirmed"))
    for became, *rest in claims:
        table.add_row(Text(became, style=COLOURS.get(became, "red")), *map(Text, rest))
    out.print(table)


def _print_explained(entries: list[Reproduction]) -> None:
    """The causes for which claims are not confirmed, each once, with its claims."""
    table = plain_table()
    table.add_column("experiment", no_wrap=True)
    table.add_column("why claims are not confirmed", overflow="fold")
    for entry in entries:
        for (became, why), claims in entry.explained().items():
            lines = [f"{became}: {why}", *(f"- {says}" for says in claims)]
            table.add_row(entry.name.partition("/")[2], Text("\n".join(lines)))
    if table.row_count:
        out.print(table)
