"""What the commands have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

err = Console(stderr=True)
out = Console()


def say(line: str, console: Console = out, style: str | None = None) -> None:
    """A line of text as it stands: brackets are no markup, and a long path stays in one piece."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


class Format(StrEnum):
    table = "table"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people or JSON for programs.")]
DataOption = Annotated[str | None, typer.Option("--data", help="The data directory; else $PROXFED_DATA or the cache.")]
ChangeOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--change", metavar="KEY=VALUE", help="Change a setting, e.g. -c data.partition.alpha=0.1"),
]
CaseOption = Annotated[
    list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case of the experiment; may be repeated.")
]
