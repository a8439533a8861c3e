"""The federated fit of one penalty weight, and of a path of them: exact, without a step size, every byte counted.

A path goes in three waves, each in lockstep: the model without features; some of the weights, from there; and all
others, each begun between two that are known. A fold's model begins at that of all rows. Where f is quadratic and its
Gram matrices are known, nobody is asked any more, and the weights come one after the other.

With a compressor gradients travel compressed, in a simulation of the organisations (`compressed.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError, at_least_one, positive, require
from proxfed.fit.compressed import fit_compressed
from proxfed.fit.examine import examined
from proxfed.fit.here import Here
from proxfed.fit.newton import SLOW, Curvature, Fit, Wish
from proxfed.fit.objective import Objective, Shape
from proxfed.fit.oracle import ALL, Part, Traffic, together
from proxfed.fit.own_rows import own_rows
from proxfed.harness.path import chosen_weights
from proxfed.problems.linear.linear import Linear
from proxfed.regularisers import OnBlocks
from proxfed.types import Compressor, Problem, Regulariser

__all__ = ["Fit", "Solver", "Traffic", "Unfinished", "objective_of"]

STRIDE = 6
"""Every so manieth weight of a path is fitted from the model without features; the others begin between two of them."""

LAZY = 0.3
"""As SLOW of one fit, of many that go side by side."""

REMEMBERED = 1 << 25
"""Numbers of all Hessians that are corrected by gradients at the same time."""


class Unfinished(RunError):
    """The rounds were over before the residual was small enough."""

    def __init__(self, reached: str, fit: Fit) -> None:
        super().__init__(f"{reached}: allow more rounds or a larger tolerance")
        self.reached = reached
        self.fit = fit
        """What there is instead."""


def objective_of(f: Linear, folds: int = 0, fold: np.ndarray | None = None, names: Sequence[str] = ()) -> Objective:
    """That of organisations whose tables lie here; `fold` is that of each row."""
    require(f.batch is None, f"batch = {f.batch}: a fit needs full gradients, batch = None")
    double = f.weights.dtype == torch.float64
    require(double, f"dtype = {f.weights.dtype}: a fit needs float64, as its tolerance is far below float32's")
    uniform = f.weighting == "uniform"
    alike = not (uniform and f.class_weights is not None)
    require(alike, "weighting = 'uniform' and class_weights exclude each other in a fit")
    own = own_rows(f.data, f.criterion, intercept=f.intercept, uniform=uniform, folds=folds, fold=fold)
    here = Here(own, tuple(names) or tuple(map(str, range(len(own)))))
    q, p = f.blocks[0].shape
    shape = Shape(q, p, f.intercept)
    return Objective.of(here, f.criterion, shape, l2=f.l2, class_weights=f.class_weights, names=f.data.names)


@dataclass(frozen=True)
class Solver:
    """How fits are made."""

    tolerance: float = 1e-10
    """What may be left of the residual, relative to the gradient at the start."""
    compressor: Compressor | None = None
    """Of what organisations send; None: gradients travel as they are."""
    rounds: int = 20_000
    """For one fit, at most."""
    seed: int = 0
    """Of a random compressor."""
    watch: Callable[[int, float], object] = field(default=lambda t, residual: None, compare=False, repr=False)
    """Called with the rounds of this fit so far and the relative residual."""

    def __post_init__(self) -> None:
        positive(self, "tolerance")
        at_least_one(self, "rounds")

    # ---- of tables that lie here -------------------------------------------------------------------------------

    def fit(self, problem: Problem[Linear], scale: float | None = None) -> Fit:
        """The minimiser of phi, from the problem's start; `scale` is that of another fit of this f."""
        if self.compressor is not None:
            objective_of(problem.f)  # what is wrong with it
            args = (self.tolerance, self.rounds, self.seed, self.watch, scale)
            return self._finished([fit_compressed(problem, self.compressor, *args)])[0]
        objective = objective_of(problem.f)
        return self.one(objective, problem.h, problem.x0, scale)

    def path(self, problem: Problem[Linear], weights: int | Sequence[float] = 50, smallest: float = 1e-3) -> list[Fit]:
        """A fit for every weight of h, from the largest to the smallest.

        weights: decreasing; or how many, from where the solution is zero down to `smallest` of it. The traffic of all
        is counted with the first fit.
        """
        if self.compressor is not None:
            return self._compressed_path(problem, weights, smallest)
        return self.along(objective_of(problem.f), problem.h, weights, smallest)

    def _compressed_path(self, problem: Problem[Linear], weights: int | Sequence[float], smallest: float) -> list[Fit]:
        """One after the other, each begun at the last."""
        objective = objective_of(problem.f)
        fits: list[Fit] = []
        x, before = None, objective.organisations.traffic
        for weight in chosen_weights(problem.h, weights, smallest, lambda: self._largest(objective, problem.h)):
            this = problem.with_h(problem.h.with_weight(weight))
            fit = self.fit(this if x is None else this.starting_at(x), fits[0].scale if fits else None)
            spent = fit.traffic if fits else fit.traffic + (objective.organisations.traffic - before)
            fits.append(replace(fit, weight=weight, traffic=spent))
            x = fit.x
        return fits

    def after(self, objective: Objective | None, problem: Problem[Linear], begin: Fit) -> Fit:
        """The model itself, after a path that was fitted less exactly: from its fit with the same weight.

        What a compressor has not sent yet is forgotten between two fits: a start close by would be no help.
        """
        if objective is None:
            return replace(self.fit(replace(problem, x0=None), begin.scale), weight=begin.weight)
        fit = self.one(objective, problem.h, begin.x, begin.scale, begin.curvature)
        return replace(fit, weight=begin.weight)

    # ---- of an objective, whoever answers ----------------------------------------------------------------------

    def one(
        self,
        objective: Objective,
        h: Regulariser,
        x: Tensor | None = None,
        scale: float | None = None,
        curvature: Curvature | None = None,
    ) -> Fit:
        """The minimiser of phi, from x or from zero."""
        before = objective.organisations.traffic if x is not None or scale is not None else Traffic()
        if x is None:
            x, found = objective.begin()
            scale = scale or found
        wish = self._wish(objective, h, x, scale, curvature=curvature)
        (fit,) = self._finished(together(objective.organisations, [replace(wish, watch=self.watch).asking()]))
        return replace(examined(objective, fit), traffic=objective.organisations.traffic - before)

    def along(
        self, objective: Objective, h: Regulariser, weights: int | Sequence[float] = 50, smallest: float = 1e-3
    ) -> list[Fit]:
        """A path on all rows."""
        null: list[Fit] = []

        def largest() -> float:
            null.append(self.at_zero(objective, h))
            return h.weight_max(null[0].gradient)

        chosen = chosen_weights(h, weights, smallest, largest)
        x: Tensor
        scale: float | None
        if null:
            x, scale, curvature = null[0].x, null[0].scale, _whole(null[0].curvature)
        else:
            (x, scale), curvature = objective.begin(), None
        wishes = [self._wish(objective, h.with_weight(w), x, scale, curvature=curvature) for w in chosen]
        fits = self._chain(objective, wishes) if objective.exact else self._waves(objective, wishes, chosen)
        traffic = objective.organisations.traffic
        spent = [traffic] + [Traffic()] * (len(fits) - 1)
        each = zip(fits, chosen, spent, strict=True)
        return [replace(fit, weight=weight, traffic=traffic) for fit, weight, traffic in each]

    def on_folds(self, objective: Objective, fits: Sequence[Fit], tolerance: float) -> list[list[Fit]]:
        """For every fold, the path of its other rows, begun at that of all rows."""
        paths = []
        for k in range(objective.folds):
            part = Part(k)
            solver = replace(self, tolerance=tolerance)
            wishes = [
                solver._wish(objective, fit.h, fit.x, fits[0].scale, part, fit.curvature, len(fits) * objective.folds)
                for fit in fits
            ]
            if objective.exact:
                wishes = [replace(wish, curvature=None) for wish in wishes]
            paths.append(wishes)
        if objective.exact:
            return [self._chain(objective, path) for path in paths]
        found = self._finished(together(objective.organisations, [wish.asking() for path in paths for wish in path]))
        return [found[i : i + len(fits)] for i in range(0, len(found), len(fits))]

    def at_zero(self, objective: Objective, h: Regulariser) -> Fit:
        """The fit with all that the weight of h acts on at zero: h.weight_max(gradient) is where a path begins."""
        name = type(h.parts[0][1] if isinstance(h, OnBlocks) else h).__name__
        require(h.thresholds, f"{name} has no weight from which on zero is the solution")
        return self.one(objective, h.held_at_zero(objective.d))

    def _largest(self, objective: Objective, h: Regulariser) -> float:
        return h.weight_max(self.at_zero(objective, h).gradient)

    def _wish(
        self,
        objective: Objective,
        h: Regulariser,
        x: Tensor,
        scale: float | None,
        part: Part = ALL,
        curvature: Curvature | None = None,
        beside: int = 1,
    ) -> Wish:
        columns = objective.organisations.hessian_columns
        remember = beside * min(objective.d, columns) ** 2 <= REMEMBERED
        return Wish(
            h,
            x,
            objective.mean(part),
            part,
            self.tolerance,
            scale,
            curvature,
            hessians=columns,
            rounds=self.rounds,
            slow=SLOW if beside == 1 else LAZY,
            exact=objective.exact,
            bound=objective.bound(part),
            remember=remember,
        )

    def _chain(self, objective: Objective, wishes: Sequence[Wish]) -> list[Fit]:
        """One after the other, each begun at the last."""
        fits: list[Fit] = []
        for wish in wishes:
            if fits:
                wish = replace(wish, x=fits[-1].x, curvature=fits[-1].curvature)
            fits += self._finished(together(objective.organisations, [wish.asking()]))
        return fits

    def _waves(self, objective: Objective, wishes: Sequence[Wish], weights: Sequence[float]) -> list[Fit]:
        """Every STRIDEth first, then what lies between them."""
        last = len(wishes) - 1
        coarse = sorted({*range(0, last + 1, STRIDE), last})
        found = dict(zip(coarse, self._all(objective, [wishes[k] for k in coarse]), strict=True))
        between = [k for k in range(last + 1) if k not in found]
        begun = []
        for k in between:
            a, b = max(c for c in coarse if c < k), min(c for c in coarse if c > k)
            share = (weights[a] - weights[k]) / (weights[a] - weights[b])
            near = found[a if k - a <= b - k else b]
            x = (1 - share) * found[a].x + share * found[b].x
            begun.append(replace(wishes[k], x=x, curvature=near.curvature))
        found |= zip(between, self._all(objective, begun), strict=True)
        return [found[k] for k in range(last + 1)]

    def _all(self, objective: Objective, wishes: Iterable[Wish]) -> list[Fit]:
        return self._finished(together(objective.organisations, [wish.asking() for wish in wishes]))

    def _finished(self, fits: list[Fit]) -> list[Fit]:
        for fit in fits:
            if not fit.finished:
                reached = f"after {fit.asked} rounds the residual is {fit.residual:.2g}, not {self.tolerance:g}"
                raise Unfinished(reached, fit)
        return fits


def _whole(curvature: Curvature | None) -> Curvature | None:
    """That of the model without features, if it is one of all coordinates."""
    return curvature if curvature is not None and curvature.columns is None else None
