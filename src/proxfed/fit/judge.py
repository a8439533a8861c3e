"""A model judged: every measure for each organisation and over all of them, with intervals by bootstrap.

Samples are drawn anew, with replacement, within each organisation: that these organisations took part is given. The
draw is keyed by seed, organisation and repetition, so the intervals are the same whoever computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from proxfed import keyed_random
from proxfed.errors import real, require, whole
from proxfed.fit import metrics as ms
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber, Logistic, Loss, OneHot, Poisson, Softmax, Squared
from proxfed.problems.named_losses import find_loss

MEASURES: dict[type[Loss], dict[str, ms.Measure]] = {
    Logistic: ms.TWO_CLASSES,
    Softmax: ms.CLASSES,
    OneHot: {"accuracy": ms.CLASSES["accuracy"]},
    Squared: ms.NUMBERS,
    Huber: ms.NUMBERS,
    Poisson: ms.COUNTS,
    Cox: ms.SURVIVAL,
}
"""What the models of a loss are judged by."""

ALL = "all"

LOSS = "held-out loss"
"""What is known of rows in several places without a score of any of them."""


class Measured(NamedTuple):
    """A measure, and the interval in which it lies in the given part of the repetitions."""

    value: float
    low: float
    high: float


Judgement = dict[str, dict[str, Measured]]
"""By organisation, `all` last, and measure."""


def plain(judged: Judgement) -> dict[str, dict[str, list[float | None]]]:
    """As JSON has it: [value, low, high], null where there is no such number."""
    return {
        name: {measure: [float(v) if np.isfinite(v) else None for v in m] for measure, m in row.items()}
        for name, row in judged.items()
    }


def judge(
    loss: Loss | str,
    scores: Any,
    labels: Any,
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    repetitions: int = 200,
    level: float = 0.95,
    seed: int = 0,
    units: Any = None,
    first: int = 0,
) -> Judgement:
    """Measures of scores (N,) or (N, outputs) for labels (N,), both sorted by organisation.

    sizes         how many samples each organisation has
    names         what the organisations are called; None: 0, 1, ...
    repetitions   of the bootstrap; 0: no intervals (NaN)
    level         the part of the repetitions that an interval holds
    units         (N,) samples with the same word depend on each other, and are drawn together
    first         the number of the first organisation among all, so that one alone draws what it draws among them

    Over all, pairs of samples are compared across organisations (AUC), except in survival: there only within, as the
    model has a baseline hazard for each. So a model that tells organisations apart, and nothing else, has an AUC and an
    R2 over all; `auc_within` and `r2_within` are those of samples that are compared within their organisation only.

    Where all repetitions give the same number, as for an AUC of 1, there is no interval: they say nothing of how far
    the number could be off.
    """
    s, b, names = _checked(scores, labels, sizes, names)
    require(whole(repetitions) and repetitions >= 0, f"repetitions = {repetitions!r} must be a whole number >= 0")
    require(real(level) and 0 < level < 1, f"level = {level!r} must be in (0, 1)")
    functions = MEASURES[type(find_loss(loss))]
    parts = np.split(np.arange(len(b)), np.cumsum(sizes)[:-1])
    value = _values(functions, s, b, parts, names)
    clusters = [_clusters(rows, units) for rows in parts]
    drawn = [_values(functions, s, b, _redrawn(clusters, seed, r, first), names) for r in range(repetitions)]
    tails = 50 * (1 - level), 50 * (1 + level)
    out: Judgement = {}
    for name, row in value.items():
        out[name] = {}
        for measure, number in row.items():
            again = np.array([repeated[name][measure] for repeated in drawn])
            again = again[np.isfinite(again)]
            low, high = np.percentile(again, tails) if len(np.unique(again)) > 1 else (np.nan, np.nan)
            out[name][measure] = Measured(number, float(low), float(high))
    return out


def _values(
    functions: Mapping[str, ms.Measure], s: Array, b: Array, parts: Sequence[Array], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    each = zip(names, parts, strict=True)
    out = {name: {k: f(s[rows], b[rows]) for k, f in functions.items()} for name, rows in each}
    if functions is ms.SURVIVAL:
        pairs = [ms.concordant(s[rows, 0], b[rows]) for rows in parts]
        right, count = sum(p.right for p in pairs), sum(p.all for p in pairs)
        return out | {ALL: {"concordance": right / count if count else np.nan}}
    rows = np.concatenate(parts)
    over_all = {k: f(s[rows], b[rows]) for k, f in functions.items()}
    within = WITHIN.get("auc" if functions is ms.TWO_CLASSES else "r2" if functions is ms.NUMBERS else "")
    if within is not None and len(parts) > 1:
        name, f = within
        over_all[name] = f([(s[rows, 0], b[rows]) for rows in parts])
    return out | {ALL: over_all}


WITHIN = {"auc": ("auc_within", ms.auc_within), "r2": ("r2_within", ms.r2_within)}


def _clusters(rows: Array, units: Any) -> list[Array] | Array:
    """What is drawn of an organisation: its rows, or the rows of each unit."""
    if units is None:
        return rows
    order = rows[np.argsort(np.asarray(units)[rows], kind="stable")]
    _, first = np.unique(np.asarray(units)[order], return_index=True)
    return np.split(order, first[1:])


def _redrawn(parts: Sequence[list[Array] | Array], seed: int, repetition: int, first: int) -> list[Array]:
    key = keyed_random.keys(seed, "bootstrap", range(first, first + len(parts)), repetition)
    drawn = []
    for i, of in enumerate(parts):
        which = keyed_random.integers(key[i : i + 1], len(of), len(of))[0]
        drawn.append(np.concatenate([of[k] for k in which]) if isinstance(of, list) else of[which])
    return drawn


def _checked(
    scores: Any, labels: Any, sizes: Sequence[int], names: Sequence[str] | None
) -> tuple[Array, Array, list[str]]:
    s, b = np.asarray(scores, np.float64), np.asarray(labels)
    s = s[:, None] if s.ndim == 1 else s
    names = [str(i) for i in range(len(sizes))] if names is None else list(map(str, names))
    require(s.ndim == 2 and b.shape == s.shape[:1], f"scores {s.shape} do not fit labels {b.shape}")
    fit = len(sizes) > 0 and min(sizes) > 0 and sum(sizes) == len(b)
    require(fit, f"sizes = {list(sizes)!r:.80} must be whole numbers >= 1 that add up to the {len(b)} samples")
    apart = len(names) == len(sizes) == len({*names} - {ALL})
    require(apart, f"names = {names!r:.80} must be {len(sizes)} different ones, and none of them {ALL!r}")
    require(bool(np.isfinite(s).all()), "scores: some are NaN or infinite")
    return s, b, names
