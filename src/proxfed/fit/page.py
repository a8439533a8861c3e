"""The page of a fit: self-contained, no script, everything from tables and files escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from proxfed.fit import pictures
from proxfed.fit.inference.of_fit import reason_for_none
from proxfed.fit.inference.page import coefficients_section
from proxfed.fit.judge import ALL
from proxfed.fit.missing_tables import NOTE, missing_cells
from proxfed.fit.overview import SCALES, contrast, main_measure, measure_cells, sent_cells, sentences
from proxfed.fit.validation_tables import calibration_cells, decision_cells, notes, optimism_cells, stability_cells
from proxfed.report.static_page import plain_html, static_page

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown

MOST_GAPS = 100
"""Lines of the table of what is missing."""
PLOTS = 12
"""Organisations whose calibration is drawn at most; the table has all."""
MOST = 30
"""Coefficients that are drawn and listed at most; coefficients.csv has all."""


def page(fitted: Shown) -> str:
    """The whole page."""
    model = fitted.model
    listed = "".join(f"<li>{escape(note)}</li>" for note in model.notes)
    sections = {
        "The model": _chosen(fitted),
        "Intervals": _intervals(fitted),
        "How its weight was chosen": _choice(fitted),
        "How good it is": _measures(fitted),
        "How far it can be trusted": _validation(fitted),
        "Who holds what": _held(fitted),
        "What is missing": _missing(fitted),
        "What was sent": _sent(fitted),
        "Notes": f"<ul>{listed}</ul>" if listed else "",
    }
    title = f"{model.name}: a model of {len(model.organisations)} organisations"
    return static_page(title, sentences(fitted), sections)


def _chosen(fitted: Shown) -> str:
    model, html = fitted.model, ""
    for k, output in enumerate(model.outputs):
        every = model.largest(k)
        shown = every[:MOST]
        html += f"<h3>{escape(f'Score of {output!r}' if output else 'Score')}</h3>"
        if shown:
            names, one, other = zip(*shown, strict=True)
            drawn = (
                pictures.bars(names, one, "on the prepared scale"),
                pictures.bars(names, other, "in units of the column"),
            )
            html += f'<div class="columns">{"".join(f"<div>{each}</div>" for each in drawn)}</div>'
        rows = [("(intercept)", model.prepared.intercept[k], model.original.intercept[k]), *shown]
        head = ["feature", "prepared scale", "in its own units"]
        html += plain_html(head, [[name, f"{one:.6g}", f"{other:.6g}"] for name, one, other in rows])
        p = len(model.features)
        html += f'<p class="note">{SCALES} {p - len(every):,} of {p:,} coefficients are zero'
        html += f"; {len(every) - MOST:,} more are in coefficients.csv.</p>" if len(every) > MOST else ".</p>"
    return html


def _intervals(fitted: Shown) -> str:
    if reason := reason_for_none(fitted):
        return f"<p>{escape(reason[0].upper() + reason[1:])}.</p>"
    note = (
        "Debiased: the penalty's pull towards zero is taken away, so these estimates differ from the coefficients "
        f"above, and none is zero. Standard errors: {fitted.inference.errors}; p-values are adjusted "
        f"({fitted.inference.adjustment})."
    )
    return coefficients_section(fitted.inference) + f'<p class="note">{escape(note)}</p>'


def _choice(fitted: Shown) -> str:
    cv = fitted.cv
    if cv is None or len(cv.weights) < 2:
        return f"<p>The weight was given: {fitted.model.weight:.4g}.</p>"
    weights, block = cv.weights.tolist(), fitted.block
    q, p = block.shape
    models = np.stack([fit.x[: block.stop].numpy().reshape(q, p) for fit in cv.fits])
    used = np.flatnonzero((models != 0).any((0, 1)))[:200]
    curve = pictures.curve(weights, cv.mean.tolist(), cv.standard_error.tolist(), fitted.model.weight, weights[cv.best])
    names = [fitted.model.features[j] for j in used]
    paths = "".join(
        f"<div>{pictures.path(weights, models[:, k][:, used], names, fitted.model.weight)}</div>"
        for k in range(min(q, 4))
    )
    note = (
        "Bars are one standard error of the mean over the folds. The line is the weight that was chosen, dashed the "
        "one with the least loss. Measures below are of rows that the fold's model has not seen"
    )
    note += "." if fitted.validation.nested else "; the weight was chosen with them, which flatters them slightly."
    return f'<div class="columns"><div>{curve}</div>{paths}</div><p class="note">{note}</p>'


def _measures(fitted: Shown) -> str:
    measure, judged = main_measure(fitted), fitted.federated
    series = [pictures.Lines("federated", {name: row[measure] for name, row in judged.items() if measure in row})]
    if fitted.alone:
        alone = {name: row[measure] for name, row in fitted.alone.items() if name != ALL}
        series.append(pictures.Lines("each alone", alone))
    html = f"<div>{pictures.forest(list(judged), series, measure)}</div>"
    if bins := fitted.calibration:
        html += f"<div>{pictures.calibration(bins, fitted.model.classes[1])}</div>"
    pooled = " Pooled rows are a simulation: nobody has them in one place." if fitted.pooled else ""
    note = f"Judged on {fitted.model.held_out}. In brackets {fitted.intervals}. {contrast(fitted)}{pooled}"
    return f'<div class="columns">{html}</div>{plain_html(*measure_cells(fitted))}<p class="note">{escape(note)}</p>'


def _validation(fitted: Shown) -> str:
    of, level, said = fitted.validation, fitted.settings.level, notes(fitted)
    html = ""
    if of.by_organisation:
        drawn = "".join(
            f"<div><h4>{escape(name)}</h4>{pictures.calibration(bins, fitted.model.classes[1], level)}</div>"
            for name, bins in list(of.by_organisation.items())[:PLOTS]
        )
        html += f'<h3>Calibration of every organisation</h3><div class="columns">{drawn}</div>'
        html += plain_html(*calibration_cells(fitted)) + f'<p class="note">{escape(said["calibration"])}</p>'
    if of.decisions:
        html += f"<h3>Decisions</h3>{pictures.decisions(of.decisions)}{plain_html(*decision_cells(fitted))}"
        html += f'<p class="note">{escape(said["decisions"])}</p>'
    if of.optimism:
        html += f"<h3>Optimism</h3>{plain_html(*optimism_cells(fitted))}"
        html += f'<p class="note">{escape(said["optimism"])}</p>'
    if of.stability is not None:
        html += f"<h3>Stability of the choice</h3>{plain_html(*stability_cells(fitted))}"
        html += f'<p class="note">{escape(said["stability"])}</p>'
    return html


def _held(fitted: Shown) -> str:
    held = fitted.holdings
    gaps = {name: counts for name, counts in held.missing.items() if any(c != 0 for c in counts.values())}
    shown = dict(list(gaps.items())[:12])
    head = ["", "rows", *held.outcomes, *(f"{name} missing" for name in shown)]
    columns = (held.rows, *held.outcomes.values(), *shown.values())
    rows = [[name, *(count(column[name]) for column in columns)] for name in held.rows]
    note = f"-: withheld, because it is below {held.fewest} or such a count would follow from it."
    more = f" {len(gaps) - len(shown)} more columns have missing values." if len(gaps) > len(shown) else ""
    return plain_html(head, rows) + f'<p class="note">{note}{more}</p>'


def _missing(fitted: Shown) -> str:
    head, lines = missing_cells(fitted.holdings)
    if not lines:
        return ""
    more = f" {len(lines) - MOST_GAPS} more lines are not shown." if len(lines) > MOST_GAPS else ""
    return plain_html(head, lines[:MOST_GAPS]) + f'<p class="note">{escape(NOTE + more)}</p>'


def count(number: int | None) -> str:
    """How many; a dash where that is withheld."""
    return "-" if number is None else f"{number:,}"


def _sent(fitted: Shown) -> str:
    note = (
        f"Bytes are those of all {len(fitted.model.organisations)} organisations together. Summaries go up and the "
        "preparation comes down once; then points go down, and sums over the rows come up. "
        f"Seconds are simulated, on the profile {fitted.settings.profile!r}."
    )
    return plain_html(*sent_cells(fitted)) + f'<p class="note">{escape(note)}</p>'
