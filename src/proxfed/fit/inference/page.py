"""Inference as a page, or as a section of the page of a fit: tables that a journal takes, and forest plots."""

from __future__ import annotations

from html import escape

from proxfed.fit import pictures
from proxfed.fit.inference.result import INTERCEPT, Inference
from proxfed.fit.judge import Measured
from proxfed.report.static_page import plain_html, static_page

MOST = 12
"""Forest plots that are drawn at most: of the coefficients that organisations agree on least."""


def inference_page(found: Inference) -> str:
    """The whole page."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    sections = {
        "Coefficients": coefficients_section(found),
        "Deviance": plain_html(*found.term_cells()) if found.terms else "",
        "Between organisations": agreement_section(found),
        "Notes": f"<ul>{notes}</ul>" if notes else "",
    }
    return static_page(f"{found.title}: estimates", found.sentences(), sections)


def coefficients_section(found: Inference) -> str:
    """The table, and a plot of the intervals of what is not an intercept."""
    head, lines = found.cells()
    note = f"Coefficients are in the units of their columns. Intervals are of {100 * found.level:g} %."
    return plain_html(head, lines) + f'<p class="note">{escape(note)}</p>'


def agreement_section(found: Inference) -> str:
    """Cochran's Q and I2 of every coefficient, and forest plots of those that differ most."""
    if not found.agreement:
        return ""
    html = plain_html(*found.agreement_cells())
    html += (
        '<p class="note">Q tests whether all organisations have the same coefficient; I2 is the part of the variation '
        "between their estimates that chance does not explain.</p>"
    )
    worst = sorted(found.agreement, key=lambda a: a.p)[:MOST]
    return (
        html + f'<div class="columns">{"".join(_forest(found, a.name) for a in worst)}</div>' if found.forest else html
    )


def _forest(found: Inference, name: str) -> str:
    lines = {f.organisation: Measured(f.estimate, f.low, f.high) for f in found.forest if f.name == name}
    joint = found[name]
    values = lines | {"all": Measured(joint.estimate, joint.low, joint.high)}
    assert name != INTERCEPT
    return f"<div>{pictures.forest([*values], [pictures.Lines('estimate', values)], name)}</div>"
