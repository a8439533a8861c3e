"""What models are judged by, as plain functions of scores and labels; where a measure has no meaning it is NaN.

Scores are those of a linear model: log-odds, or the logarithm of a mean or of a hazard. Labels are as the data have
them: -1/+1, classes, counts, numbers, or survival (time, minus it where censored).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from proxfed.data.survival import time_and_event

Measure = Callable[[Array, Array], float]
"""(scores (m, outputs), labels (m,)) -> a number."""

DECISIONS = tuple(k / 20 for k in range(1, 20))
"""Probabilities from which on one may want to act."""

PAIRS = 1 << 22
"""Pairs of samples that are compared at a time."""


# ---- two classes -----------------------------------------------------------------------------------------------------


def auc(s: Array, b: Array) -> float:
    """The part of pairs of a positive and a negative sample that the scores order rightly; equal ones count half."""
    positive = b > 0
    m, n = int(positive.sum()), int((~positive).sum())
    if m == 0 or n == 0:
        return nan
    _, which, counts = np.unique(s, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return float((ranks[positive].sum() - m * (m + 1) / 2) / (m * n))


def probability(s: Array) -> Array:
    """Of the positive class, from its log-odds."""
    return 0.5 * (1 + np.tanh(s / 2))


def log_loss(s: Array, b: Array) -> float:
    """Minus the logarithm of the probability of what was observed, in the mean."""
    return float(np.logaddexp(0, -np.where(b > 0, 1, -1) * s).mean())


def brier(s: Array, b: Array) -> float:
    """(probability - 0 or 1)^2, in the mean."""
    return float(np.square(probability(s) - (b > 0)).mean())


class Calibration(NamedTuple):
    """How log-odds would have to be changed: intercept of a model with the scores as offset, and the scores' slope in
    a model with an intercept. 0 and 1 where nothing would."""

    intercept: float
    slope: float


def calibration(s: Array, b: Array) -> Calibration:
    """By two logistic regressions of the labels; NaN where one has no solution."""
    y, one = (b > 0).astype(float), np.ones((len(s), 1))
    shift, line = _logistic(one, y, s), _logistic(np.column_stack([one, s]), y, 0 * s)
    return Calibration(nan if shift is None else float(shift[0]), nan if line is None else float(line[1]))


def _logistic(A: Array, y: Array, offset: Array) -> Array | None:
    """Coefficients by Newton's method; None: there are none, or infinite ones."""
    x = np.zeros(A.shape[1])
    for _ in range(50):
        p = probability(A @ x + offset)
        H = (A * (p * (1 - p))[:, None]).T @ A
        if not np.linalg.cond(H) < 1e12:
            return None
        step = np.linalg.solve(H, A.T @ (y - p))
        x = x + np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-10:
            return x
    return None


class Bin(NamedTuple):
    """Samples with similar predictions."""

    samples: int
    predicted: float
    """Mean probability."""
    observed: float
    """The part that was positive."""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """In which the probability of the positive class lies (Wilson)."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        n, p = self.samples, self.observed
        middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def calibration_curve(s: Array, b: Array, bins: int = 10) -> list[Bin]:
    """Samples by increasing score, in parts of equal size; samples with the same score stay together."""
    p, y = probability(s), b > 0
    _, which, counts = np.unique(s, return_inverse=True, return_counts=True)
    part = ((np.cumsum(counts) - 1) * bins // len(s))[which]
    return [Bin(int(m.sum()), float(p[m].mean()), float(y[m].mean())) for k in range(bins) if (m := part == k).any()]


def counted_by_score(s: Array, b: Array, bins: int = 100) -> Array:
    """(2, bins) how many negative and positive samples have a probability in each of so many equal parts of [0, 1]."""
    part = np.clip((bins * probability(s)).astype(np.int64), 0, bins - 1)
    return np.array([np.bincount(part[b * sign > 0], minlength=bins) for sign in (-1, 1)], float)


class NetBenefit(NamedTuple):
    """What it is worth to act on all whose probability is at least `threshold`, in true positives per sample: a false
    positive costs threshold / (1 - threshold) of one. To act on none is worth 0."""

    threshold: float
    model: float
    everybody: float
    """To act on all samples."""


def decision_curve(counts: Array, thresholds: Sequence[float] = DECISIONS) -> list[NetBenefit]:
    """From (2, bins) counts by score; thresholds are ends of bins.

    A. J. Vickers, E. B. Elkin, "Decision Curve Analysis", Medical Decision Making, 2006.
    """
    total, positive = float(counts.sum()), float(counts[1].sum())
    found = []
    for t in thresholds:
        acted = counts[:, round(t * counts.shape[1]) :].sum(1)
        odds = t / (1 - t)
        model, everybody = acted[1] - odds * acted[0], positive - odds * (total - positive)
        found.append(NetBenefit(t, float(model) / total, everybody / total))
    return found


# ---- several classes -------------------------------------------------------------------------------------------------


def probabilities(s: Array) -> Array:
    """(m, classes) from their scores: the softmax of each row."""
    e = np.exp(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def class_log_loss(s: Array, b: Array) -> float:
    """As `log_loss`, of several classes."""
    top = s.max(1, keepdims=True)
    return float((np.log(np.exp(s - top).sum(1)) + top[:, 0] - s[np.arange(len(b)), b]).mean())


def class_brier(s: Array, b: Array) -> float:
    """The sum over classes of (probability - 0 or 1)^2, in the mean."""
    return float(np.square(probabilities(s) - np.eye(s.shape[1])[b]).sum(1).mean())


def class_auc(s: Array, b: Array) -> float:
    """Each class against the rest, in the mean over the classes that occur."""
    p = probabilities(s)
    return float(np.mean([auc(p[:, k], np.where(b == k, 1, -1)) for k in np.unique(b)]))


# ---- without the contrast between organisations ----------------------------------------------------------------------


def auc_within(parts: Sequence[tuple[Array, Array]]) -> float:
    """The same as `auc` of the pairs within each part (scores, labels) only."""
    known = [(auc(s, b), float((b > 0).sum()) * float((b <= 0).sum())) for s, b in parts]
    pairs = sum(n for _, n in known)
    return sum(value * n for value, n in known if n) / pairs if pairs else nan


def r2_within(parts: Sequence[tuple[Array, Array]]) -> float:
    """The part of the labels' variance within each part that is explained."""
    total = sum(float(np.square(b - b.mean()).sum()) for _, b in parts)
    return 1 - sum(float(np.square(s - b).sum()) for s, b in parts) / total if total > 0 else nan


# ---- numbers, counts, survival ---------------------------------------------------------------------------------------


def r2(s: Array, b: Array) -> float:
    """The part of the labels' variance that is explained."""
    total = np.square(b - b.mean()).sum()
    return float(1 - np.square(s - b).sum() / total) if total > 0 else nan


def poisson_deviance(s: Array, b: Array) -> float:
    """2 (b log(b / mean) - b + mean), in the mean; the scores are logarithms of means."""
    logs = np.log(np.where(b > 0, b, 1)) - s
    return float(2 * np.mean(b * logs - b + np.exp(s)))


class Pairs(NamedTuple):
    """Of samples whose order of events is known: how many the scores order rightly (equal ones count half), and all."""

    right: float
    all: int


def concordant(s: Array, b: Array) -> Pairs:
    """Harrell's pairs: one had its event before the other had its own or was last seen; tied events are no pair."""
    times, events = time_and_event(b)
    right, count = 0.0, 0
    index = np.flatnonzero(events)
    for part in np.array_split(index, max(1, len(index) * len(s) // PAIRS)):
        later = (times[part, None] < times) | ((times[part, None] == times) & ~events)
        right += float((later * (0.5 + np.sign(s[part, None] - s) / 2)).sum())
        count += int(later.sum())
    return Pairs(right, count)


def concordance(s: Array, b: Array) -> float:
    """Harrell's: the part of `concordant` pairs that the scores order rightly."""
    right, count = concordant(s, b)
    return right / count if count else nan


def _one(measure: Measure) -> Measure:
    """Of a single score."""
    return lambda s, b: measure(s[:, 0], b)


TWO_CLASSES: dict[str, Measure] = {
    "auc": _one(auc),
    "accuracy": _one(lambda s, b: float(((s > 0) == (b > 0)).mean())),
    "brier": _one(brier),
    "log_loss": _one(log_loss),
    "calibration_intercept": _one(lambda s, b: calibration(s, b).intercept),
    "calibration_slope": _one(lambda s, b: calibration(s, b).slope),
}
CLASSES: dict[str, Measure] = {
    "auc": class_auc,
    "accuracy": lambda s, b: float((s.argmax(1) == b).mean()),
    "brier": class_brier,
    "log_loss": class_log_loss,
}
NUMBERS: dict[str, Measure] = {
    "deviance": _one(lambda s, b: float(np.square(s - b).mean())),
    "mean_absolute_error": _one(lambda s, b: float(np.abs(s - b).mean())),
    "r2": _one(r2),
}
COUNTS: dict[str, Measure] = {
    "deviance": _one(poisson_deviance),
    "mean_absolute_error": _one(lambda s, b: float(np.abs(np.exp(s) - b).mean())),
}
SURVIVAL: dict[str, Measure] = {"concordance": _one(concordance)}
