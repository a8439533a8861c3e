"""p-values of several comparisons, adjusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proxfed.errors import require

METHODS = ("none", "bonferroni", "holm", "bh")


def adjusted(p: Sequence[float], method: str = "holm") -> list[float]:
    """bonferroni and holm bound the chance of any false finding, bh (Benjamini-Hochberg) the share of false ones."""
    require(method in METHODS, f"adjust = {method!r} is not one of {', '.join(METHODS)}")
    p_ = np.asarray(p, float)
    m = len(p_)
    if method == "none" or m == 0:
        return p_.tolist()
    if method == "bonferroni":
        return np.minimum(1, m * p_).tolist()
    order = np.argsort(p_)
    rank = np.arange(1, m + 1)
    if method == "holm":
        steps = np.maximum.accumulate((m + 1 - rank) * p_[order])
    else:
        steps = np.minimum.accumulate((m / rank * p_[order])[::-1])[::-1]
    out = np.empty(m)
    out[order] = np.minimum(1, steps)
    return out.tolist()
