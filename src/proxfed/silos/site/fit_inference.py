"""A site's answers for inference: sizes, its own estimates, its intercept, and hazards of survival."""

from __future__ import annotations

import numpy as np
import torch

from proxfed.errors import require
from proxfed.fit.dominance import leverage
from proxfed.fit.here import Here
from proxfed.fit.inference.regression import Intercept
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.survival import WIDE, even_steps
from proxfed.fit.oracle import Question
from proxfed.problems.linear.cox import Cox
from proxfed.silos.protection.guard import Asked, withheld
from proxfed.silos.site.fit_rows import TOO_FEW, Answer, Answered, FitRows
from proxfed.silos.wire import fit_questions
from proxfed.silos.wire.message import Letter


def _size(rows: FitRows, letter: Letter) -> Answered:
    counts = fit_questions.read_plain(letter, rows.classes)
    asked = rows.asked(letter, "size", ["size"], 1)
    rows.holder.guard.infers()
    rows.wanted("count", counts.factors)
    with withheld("a query failed"):
        size = rows.here(counts).size()
        more = torch.tensor([size.clusters, size.least], dtype=torch.float64)
        return *rows.hidden(torch.cat([size.kinds, more]), letter), asked


def _of_own_estimates(rows: FitRows, letter: Letter, what: str) -> tuple[list[int], Here, Asked]:
    """(order, the rows, the question) for estimates from this site alone, which need as many rows as Hessians do."""
    counts = letter.head.get("own") is True
    order, read = fit_questions.read_order(letter, rows.classes, rows.own_d if counts else rows.own.d)
    kind: Intercept = "own" if counts else "shared" if rows.fit.intercept else "none"
    all_ = Subject(rows.here(read), rows.own.loss, rows.prepared).preferred(kind)
    require(order == all_, "order: estimates are told of the whole model, with all its coefficients")
    asked = rows.asked(letter, what, [what], 1)
    rows.holder.guard.infers(alone=what == "estimates")
    rows.holder.guard.once(asked, letter.digest)
    rows.wanted("hessian", read.factors)
    return order, rows.here(read), asked


def _agreement(rows: FitRows, letter: Letter) -> Answered:
    order, here, asked = _of_own_estimates(rows, letter, "agreement")
    with withheld("a query failed"):
        return *rows.hidden(here.agreement(order).flatten(), letter), asked


def _estimates(rows: FitRows, letter: Letter) -> Answered:
    order, here, asked = _of_own_estimates(rows, letter, "estimates")
    with withheld("a query failed"):
        (own,) = here.estimates(order).values()
        if isinstance(own, str):
            return {"why": TOO_FEW}, b"", asked
        told = {"b": coarse(own.b, own.error), "error": coarse(own.error, own.error)}
    return {key: [v if np.isfinite(v) else None for v in values] for key, values in told.items()}, b"", asked


def _intercept(rows: FitRows, letter: Letter) -> Answered:
    (x,), counts = fit_questions.read_points(letter, rows.classes, rows.own_d)
    require(counts.own, "an intercept is asked for, where there is one for all")
    asked = rows.asked(letter, "intercept", ["intercept"], 1)
    rows.wanted("sum", counts.factors)
    rows.follow([x], counts)
    with withheld("a query failed"):
        rows.holder.guard.dominates(leverage(rows.own, x, counts.factors))
        return *rows.hidden(rows.here(counts).intercept_sums(x), letter), asked


def _risks(rows: FitRows, letter: Letter) -> Answered:
    """The hazard in intervals of time.

    Intervals in which few rows leave are merged, even under masks. The coordinator chooses once where even steps end.
    """
    require(isinstance(rows.own.loss, Cox), "risks are told of survival")
    (times, x), counts = fit_questions.read_points(letter, rows.classes, -1, rows.own.d)
    grid, last = times.numpy(), float(times[-1])
    wide = np.array_equal(grid, WIDE)
    even = last in WIDE and np.array_equal(grid, even_steps(last))
    require(wide or even, "risks are told at powers of two, or in even steps to one of them")
    asked = rows.asked(letter, "risks", ["risks"], 1)
    rows.holder.guard.infers()
    rows.follow([x], counts)
    if even:
        rows.holder.guard.times(last)
    here = rows.here(counts)
    with withheld("a query failed"):
        rows.dominated([Question(x)])
        rows.holder.guard.dominates(here.heaviest_risk(times, x))
        return *rows.hidden(here.risks(times, x).flatten(), letter), asked


def coarse(values: np.ndarray, errors: np.ndarray) -> list[float]:
    """Rounded to a power of ten near a hundredth of the standard error; finer digits say nothing of the population."""
    with np.errstate(divide="ignore", invalid="ignore"):
        step = 10.0 ** np.floor(np.log10(errors) - 2)
    return [float(v) if not s > 0 else round(round(v / s) * s, 12) for v, s in zip(values, step, strict=True)]


ANSWERS: dict[str, Answer] = {
    "size": _size,
    "agreement": _agreement,
    "estimates": _estimates,
    "intercept": _intercept,
    "risks": _risks,
}
