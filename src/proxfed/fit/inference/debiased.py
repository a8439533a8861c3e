"""Intervals of a penalised model: Newton steps take away what the penalty did (the debiased lasso).

    b = x - H^-1 g        covariance  H^-1 of the likelihood, or the sandwich        g, H: sums at the penalised x

The step is taken twice: after one, what is left of a strong penalty still shows in the coverage of logistic models.
A penalty pulls coefficients towards zero, so an interval around x itself covers far less than it says. b is, to first
order, free of that pull, whichever coefficients are zero in x. For squared loss it is the least-squares estimate. With
few rows for a coefficient neither b nor its normal distribution can be trusted, and H would say much about single rows:
then there are no intervals, and the refusal says so.

References: S. van de Geer, P. Buehlmann, Y. Ritov, R. Dezeure, "On Asymptotically Optimal Confidence Regions and Tests
for High-Dimensional Models", Annals of Statistics, 2014; A. Javanmard, A. Montanari, "Confidence Intervals and
Hypothesis Testing for High-Dimensional Regression", Journal of Machine Learning Research, 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proxfed.errors import require
from proxfed.fit.inference.estimate import Estimate, combinations
from proxfed.fit.inference.regression import Array, Regression

STEPS = 2
ROWS_FOR_EACH = 10
"""Rows that a coefficient needs; of two outcomes, those of the rarer one, and of survival times, events."""


def enough_rows(rows: float, coefficients: int, what: str = "rows") -> None:
    """Refuses inference where there are too few rows for the coefficients."""
    most = int(rows // ROWS_FOR_EACH)
    require(
        coefficients <= most,
        f"no standard errors: {coefficients} coefficients need {ROWS_FOR_EACH * coefficients:,} {what}, and there are "
        f"{rows:,.0f}, enough for {most}; fewer features, or the penalised model without intervals",
    )


def debiased(regression: Regression, x: Array, order: Sequence[int] | None = None) -> Estimate:
    """Newton steps from a penalised x, of the coefficients in `order`; three exchanges."""
    now = regression.ask(x)
    wanted = list(range(len(x))) if order is None else list(order)
    aliased = tuple(sorted(combinations(now.hessian, wanted)))
    free = np.array(sorted(set(wanted) - set(aliased)), int)
    b = np.array(x, float)
    for step in range(STEPS):
        b[free] -= np.linalg.solve(now.hessian[np.ix_(free, free)], now.gradient[free])
        now = regression.ask(b, step == STEPS - 1)
    return Estimate(b, now, free, aliased, 1 + STEPS, regression)
