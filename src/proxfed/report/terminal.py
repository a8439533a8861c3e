"""How the tables of the terminal look."""

from __future__ import annotations

from rich.table import Table


def plain_table(*headings: str, title: str | None = None) -> Table:
    """Columns without lines between them; text under `headings` is folded where it is too wide."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
