"""An organisation's own intercept, and the derivatives of the loss profiled over it (formulas in own_sums.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.oracle import ALL, Part, Question, Sums
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.own_separate import separate
from proxfed.problems.losses import Logistic, Loss, Poisson

FURTHEST = 30.0
"""An infinite intercept is replaced by a finite one, at which every score is at least this far from 0."""


def own_intercept(own: OwnRows, x: Tensor, part: Part = ALL, factors: Tensor | None = None) -> float:
    """The organisation's own intercept at x, from the rows that a fold is fitted to.

    It is infinite if all these rows have the same outcome.
    """
    part = Part(part.fold) if part.fold is not None else ALL
    rows = torch.cat([torch.arange(s.start, s.stop) for s in own.slices(part)])
    require(len(rows) > 0, "an organisation without rows to fit to has no intercept of its own")
    s = torch.cat([A @ x for _, A in own.chunks(part, 1)])
    s = s if own.shift is None else s + own.shift[rows]
    b, w = own.b[rows], own.weights(factors)[rows]
    if isinstance(own.loss, (Logistic, Poisson)):
        some = b[w > 0] > 0
        if not some.any():
            return -np.inf
        if isinstance(own.loss, Logistic) and some.all():
            return np.inf

    def derivative(a: float) -> tuple[float, float]:
        t = (s + a)[None, None]
        second = own.loss.second(t, b[None])[0, 0, 0]
        return float(own.loss.slope(t.clone(), b[None])[0, 0] @ w), float(second @ w)

    return root(derivative)


def profiled_sums(own: OwnRows, asked: list[Question], part: Part, order: int, factors: Tensor | None) -> list[Sums]:
    d = own.outputs * own.width
    with_own: list[Question] = []
    silent = []
    for q in asked:
        a = own_intercept(own, q.x, part, factors)
        silent.append(not np.isfinite(a) and not part.held_out)  # all its rows fit, whatever the coefficients are
        columns = None if q.columns is None else torch.cat([q.columns, torch.tensor([d])])
        x = torch.cat([q.x, q.x.new_tensor([_at_most(own, q.x, a)])])
        with_own.append(q._replace(x=x, columns=columns))
    found = separate(own, with_own, part, order, factors, True)
    return [_eliminated(one, no) for one, no in zip(found, silent, strict=True)]


def _at_most(own: OwnRows, x: Tensor, a: float) -> float:
    """The intercept, or a finite one in place of an infinite one."""
    if np.isfinite(a):
        return a
    s = torch.cat([A @ x for _, A in own.chunks(ALL, 1)])
    s = s if own.shift is None else s + own.shift
    return FURTHEST - float(s.min()) if a > 0 else -FURTHEST - float(s.max())


def _eliminated(found: Sums, silent: bool) -> Sums:
    """The sums with the last coordinate, the own intercept, eliminated as a block."""
    value, g, H, M = found
    if silent:
        value, g, H, M = 0.0, *(None if part is None else torch.zeros_like(part) for part in (g, H, M))
    if H is None or g is None:
        return Sums(value, None if g is None else g[:-1])
    mass = float(H[-1, -1])
    z = H[:-1, -1] / mass if mass > 1e-9 else torch.zeros_like(H[:-1, -1])
    T = torch.cat([torch.eye(len(z), dtype=H.dtype), -z[:, None]], 1)
    less = H[:-1, :-1] - torch.outer(z, H[-1, :-1]) if mass > 1e-9 else torch.zeros_like(H[:-1, :-1])
    return Sums(value, g[:-1], less, None if M is None else T @ M @ T.mT)


def check_one_score(loss: Loss) -> None:
    """InputError if the loss does not allow an intercept for each organisation."""
    fits = loss.separate and not loss.classes
    require(fits, "site_intercepts are for losses with one score: logistic, squared, huber and poisson")


def root(derivative: Callable[[float], tuple[float, float]]) -> float:
    """The root of an increasing function, by Newton steps inside a bracket; it returns its value and its slope."""
    low, high, a, reach = -np.inf, np.inf, 0.0, 10.0
    for _ in range(200):
        g, h = derivative(a)
        if g == 0:
            return a
        low, high = (a, high) if g < 0 else (low, a)
        step = a - g / h if h > 0 else np.inf
        if not low < step < high or abs(step - a) > 10:
            bracketed = np.isfinite(low) and np.isfinite(high)
            step = (low + high) / 2 if bracketed else a + (reach if g < 0 else -reach)
            reach *= 2
        if abs(step - a) <= 1e-15 * max(1.0, abs(a)):
            return float(step)
        a = float(step)
    return a
