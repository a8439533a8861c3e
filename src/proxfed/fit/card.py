"""The model card: what the page shows, in words and tables, with room for what only its users know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from proxfed.files import checksum
from proxfed.fit.inference.of_fit import reason_for_none
from proxfed.fit.missing_tables import NOTE, missing_cells
from proxfed.fit.overview import SCALES, contrast, main_measure, measure_cells, sent_cells, sentences
from proxfed.fit.page import MOST, count
from proxfed.fit.tripod import item_cells
from proxfed.fit.validation_tables import calibration_cells, decision_cells, notes, optimism_cells, stability_cells
from proxfed.report.markdown import plain_text, table
from proxfed.tables.column_kinds import Category, Date, Number

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown

LIMITS = (
    "A linear model: effects add up, and what two features do together is not in it.",
    "Coefficients describe these rows; they are not effects of a treatment or a decision.",
    "The penalty shrinks coefficients towards zero; of features that say the same, any may carry the weight.",
    "Means, medians and scales of the preparation were computed from all rows that were fitted to, those that folds "
    "held out included.",
)

TRIPOD = "The items of the reporting guideline, as far as the fit knows them; the others are for you."


def card(fitted: Shown) -> str:
    """model_card.md"""
    model = fitted.model
    head, lines = item_cells(fitted)
    parts = [
        f"# {plain_text(model.name)}",
        *map(plain_text, sentences(fitted)),
        "## Intended use",
        "To be filled in by those who use it: for which decision, for whom, by whom; and for what it must not be used.",
        "## Data",
        _data(fitted),
        "## Preparation",
        _preparation(fitted),
        *_missing(fitted),
        "## Coefficients",
        _coefficients(fitted),
        "## Intervals",
        _intervals(fitted),
        "## Performance",
        _performance(fitted),
        *_validation(fitted),
        "## What was sent",
        table(*sent_cells(fitted)),
        "## Limits",
        "\n".join(f"- {line}" for line in (*LIMITS, fitted.protection, *_own_limits(fitted))),
    ]
    parts += ["## TRIPOD+AI", f"{TRIPOD}\n\n{table(head, [list(map(plain_text, line)) for line in lines])}"]
    if model.notes:
        parts += ["## Notes", "\n".join(f"- {plain_text(note)}" for note in model.notes)]
    made = ", ".join(f"{name} {version}" for name, version in model.versions.items())
    of = f"This card is of the model.json with the checksum {checksum(model.model_dump(mode='json'))}."
    return "\n\n".join([*(part.rstrip("\n") for part in parts), f"Made with {made}. {of}\n"])


def _data(fitted: Shown) -> str:
    held, schema = fitted.holdings, fitted.model.prepare.schema
    head = ["organisation", "rows", *map(plain_text, held.outcomes)]
    columns = (held.rows, *held.outcomes.values())
    rows = [[plain_text(name), *(count(column[name]) for column in columns)] for name in held.rows]
    about = f"{plain_text(schema.table.about)}\n\n" if schema.table.about else ""
    target = schema.target
    assert target is not None
    predicted = f"Predicted is {plain_text(' with '.join(target.columns))}"
    predicted += f" ({', '.join(map(plain_text, target.names))})" if target.names else ""
    return f"{about}{predicted}; - is a count that was withheld, below {held.fewest}.\n\n{table(head, rows)}"


def _preparation(fitted: Shown) -> str:
    lines = []
    schema = fitted.model.prepare.schema
    inputs = schema.inputs
    for name, column in list(inputs.items())[:MOST]:
        parts: list[str] = [column.kind]
        if column.unit:
            parts.append(f"in {column.unit}")
        if isinstance(column, Number):
            parts += [f"{key} {getattr(column, key)}" for key in ("range", "clip") if getattr(column, key)]
            parts += [column.transform] if column.transform != "none" else []
        if isinstance(column, Category):
            parts.append(f"one of {', '.join(column.names)}; any other word: {column.unseen}")
        parts.append(f"a gap: {column.impute}")
        if isinstance(column, (Number, Date)):
            parts.append("standardised" if column.scale == "standard" else "not scaled")
        elif schema.table.standardise_dummies:
            parts.append("standardised")
        parts += ["with an indicator of gaps"] if column.indicator else []
        lines.append(f"- {plain_text(name)}: {plain_text(', '.join(parts))}")
    if len(inputs) > MOST:
        lines.append(f"- and {len(inputs) - MOST:,} more columns, in model.json")
    return "By merged summaries of all organisations; no row was shared.\n\n" + "\n".join(lines)


def _missing(fitted: Shown) -> Iterable[str]:
    head, lines = missing_cells(fitted.holdings)
    if lines:
        yield "## Missing values"
        yield f"{NOTE}\n\n{table(head, [[plain_text(cell) for cell in line] for line in lines])}"


def _coefficients(fitted: Shown) -> str:
    model = fitted.model
    rows = []
    for k, output in enumerate(model.outputs):
        rows.append((output, "(intercept)", model.prepared.intercept[k], model.original.intercept[k]))
        rows += [(output, *row) for row in model.largest(k)[:MOST]]
    cells = [[plain_text(o), plain_text(name), f"{one:.4g}", f"{other:.4g}"] for o, name, one, other in rows]
    return (
        table(["score of", "feature", "prepared scale", "in its own units"], cells)
        + f"\n{SCALES} All others are zero"
        + (f", or among the {model.nonzeros:,} in coefficients.csv." if model.nonzeros > MOST else ".")
    )


def _intervals(fitted: Shown) -> str:
    if reason := reason_for_none(fitted):
        return plain_text(f"{reason[0].upper()}{reason[1:]}.")
    how = (
        f"Debiased estimates in the units of the columns, with intervals of {100 * fitted.settings.level:g} % "
        f"({fitted.inference.errors} standard errors; p-values adjusted: {fitted.inference.adjustment})."
    )
    return f"{how}\n\n{fitted.inference.markdown()}"


def _performance(fitted: Shown) -> str:
    head, rows = measure_cells(fitted)
    how = (
        f"On {fitted.model.held_out}, with {fitted.intervals}; the first measure to look at is "
        f"{main_measure(fitted).replace('_', ' ')}. {contrast(fitted)}"
    ).rstrip()
    return f"{how}\n\n{table(head, [[plain_text(label), *cells] for label, *cells in rows])}"


def _validation(fitted: Shown) -> Iterable[str]:
    """Headings and tables of what was found beside the measures."""
    of, said = fitted.validation, notes(fitted)
    parts = {
        "calibration": ("## Calibration of every organisation", calibration_cells, bool(of.by_organisation)),
        "decisions": ("## Decisions", decision_cells, bool(of.decisions)),
        "optimism": ("## Optimism", optimism_cells, bool(of.optimism)),
        "stability": ("## Stability of the choice", stability_cells, of.stability is not None),
    }
    for key, (heading, cells, there) in parts.items():
        if there:
            head, rows = cells(fitted)
            yield heading
            yield f"{said[key]}\n\n{table(head, [[plain_text(cell) for cell in row] for row in rows])}"


def _own_limits(fitted: Shown) -> Iterable[str]:
    if fitted.judged_by_folds and fitted.settings.weight is None and not fitted.validation.nested:
        yield "The weight was chosen with the same held-out rows that it was judged on, which flatters it slightly."
    if fitted.settings.cv != "organisation":
        yield "Judged on rows of organisations that took part; for others it may do worse (cv = organisation tells)."
