"""The joint estimate of a prepared regression, refused where its sums would say too much about single rows."""

from __future__ import annotations

from proxfed.errors import require
from proxfed.fit.inference.estimate import Estimate, estimate
from proxfed.fit.inference.regression import Intercept
from proxfed.fit.inference.reported import Errors
from proxfed.fit.inference.result import INTERCEPT
from proxfed.fit.inference.subject import Subject

DISCLOSIVE = 3
"""Rows for a coefficient below which sums say too much about single rows."""


def joint_estimate(asked: Subject, kind: Intercept, errors: Errors) -> tuple[Estimate, list[str], list[str]]:
    """(the joint estimate, names of all coefficients, notes)"""
    regression = asked.regression(kind, errors)
    names = [*asked.preparation.names, *([INTERCEPT] if kind == "shared" else [])]
    order, rows = asked.preferred(kind), regression.size.rows
    require(
        DISCLOSIVE * len(names) <= rows,
        f"no standard errors: {len(names)} coefficients need {DISCLOSIVE * len(names):,} rows or more, since sums over "
        f"fewer say too much about single rows, and there are {rows:,.0f}",
    )
    found = estimate(regression, order, names, order=order)
    notes = list(asked.preparation.notes)
    if regression.informative < 10 * len(found.free):
        notes.append(
            f"{regression.informative:,.0f} {asked.what} for {len(found.free)} coefficients: with fewer than 10 for "
            "each, intervals are too short"
        )
    return found, names, notes
