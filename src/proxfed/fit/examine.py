"""Models without a penalty that data do not determine: collinear features, and classes that can be told apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from proxfed.fit.inner import null_space, separable
from proxfed.fit.newton import Fit
from proxfed.fit.objective import Objective
from proxfed.fit.oracle import ALL, Question

LISTED = 6
"""Names that a note has at most."""


def examined(objective: Objective, fit: Fit) -> Fit:
    """The same model, and notes; of all that fit the rows alike, the one with the smallest coefficients.

    Where nothing is penalised, one more exchange looks at the Hessian at zero, unless Gram matrices are known.
    """
    each = separable(fit.h, objective.d)
    if each is None or not each.free.all() or objective.d > objective.organisations.hessian_columns:
        return fit
    N = null_space(_features(objective))
    notes = []
    if fit.running is not None:
        along = (fit.running - N @ (N.mT @ fit.running)).abs()
        notes.append(
            f"{_listed(_names(objective, along > 0.3 * along.max()))}: rows are told apart without error along these "
            "(separation), so that their coefficients have no finite value, and stand where the fit ended; a penalty "
            "gives them one"
        )
    if not N.shape[1] or objective.l2:
        return replace(fit, notes=(*fit.notes, *notes))
    if collinear := _collinear(objective, N):
        notes.append(
            f"{_listed(collinear)}: these are collinear, so that many models fit the rows alike; of them all, this is the "
            "one with the smallest coefficients"
        )
    return replace(fit, x=fit.x - N @ (N.mT @ fit.x), notes=(*fit.notes, *notes))


def _features(objective: Objective) -> Tensor:
    """(d, d) a Hessian to which every row adds its features."""
    if objective.known is not None and objective.shape.outputs == 1:
        return objective.known.gram(ALL).matrix / objective.weight()
    (sums,) = objective.organisations.ask([Question(torch.zeros(objective.d, dtype=torch.float64), order=2)])
    assert sums.hessian is not None
    return sums.hessian / objective.weight()


def _collinear(objective: Objective, N: Tensor) -> list[str]:
    """Features whose coefficients can be changed without changing a score; those of all classes at once do not count."""
    q, p, intercept = objective.shape
    if q > 1:  # a common shift of all classes is no property of the data
        W = N[: q * p].view(q, p, -1)
        N = torch.cat([(W - W.mean(0)).reshape(q * p, -1), N[q * p :]])
    return _names(objective, N.abs().amax(1) > 1e-6)


def _names(objective: Objective, which: Tensor) -> list[str]:
    q, p, _ = objective.shape
    some = which[: q * p].view(q, p).any(0)
    names = objective.names or tuple(f"x{j}" for j in range(p))
    found = [names[j] for j in some.nonzero()[:, 0].tolist()]
    return found + (["the intercept"] if bool(which[q * p :].any()) and found else [])


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
