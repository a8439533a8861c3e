"""What is known of how far a model can be trusted, beside its measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from proxfed.fit.baselines import scores
from proxfed.fit.metrics import Bin, NetBenefit, calibration_curve, counted_by_score, decision_curve
from proxfed.fit.objective import Objective
from proxfed.fit.resampling import Optimism, Stability, optimism, refit_with, stability
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Solver
from proxfed.problems.linear.linear import Linear
from proxfed.types import Problem

BINS = 5
"""Of the calibration curve of one organisation; fewer where a bin would have few rows of a class."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Of rows that the model has not seen, unless it says otherwise; what was not asked for is empty."""

    by_organisation: dict[str, list[Bin]] = field(default_factory=dict)
    """Predicted and observed probabilities of two classes, of each organisation."""
    decisions: list[NetBenefit] = field(default_factory=list)
    """Of two classes, over all organisations."""
    nested: list[float] = field(default_factory=list)
    """The weights that were chosen without each fold."""
    optimism: dict[str, Optimism] = field(default_factory=dict)
    """By measure."""
    stability: Stability | None = None


def of_two_classes(
    s: np.ndarray, labels: np.ndarray, sizes: Sequence[int], names: Sequence[str], fewest: int
) -> Validation:
    """From scores and labels (-1, +1), sorted by organisation."""
    ends = np.cumsum(sizes)
    curves = {}
    for name, size, end in zip(names, sizes, ends, strict=True):
        if curve := coarse_curve(s[end - size : end], labels[end - size : end], fewest):
            curves[name] = curve
    return Validation(curves, decision_curve(counted_by_score(s, labels)))


def coarse_curve(s: np.ndarray, labels: np.ndarray, fewest: int) -> list[Bin]:
    """With so few bins that none has 1 to fewest - 1 rows of a class; none where that cannot be."""
    for bins in range(BINS, 0, -1):
        curve = calibration_curve(s, labels, bins)
        positive = [round(b.samples * b.observed) for b in curve]
        cells = [count for b, count in zip(curve, positive, strict=True) for count in (count, b.samples - count)]
        if all(count == 0 or count >= fewest for count in cells):
            return curve
    return []


def resampled(
    fitted_to: Problem[Linear],
    x: Tensor,
    asked: Settings,
    solver: Solver,
    objective: Callable[[Linear], Objective],
    units: np.ndarray | None,
    watch: Callable[[str, int, int], object],
) -> tuple[dict[str, Optimism], Stability | None]:
    """What is asked for of draws of the rows; `objective` is made of the rows of a draw."""
    refit = refit_with(solver, objective)
    optimistic: dict[str, Optimism] = {}
    if asked.optimism:
        watch("fitting to rows drawn again", 0, 1)
        optimistic = optimism(
            fitted_to,
            x,
            refit,
            lambda of, model: scores(of, model, np.asarray(of.f.data.features)),
            asked.optimism,
            asked.seed,
            units,
        )
    stable = None
    if asked.stability:
        watch("fitting to halves of the rows", 0, 1)
        stable = stability(fitted_to, x, refit, asked.stability, asked.seed, units)
    return optimistic, stable
