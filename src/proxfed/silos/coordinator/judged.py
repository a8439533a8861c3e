"""The quality of a model on rows that stay at the sites: measures of single sites, and sums over all."""

from __future__ import annotations

import math

import numpy as np
import torch

from proxfed.fit.cross_validate import CrossValidation
from proxfed.fit.judge import ALL, LOSS, Judgement, Measured
from proxfed.fit.metrics import Bin, NetBenefit, decision_curve
from proxfed.fit.settings import Settings
from proxfed.problems.losses import Logistic
from proxfed.silos.coordinator.elsewhere import Elsewhere
from proxfed.silos.wire.fit_questions import Bootstrap


def judged_between(
    there: Elsewhere, cv: CrossValidation, place: int, asked: Settings
) -> tuple[Judgement, list[Bin], list[NetBenefit]]:
    """(measures over all sites and of those that reveal them, calibration and decision curve of two classes)."""
    loss, error = float(cv.mean[place]), float(cv.standard_error[place])
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(asked.level, dtype=torch.float64)))
    over_all, bins = {LOSS: Measured(loss, loss - z * error, loss + z * error)}, list[Bin]()
    if asked.repetitions == 0:
        over_all = {LOSS: Measured(loss, math.nan, math.nan)}
    decisions: list[NetBenefit] = []
    models = cv.models[:, place]
    if isinstance(there.loss, Logistic):
        counts = there.histogram(models).numpy()
        over_all = {"auc": Measured(area(counts), math.nan, math.nan)} | over_all
        bins = calibration(counts)
        decisions = decision_curve(counts) if counts.sum() else []
    told = there.judged(models, Bootstrap(asked.repetitions, asked.level, asked.seed))
    return told | {ALL: over_all}, bins, decisions


def area(counts: np.ndarray) -> float:
    """AUC from (2, bins) counts of both classes by score; a pair in one bin counts half."""
    other, one = counts
    below = np.cumsum(other) - other
    pairs = one.sum() * other.sum()
    return float(one @ (below + other / 2) / pairs) if pairs else math.nan


def calibration(counts: np.ndarray, parts: int = 10) -> list[Bin]:
    """Predicted and observed rates in bins of about equal size."""
    total = counts.sum(0)
    middle = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    part = np.minimum(parts - 1, (parts * (np.cumsum(total) - total / 2) / max(1, total.sum())).astype(int))
    found = []
    for k in range(parts):
        m = (part == k) & (total > 0)
        if m.any():
            n = total[m].sum()
            found.append(Bin(int(n), float(middle[m] @ total[m] / n), float(counts[1][m].sum() / n)))
    return found
