"""The joint estimate without a penalty, by Newton's method on sums: one exchange for a step, about six for a model.

Features that are linear combinations of those before them have no estimate of their own. They are found from the
Hessian at the start, left out, and named, as R does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxfed.errors import RunError
from proxfed.fit.inference.families import Array
from proxfed.fit.inference.own_sums import Own, Sums, ask

STEPS = 60
"""Newton steps at most."""
ALIASED = 1e-10
"""A feature is a combination of those before it if less than this part of it is left once they are accounted for."""
LARGEST_STEP = 1e-11
"""Steps below this, in standard errors, end the method."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Where the loss of all organisations' rows is least, over the coefficients that are free."""

    x: Array
    """(d,) zeros where a coefficient is held or aliased."""
    sums: Sums
    """At x."""
    free: Array
    """Places of the coefficients that were estimated."""
    aliased: tuple[int, ...]
    """Places of those that are combinations of others."""
    exchanges: int

    @property
    def bread(self) -> Array:
        """(free, free) the inverse of the Hessian."""
        return np.linalg.inv(self.sums.hessian[np.ix_(self.free, self.free)])

    @property
    def parameters(self) -> int:
        """Coefficients, and intercepts that organisations keep."""
        return len(self.free) + int(self.sums.intercepts)

    @property
    def residual_df(self) -> float:
        """Rows less parameters."""
        return self.sums.rows - self.parameters


def estimate(
    organisations: Sequence[Own],
    free: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    start: Array | None = None,
    order: Sequence[int] | None = None,
) -> Estimate:
    """The joint estimate.

    Parameters
    ----------
    organisations : sequence of Own
        What answers: every call is one exchange with all of them.
    free : sequence of int, optional
        Which coefficients are estimated; the others stay at zero.
    names : sequence of str, optional
        Of all coefficients, for messages.
    start : array, optional
        (d,) where to begin.
    order : sequence of int, optional
        In which coefficients are preferred where some are combinations of others; as they stand, the last one first
        if that is a shared intercept.

    Returns
    -------
    Estimate
        With the sums at its point.
    """
    d = organisations[0].d
    wanted = list(range(d)) if free is None else sorted(free)
    x = np.zeros(d) if start is None else np.array(start, float)
    now, exchanges = ask(organisations, x), 1
    preferred = [j for j in (range(d) if order is None else order) if j in set(wanted)]
    aliased = tuple(sorted(combinations(now.hessian, preferred)))
    places = np.array([j for j in wanted if j not in aliased], int)
    if not len(places):
        return Estimate(x, now, places, aliased, exchanges)
    errors = _errors(now.hessian, places, names)
    for _ in range(STEPS):
        g, H = now.gradient[places], now.hessian[np.ix_(places, places)]
        step = _solve(H, g, places, names)
        decrement = float(g @ step)
        if decrement <= LARGEST_STEP**2:
            return Estimate(x, now, places, aliased, exchanges)
        length, before = 1.0, now
        while True:
            trial = x.copy()
            trial[places] -= length * step
            now, exchanges = ask(organisations, trial), exchanges + 1
            slack = 1e-12 * (1 + abs(before.value))
            if now.value <= before.value - 1e-4 * length * decrement + slack:
                break
            length /= 2
            if length < 1e-10:
                return _finished(Estimate(x, before, places, aliased, exchanges), decrement)
        x = trial
        _refuse_separation(errors, now, places, names)
    return _finished(Estimate(x, now, places, aliased, exchanges), decrement)


def _finished(found: Estimate, decrement: float) -> Estimate:
    """What rounding allows is fine; more than a millionth of a standard error is not."""
    if decrement > 1e-12:
        raise RunError(f"the estimate did not converge: the last step was {decrement**0.5:.2g} standard errors long")
    return found


def combinations(hessian: Array, order: Sequence[int]) -> list[int]:
    """The places, in this order, whose features are combinations of those before them."""
    kept: list[int] = []
    aliased: list[int] = []
    L = np.zeros((0, 0))
    for j in order:
        own = hessian[j, j]
        v = np.linalg.solve(L, hessian[kept, j]) if kept else np.zeros(0)
        left = own - v @ v
        if own <= 0 or left <= ALIASED * own:
            aliased.append(j)
            continue
        grown = np.zeros((len(kept) + 1, len(kept) + 1))
        grown[:-1, :-1], grown[-1, :-1], grown[-1, -1] = L, v, np.sqrt(left)
        L = grown
        kept.append(j)
    return aliased


def _solve(H: Array, g: Array, places: Array, names: Sequence[str] | None) -> Array:
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    try:
        step: Array = scale * np.linalg.solve(H * np.outer(scale, scale), scale * g)
    except np.linalg.LinAlgError as e:
        raise RunError(_no_estimate(int(np.argmin(np.diag(H))), places, names)) from e
    return step


SEPARATED = 1e3
"""A standard error that grew by this on the way says that its coefficient grows without bound."""


def _errors(hessian: Array, places: Array, names: Sequence[str] | None) -> Array:
    H = hessian[np.ix_(places, places)]
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    try:
        variances = np.diag(np.linalg.inv(H * np.outer(scale, scale)))
    except np.linalg.LinAlgError as e:
        raise RunError(_no_estimate(int(np.argmin(np.diag(H))), places, names)) from e
    return scale * np.sqrt(np.where(variances > 0, variances, np.inf))


def _refuse_separation(before: Array, now: Sums, places: Array, names: Sequence[str] | None) -> None:
    grown = _errors(now.hessian, places, names) / before
    if grown.max() > SEPARATED:
        raise RunError(_no_estimate(int(grown.argmax()), places, names))


def _no_estimate(k: int, places: Array, names: Sequence[str] | None) -> str:
    j = int(places[k])
    which = repr(names[j]) if names is not None else f"coefficient {j}"
    return (
        f"there is no finite estimate: {which} grows without bound, since features separate the outcomes; leave it "
        "out, or fit with a penalty"
    )
