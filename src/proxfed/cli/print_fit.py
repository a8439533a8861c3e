"""What `proxfed fit` prints of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown

SHOWN = 20
"""The most coefficients that are printed."""


def print_fitted(fitted: Shown) -> None:
    """Print the largest coefficients, measures on held-out rows, and costs."""
    from proxfed.fit.judge import ALL
    from proxfed.fit.overview import contrast, main_measure, sent_cells, sentences

    model = fitted.model
    for line in sentences(fitted):
        say(line)
    out.print()
    several = len(model.outputs) > 1
    table = plain_table("feature", *(["class"] if several else []), "prepared scale", "in its own units")
    rows = [(output, *row) for k, output in enumerate(model.outputs) for row in model.largest(k)]
    for output, name, one, other in sorted(rows, key=lambda row: -abs(row[2]))[:SHOWN]:
        table.add_row(*map(Text, (name, *([output] if several else []), f"{one:+.4f}", f"{other:+.4g}")))
    out.print(table)
    if len(rows) > SHOWN:
        say(f"... and {len(rows) - SHOWN} more in coefficients.csv")
    _print_intervals(fitted)
    out.print()
    measure = main_measure(fitted)
    table = plain_table(measure.replace("_", " "), "federated", "", *(["alone", ""] if fitted.alone else []))
    for name, row in fitted.federated.items():
        own = fitted.alone.get(name) if name != ALL else None  # scores of different models are not comparable
        cells = [
            *_interval(row.get(measure)),
            *([] if not fitted.alone else _interval(own[measure]) if own else ["-", ""]),
        ]
        table.add_row(Text(name), *cells)
    out.print(table)
    say(f"Evaluated on {model.held_out}; with {fitted.intervals}.")
    if said := contrast(fitted):
        say(said)
    out.print()
    head, rows_sent = sent_cells(fitted)
    table = plain_table(*head)
    for cells in rows_sent:
        table.add_row(*cells)
    out.print(table)
    for note in model.notes:
        say(f"note: {note}")
    if model.signatures:
        say(f"Signed by {', '.join(model.signatures)}.")


def _print_intervals(fitted: Shown) -> None:
    from proxfed.fit.inference.of_fit import reason_for_none

    out.print()
    if reason := reason_for_none(fitted):
        say(reason)
        return
    found = fitted.inference
    head, lines = found.cells(short=True)
    order = sorted(range(len(lines)), key=lambda k: found.coefficients[k].p)[:SHOWN]
    table = plain_table(found.method, *head[1:])
    for k in order:
        table.add_row(*map(Text, lines[k]))
    out.print(table)
    if len(lines) > SHOWN:
        say(f"... and {len(lines) - SHOWN} more in the report")


def _interval(m: Any) -> list[str]:
    if m is None:
        return ["-", ""]
    number = f"{m.value:.3f}" if m.value == m.value else "-"
    return [number, f"{m.low:.3f} to {m.high:.3f}" if m.low == m.low else ""]
