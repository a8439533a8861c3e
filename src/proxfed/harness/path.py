"""A regularisation path: the models for many weights of h, from the largest to the smallest, with warm starts.

A run that starts at the previous solution needs few rounds, so that a whole path costs as much as a few cold starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import InputError, finite, real, require, whole
from proxfed.explained import explain
from proxfed.harness.compare import run
from proxfed.problems.linear.coefficients import Coefficients
from proxfed.problems.linear.linear import Linear
from proxfed.types import Algorithm, Problem, Regulariser

__all__ = ["Path", "chosen_weights", "penalty_path"]


@dataclass(frozen=True, eq=False)
class Path:
    """The models of one path, by decreasing weight."""

    problem: Problem
    weights: tuple[float, ...]
    """(k,): the weights of the regulariser."""
    models: Tensor
    """(k, d)"""
    rows: tuple[dict[str, Any], ...]
    """(k,): the measures of each model: the last row of its run, and its `weight`."""

    @property
    def objective(self) -> np.ndarray:
        """(k,) phi at each model, with its own weight."""
        return self._column("objective")

    @property
    def nonzeros(self) -> np.ndarray:
        """(k,) non-zero coordinates of each model."""
        return self._column("nonzeros")

    def coefficients(self, nonzero: bool = False) -> list[Coefficients]:
        """The coefficients of each model, by the names of the features."""
        f = self.problem.f
        if not isinstance(f, Linear):
            raise InputError(f"only linear models have coefficients by name, not {f}")
        return [f.coefficients(x, nonzero) for x in self.models]

    def _column(self, name: str) -> np.ndarray:
        require(name in self.rows[0], f"the path has no {name!r}, only {', '.join(self.rows[0])}")
        return np.array([row[name] for row in self.rows])


def penalty_path(
    problem: Problem,
    algorithm: Algorithm,
    weights: int | Sequence[float] = 20,
    *,
    rounds: int,
    smallest: float = 1e-3,
    **options: Any,
) -> Path:
    """Run `algorithm` for a sequence of weights of the problem's regulariser, each from the previous solution.

    Parameters
    ----------
    problem : Problem
        Its regulariser has a weight.
    algorithm : Algorithm
        An object such as FedComposite(0.5, tau=5).
    weights : int or sequence of float
        The weights in decreasing order; or their number, from problem.alpha_max(), where the solution is zero, down to
        `smallest` times that, on a logarithmic scale.
    rounds : int
        Communication rounds for each weight.
    smallest : float
        The smallest weight divided by the largest, if `weights` is a number.
    **options : Any
        Options of `run`: seed, topology, participation, every, ...

    Returns
    -------
    Path
        A model and a row of measures for each weight.
    """
    chosen = chosen_weights(problem.h, weights, smallest, problem.alpha_max)
    models: list[Tensor] = []
    rows = []
    for weight in chosen:
        this = problem.with_h(problem.h.with_weight(weight))
        result = run(this.starting_at(models[-1]) if models else this, algorithm, rounds, **{"every": rounds} | options)
        models.append(result.model)
        rows.append({"weight": weight} | result.rows[-1])
    return Path(problem, chosen, torch.stack(models), tuple(rows))


def chosen_weights(
    h: Regulariser, weights: int | Sequence[float], smallest: float, alpha_max: Callable[[], float]
) -> tuple[float, ...]:
    """The weights of a path: as given, or a number of them up to alpha_max, which is computed only then."""
    if whole(weights):
        require(weights >= 1, f"weights = {weights!r} must be at least one, or a list of numbers")  # type: ignore[operator]
        require(real(smallest) and 0 < smallest < 1, f"smallest = {smallest!r} must be in (0, 1)")
        top = alpha_max()
        require(top > 0, f"the solution is zero for every weight of {type(h).__name__}: there is no path")
        return tuple((top * np.geomspace(1, smallest, weights)).tolist())  # type: ignore[arg-type]
    given = np.asarray(weights, object).tolist()
    numbers = isinstance(given, list) and len(given) > 0 and all(finite(w) and w >= 0 for w in given)
    falls = numbers and all(one > two for one, two in pairwise(given))
    require(falls, f"weights = {weights!r} must be a number of weights, or decreasing numbers >= 0")
    return tuple(map(float, given))


explain(__name__)
