"""The linear model of a consortium, as statisticians expect it: an intercept that no penalty touches, and every sample
of every organisation with its own weight in one mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxfed.data.federated import Federated
from proxfed.errors import require
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import find_loss
from proxfed.regularisers import GroupLasso, SparseGroup, Zero
from proxfed.types import Problem, Regulariser


def linear_model(
    data: Federated,
    loss: Loss | str,
    penalty: Regulariser = Zero(),
    *,
    groups: Mapping[str, Sequence[str]] | Mapping[str, str] | None = None,
    class_weights: str | dict[str, float] | None = None,
    intercept: bool = True,
    weighting: str = "size",
) -> Problem[Linear]:
    """sum_i p_i f_i + penalty(weights), which is that of the pooled samples: p_i is the organisation's part of them.

    groups      of a GroupLasso or SparseGroup, by the names of the features: those of a group are kept or zero together
    intercept   of Cox's model there is none: the baseline hazard of each organisation takes its place
    """
    f = Linear(
        data,
        loss,
        intercept=intercept and find_loss(loss).separate,
        class_weights=class_weights,
        weighting=weighting,
    )
    if groups is not None:
        takes = isinstance(penalty, (GroupLasso, SparseGroup))
        require(
            takes, f"groups = {groups!r:.80}: {type(penalty).__name__} has no groups, GroupLasso and SparseGroup do"
        )
        penalty = penalty.with_labels(f.feature_groups(groups))  # type: ignore[attr-defined]
    return f + penalty
