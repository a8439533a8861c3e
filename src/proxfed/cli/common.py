"""What the commands have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import console

if TYPE_CHECKING:
    from proxfed.harness.results import Results

__all__ = ["plain_table"]

err = console(stderr=True)
out = console()


def say(line: str, console: Console = out, style: str | None = None) -> None:
    """A line of text as it stands: a long path stays in one piece."""
    console.print(line, style=style, highlight=False, soft_wrap=True)


class Format(StrEnum):
    table = "table"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people or JSON for programs.")]
DataOption = Annotated[str | None, typer.Option("--data", help="The data directory; else $PROXFED_DATA or the cache.")]
ChangeOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--change", metavar="KEY=VALUE", help="Change a setting, e.g. -c data.partition.alpha=0.1"),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Algorithms, seeds, cases in so many processes; default: suits the machine."),
]
CheckpointOption = Annotated[float, typer.Option("--checkpoint", help="Seconds between checkpoints; 0: every round.")]
OneCaseOption = Annotated[
    str, typer.Option("--case", metavar="NAME", help="Which case, if the experiment has several.")
]
CaseOption = Annotated[
    list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case of the experiment; may be repeated.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="LABEL", help="Only this algorithm; may be repeated.")
]


def print_results(table: Sequence[Mapping[str, Any]]) -> None:
    """What each algorithm reached, and what it took to reach the targets."""
    from proxfed.report.effort import fairness
    from proxfed.report.summary import rich_table, rich_targets

    out.print(rich_table(table, out.width))
    if (targets := rich_targets(table)) is not None:
        out.print()
        out.print(targets)
    if said := fairness(table):
        say(said)


def say_messages(results: Results, case: str = "") -> None:
    """A line on stderr for each seed that diverged, found its steps or got nowhere: results, not failures."""
    where = f"{case}: " if case else ""
    for s in results.status:
        if s["message"]:
            style = "red" if s["status"] == "diverged" else None
            say(f"{where}{s['algorithm']}, seed {s['seed']}: {s['message']}", err, style)


def read_over(given: Sequence[str] | None) -> dict[str, str]:
    """KEY=SPACE, each key once."""
    over: dict[str, str] = {}
    require(bool(given), "--over KEY=SPACE is missing: it says what to try, e.g. --over 'FedAvg.eta=log(1e-3,1)'")
    for text in given or ():
        key, equals, space = text.partition("=")
        require(bool(equals and key.strip() and space.strip()), f"--over {text!r} is not of the form KEY=SPACE")
        require(key.strip() not in over, f"--over {key.strip()} is given twice")
        over[key.strip()] = space.strip()
    return over
