"""The commands about papers, `proxfed reproduce` and `proxfed results`, and the pages of the site."""

from __future__ import annotations

from typer import Typer

from proxfed.papers.cli import results
from proxfed.papers.cli.reproduce import reproduce


def add_to(app: Typer) -> None:
    """As commands of `proxfed`."""
    app.command()(reproduce)
    app.add_typer(results.app)
