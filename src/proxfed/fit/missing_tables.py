"""What is missing, by organisation and by outcome, for the page and the card."""

from __future__ import annotations

from proxfed.fit.overview import Cells
from proxfed.tables.holdings import Holdings

NOTE = (
    "-: withheld, because a count is small or would follow from others. If values are missing more often where the "
    "outcome is one of the two, gaps say something of it, and filling them once may mislead (`proxfed glm --impute`)."
)


def missing_cells(held: Holdings) -> Cells:
    """A line for each column and organisation with gaps: how many rows lack a value, of all and of each outcome."""
    head = ["column", "organisation", "missing", *(f"of {outcome}" for outcome in held.outcomes)]
    lines = []
    for name, counts in held.missing.items():
        by_outcome = held.missing_by_outcome.get(name, {})
        for organisation, gaps in counts.items():
            if gaps == 0:
                continue
            cells = [_share(gaps, held.rows[organisation])]
            for outcome, rows in held.outcomes.items():
                cells.append(_share(by_outcome.get(outcome, {}).get(organisation), rows.get(organisation)))
            lines.append([name, organisation, *cells])
    return head, lines


def _share(count: int | None, rows: int | None) -> str:
    """12 of 90 (13 %)"""
    if count is None:
        return "-"
    return f"{count:,}" if not rows else f"{count:,} of {rows:,} ({100 * count / rows:.0f} %)"
