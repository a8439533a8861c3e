"""The joint estimate without a penalty, by Newton's method on sums (fit/newton.py): about six exchanges.

Features that are linear combinations of those before them have no estimate of their own. They are found from the
Hessian at the start, left out, and named, as R does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError
from proxfed.fit.inference.regression import Array, At, Regression
from proxfed.fit.newton import Fit, Wish
from proxfed.fit.oracle import Question, Sums, together
from proxfed.regularisers import Zero

NEAR = 1e-9
"""What is left of the gradient when the last Newton steps are taken, with Hessians of their own."""
STEPS = 5
"""Of them, at most."""
ALIASED = 1e-10
"""A feature is a combination of those before it if less than this part of it is left once they are accounted for."""
LARGEST_STEP = 1e-11
"""Steps below this, in standard errors, end the method."""
SEPARATED = 1e3
"""A standard error that grew by this on the way says that its coefficient grows without bound."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Where the loss of all organisations' rows is least, over the coefficients that are free."""

    x: Array
    """(d,) as it began where a coefficient is held or aliased."""
    sums: At
    """At x."""
    free: Array
    """Places of the coefficients that were estimated."""
    aliased: tuple[int, ...]
    """Places of those that are combinations of others."""
    exchanges: int
    regression: Regression

    @property
    def bread(self) -> Array:
        """(free, free) the inverse of the Hessian."""
        return np.linalg.inv(self.sums.hessian[np.ix_(self.free, self.free)])

    @property
    def parameters(self) -> int:
        """Coefficients, and intercepts that organisations keep."""
        return len(self.free) + self.regression.intercepts

    @property
    def rows(self) -> float:
        return self.regression.size.rows

    @property
    def residual_df(self) -> float:
        """Rows less parameters."""
        return self.rows - self.parameters

    @property
    def deviance(self) -> float:
        """Twice the loss above that of a model that fits every row."""
        return 2 * (self.sums.value - self.regression.size.least)


def estimate(
    regression: Regression,
    free: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    start: Array | None = None,
    order: Sequence[int] | None = None,
) -> Estimate:
    """The joint estimate.

    Parameters
    ----------
    regression : Regression
        What answers.
    free : sequence of int, optional
        Which coefficients are estimated; the others stay where they begin.
    names : sequence of str, optional
        Of all coefficients, for messages.
    start : array, optional
        (d,) where to begin; zero if not given.
    order : sequence of int, optional
        In which coefficients are preferred where some are combinations of others; as they stand if not given.

    Returns
    -------
    Estimate
        With the sums at its point.
    """
    d, before = regression.d, regression.traffic
    wanted = list(range(d)) if free is None else sorted(free)
    x = np.zeros(d) if start is None else np.array(start, float)
    now = regression.ask(x, not wanted)
    preferred = [j for j in (range(d) if order is None else order) if j in set(wanted)]
    aliased = tuple(sorted(combinations(now.hessian, preferred)))
    places = np.array([j for j in wanted if j not in aliased], int)

    def found(x: Array, now: At) -> Estimate:
        return Estimate(x, now, places, aliased, regression.traffic - before, regression)

    if not len(places):
        return found(x, now if now.products is not None else regression.ask(x, True))
    errors = _errors(now.hessian, places, names)
    fit = _newton(regression, x, now, places)
    x[places] = fit.x.numpy()
    for _ in range(STEPS):
        now = regression.ask(x, True)
        _refuse_separation(errors, now, places, names)
        step, decrement = _step(now, places)
        if decrement <= LARGEST_STEP**2:
            return found(x, now)
        x[places] -= step
    now = regression.ask(x, True)
    _, decrement = _step(now, places)
    if not decrement <= 1e-12:  # what rounding allows is fine; more than a millionth of a standard error is not
        raise RunError(f"the estimate did not converge: the last step was {decrement**0.5:.2g} standard errors long")
    return found(x, now)


def _newton(regression: Regression, x: Array, now: At, places: Array) -> Fit:
    """Over the coefficients at these places, from what is known at x."""
    objective, at = regression.objective, torch.from_numpy(places)
    bound = objective.bound()
    wish = Wish(
        Zero(),
        torch.from_numpy(x[places]),
        objective.mean(),
        tolerance=NEAR,
        hessians=max(objective.organisations.hessian_columns, len(places)),
        exact=objective.exact,
        bound=None if bound is None else bound[at[:, None], at],
        slow=0.5,
    )
    H = torch.from_numpy(now.hessian)[at[:, None], at]
    first = Sums(now.value, torch.from_numpy(now.gradient)[at], H)
    (fit,) = together(objective.organisations, [_among(wish, first, at, torch.from_numpy(x))])
    return fit


def _among(wish: Wish, first: Sums, places: Tensor, base: Tensor) -> Generator[Question, Sums, Fit]:
    """The questions of a fit of some coefficients, as questions about all of them; the first is answered already."""
    asking = wish.asking()
    next(asking)
    answer = first
    while True:
        try:
            asked = asking.send(answer)
        except StopIteration as end:
            return replace(end.value, asked=end.value.asked - 1)
        x = base.clone()
        x[places] = asked.x
        sums = yield asked._replace(x=x, columns=places if asked.order > 1 else None)
        assert sums.gradient is not None
        answer = sums._replace(gradient=sums.gradient[places])


def _step(now: At, places: Array) -> tuple[Array, float]:
    """(a Newton step, what it would gain: the square of its length in standard errors)."""
    g, H = now.gradient[places], now.hessian[np.ix_(places, places)]
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    step: Array = scale * np.linalg.solve(H * np.outer(scale, scale), scale * g)
    return step, float(g @ step)


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


def _errors(hessian: Array, places: Array, names: Sequence[str] | None) -> Array:
    H = hessian[np.ix_(places, places)]
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    try:
        variances = np.diag(np.linalg.inv(H * np.outer(scale, scale)))
    except np.linalg.LinAlgError as e:
        raise RunError(_no_estimate(int(np.argmin(np.diag(H))), places, names)) from e
    return scale * np.sqrt(np.where(variances > 0, variances, np.inf))


def _refuse_separation(before: Array, now: At, places: Array, names: Sequence[str] | None) -> None:
    grown = _errors(now.hessian, places, names) / before
    if not grown.max() <= SEPARATED:
        raise RunError(_no_estimate(int(grown.argmax()), places, names))


def _no_estimate(k: int, places: Array, names: Sequence[str] | None) -> str:
    j = int(places[k])
    which = repr(names[j]) if names is not None else f"coefficient {j}"
    return (
        f"there is no finite estimate: {which} grows without bound, since features separate the outcomes; leave it "
        "out, or fit with a penalty"
    )
