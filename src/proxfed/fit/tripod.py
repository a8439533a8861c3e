"""The items of TRIPOD+AI, filled in from what a fit knows; what only people know is listed as theirs to write.

G. S. Collins et al., "TRIPOD+AI Statement: Updated Guidance for Reporting Clinical Prediction Models That Use
Regression or Machine Learning Methods", BMJ, 2024. Items are named in our words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxfed.fit.inference.of_fit import reason_for_none
from proxfed.fit.judge import ALL
from proxfed.fit.missing_tables import missing_cells
from proxfed.fit.overview import interval, main_measure

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown

YOURS = "to be written"


class Item(NamedTuple):
    """One of them."""

    number: str
    topic: str
    known: str
    """What the fit says of it; '': nothing."""


def items(fitted: Shown) -> list[Item]:
    """All of them, in their order."""
    model, asked, schema = fitted.model, fitted.settings, fitted.model.prepare.schema
    target, measure = schema.target, main_measure(fitted)
    held, of = fitted.holdings, fitted.validation
    assert target is not None
    gaps = missing_cells(held)[1]
    sites = ", ".join(f"{n} ({'-' if rows is None else f'{rows:,}'})" for n, rows in held.rows.items())
    events = "; ".join(f"{o}: {sum(c or 0 for c in counts.values()):,}" for o, counts in held.outcomes.items())
    chosen = "given" if asked.weight is not None else f"cross-validation, rule {asked.rule}"
    checks = [
        "calibration by organisation" if of.by_organisation else "",
        "decision curve" if of.decisions else "",
        "bootstrap optimism" if of.optimism else "",
        "stability selection" if of.stability is not None else "",
        "nested choice of the weight" if of.nested else "",
    ]
    value = fitted.federated[ALL][measure]
    found = [
        ("1", "title", f"a prediction model for {' with '.join(target.columns)}, developed over several organisations"),
        ("2", "abstract", ""),
        ("3a-c", "context, target population, health inequalities", ""),
        ("4", "objectives", ""),
        ("5a", "sources of data", f"tables of {len(model.organisations)} organisations; none left its own"),
        ("5b", "dates of the data", ""),
        ("6a", "setting", f"rows: {sites}"),
        ("6b", "eligibility", f"rows without {', '.join(model.drop)} left out" if model.drop else ""),
        ("6c", "treatments", ""),
        ("7", "data preparation", "section Preparation; the same at every organisation, by merged summaries"),
        ("8a-c", "outcome: definition, assessors, blinding", f"column {' with '.join(target.columns)}; the rest"),
        ("9a-c", "predictors: choice, definition, assessors", f"{len(schema.inputs)} columns; the rest"),
        ("10", "sample size", f"{fitted.rows:,} rows, {len(model.features):,} features; the rest"),
        ("11", "missing data", "section Missing values; filled once" if gaps else "no value is missing"),
        ("12a", "use of the data, partition", model.held_out),
        ("12b", "handling of predictors", "section Preparation"),
        ("12c", "type of model, choice of its settings", f"{model.loss['name']}, {model.penalty['name']}; {chosen}"),
        ("12d", "heterogeneity between organisations", "measures by organisation" + (
            "; an intercept for each" if asked.site_intercepts else "")),
        ("12e", "measures", ", ".join([*(n.replace("_", " ") for n in fitted.federated[ALL]), *filter(None, checks)])),
        ("12f", "updating of the model", "none"),
        ("12g", "how predictions are computed", "model.json, model.R, `proxfed predict`"),
        ("13", "class imbalance", "classes weighted" if asked.class_weights else "rows count alike"),
        ("14", "fairness", ""),
        ("15", "output and thresholds", f"{'probabilities' if target.kind == 'classes' else 'a number'}; the rest"),
        ("16", "differences between development and evaluation", "rows of the same organisations"
            if asked.cv != "organisation" else "each organisation in turn is new to the model"),
        ("17", "ethical approval", ""),
        ("18a-f", "funding, conflicts, protocol, registration, data, code", "code: proxfed, versions below; the rest"),
        ("19", "involvement of patients and public", ""),
        ("20a-c", "participants: flow, characteristics, comparison", "section Data; the rest"),
        ("21", "numbers in development", f"{fitted.rows:,} rows; {events}" if events else f"{fitted.rows:,} rows"),
        ("22", "full model", "coefficients.csv, model.json, model.R"),
        ("23a", "performance with intervals", f"{measure.replace('_', ' ')} {interval(value)}; section Performance"),
        ("23b", "heterogeneity of performance", "section Performance, a line for each organisation"),
        ("24", "results of updating", "none"),
        ("25", "interpretation", "" if reason_for_none(fitted) else "section Intervals; the rest"),
        ("26", "limitations", "section Limits; the rest"),
        ("27a-c", "poor inputs, users, next steps", "rows that cannot be read get no prediction; the rest"),
    ]  # fmt: skip
    return [Item(*each) for each in found]


def item_cells(fitted: Shown) -> tuple[list[str], list[list[str]]]:
    """A table; 'the rest' and empty items are a person's to write."""
    return ["item", "topic", "what the fit knows"], [[i.number, i.topic, _told(i.known)] for i in items(fitted)]


def _told(known: str) -> str:
    if not known:
        return YOURS
    return f"{known.removesuffix('; the rest')}; the rest {YOURS}" if known.endswith("; the rest") else known
