"""One inference from several completed tables, by Rubin's rules.

    b = mean b_k      W = mean V_k      B = covariance of the b_k      T = W + (1 + 1/m) B

Intervals are of Student's t with the degrees of freedom of Barnard and Rubin.

References: D. B. Rubin, "Multiple Imputation for Nonresponse in Surveys", Wiley, 1987; J. Barnard, D. B. Rubin,
"Small-Sample Degrees of Freedom with Multiple Imputation", Biometrika, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from proxfed.errors import require
from proxfed.fit.inference.adjust import adjusted
from proxfed.fit.inference.result import INTERCEPT, Inference
from proxfed.fit.inference.wald import coefficients


def pooled(found: Sequence[Inference], notes: Sequence[str] = ()) -> Inference:
    """Of inferences from tables that were completed independently; tests of whole columns and of organisations, which
    these rules do not pool, are left out."""
    m, first = len(found), found[0]
    require(m > 1, f"multiple imputation needs 2 completed tables or more, not {m}")
    names = [name for name in first.names if all(name in each.names for each in found)]
    places = [[each.names.index(name) for name in names] for each in found]
    b = np.array([[each[name].estimate for name in names] for each in found])
    W = np.mean([each.covariance[np.ix_(at, at)] for each, at in zip(found, places, strict=True)], 0)
    B = np.atleast_2d(np.cov(b.T))
    T = W + (1 + 1 / m) * B
    complete = first.rows - first.parameters if first.dispersion != 1 else math.inf
    lines, missing = [], {}
    for k, name in enumerate(names):
        share = (1 + 1 / m) * B[k, k] / T[k, k]
        missing[name] = share
        lines += coefficients(
            [name], b.mean(0)[k : k + 1], T[k : k + 1, k : k + 1], first.level, _df(share, m, complete)
        )
    better = iter(adjusted([line.p for line in lines if line.name != INTERCEPT], first.adjustment))
    lines = [line if line.name == INTERCEPT else replace(line, adjusted=next(better)) for line in lines]
    worst = max(missing, key=lambda name: missing[name])
    said = [note for note in first.notes if "were imputed once" not in note]
    said.append(
        f"gaps were filled {m} times by each organisation from its own rows, and the results pooled by Rubin's rules; "
        f"{100 * missing[worst]:.0f} % of the variance of {worst!r} is due to gaps, the most of all coefficients"
    )
    return replace(
        first,
        method=f"{first.method}, {m} imputations",
        coefficients=tuple(lines),
        covariance=T,
        log_likelihood=math.nan,
        deviance=math.nan,
        terms=(),
        sites=None,
        agreement=(),
        forest=(),
        notes=(*said, *notes),
        exchanges=sum(each.exchanges for each in found),
        own_intercepts={},
    )


def _df(share: float, m: int, complete: float) -> float:
    """`share` is the part of the variance that is due to gaps; `complete` the degrees of freedom without any."""
    old = math.inf if share <= 0 else (m - 1) / share**2
    if math.isinf(complete):
        return old
    observed = (complete + 1) / (complete + 3) * complete * (1 - share)
    return 1 / (1 / old + 1 / observed)
