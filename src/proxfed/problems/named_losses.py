"""Losses by name."""

from __future__ import annotations

from typing import Any

from proxfed.errors import nearest, require
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import CrossEntropy, Huber, Logistic, Loss, MeanSquared, OneHot, Poisson, Squared
from proxfed.registry import Registry, build

LOSSES: dict[str, Loss] = {
    "squared": Squared(),
    "huber": Huber(),
    "logistic": Logistic(),
    "cross_entropy": CrossEntropy(),
    "one_hot": OneHot(),
    "mse": MeanSquared(),
    "poisson": Poisson(),
    "cox": Cox(),
}
"""The losses by the names that problems accept instead of an object."""


KINDS: Registry[type[Loss]] = Registry("losses", {name: type(loss) for name, loss in LOSSES.items()})


def find_loss(loss: Any) -> Loss:
    """The loss for a name or a table such as {name = "huber", delta = 2.0}; a Loss is returned as it is."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, dict):
        return build(KINDS, loss, "loss")
    hint = nearest(loss, LOSSES) if isinstance(loss, str) else f"give Squared(), say, or one of {', '.join(LOSSES)}"
    if callable(loss) and not isinstance(loss, type):
        hint = f"only networks take functions; give Squared(), say, or one of {', '.join(LOSSES)}"
    require(isinstance(loss, str) and loss in LOSSES, f"loss = {loss!r} is not a loss; {hint}")
    return LOSSES[loss]
