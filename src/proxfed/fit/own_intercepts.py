"""An intercept for every organisation, in fits with a penalty: it is solved for at every point, and stays there.

An organisation sends the loss profiled over its intercept (own_profile.py). The profile is convex if the loss is, so
that every solver, path and fold works as without intercepts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.here import Here
from proxfed.fit.objective import Objective, Shape
from proxfed.fit.oracle import ALL, Part
from proxfed.fit.own_profile import FURTHEST
from proxfed.fit.own_rows import own_rows
from proxfed.problems.linear.linear import Linear


def profiled(f: Linear, folds: int = 0, fold: np.ndarray | None = None, names: Sequence[str] = ()) -> Objective:
    """As `objective_of`, of a model without an intercept, to which every organisation adds its own."""
    require(not f.intercept, "site_intercepts: the model has an intercept for all organisations already")
    own = own_rows(f.data, f.criterion, intercept=False, folds=folds, fold=fold)
    here = Here(own, tuple(names) or tuple(map(str, range(len(own))))).adding_intercepts()
    shape = Shape(1, f.blocks[0].shape[1], False)
    return Objective.of(here, f.criterion, shape, l2=f.l2, class_weights=f.class_weights, names=f.data.names)


def shifts(objective: Objective, x: Tensor, part: Part = ALL) -> list[float]:
    """The intercepts that organisations add at x; what they know, and nobody else."""
    here = objective.organisations
    assert isinstance(here, Here)
    return [float(np.clip(a, -FURTHEST, FURTHEST)) for a in here.intercepts(x, part).values()]
