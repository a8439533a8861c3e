"""Problems: what f is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from proxfed.errors import require
from proxfed.problems.cox import Cox
from proxfed.problems.linear import Linear
from proxfed.problems.losses import Huber, Logistic, Poisson, Softmax, Squared
from proxfed.problems.network import Model
from proxfed.registry import Registry

PROBLEMS: Registry[Callable[..., Any]] = Registry(
    "problems",
    {
        "cox": partial(Linear, loss=Cox()),
        "huber": partial(Linear, loss=Huber()),
        "least_squares": partial(Linear, loss=Squared()),
        "logistic": partial(Linear, loss=Logistic()),
        "network": Model,
        "poisson": partial(Linear, loss=Poisson()),
        "softmax": partial(Linear, loss=Softmax()),
        "linear": Linear,  # last: a problem that has a name of its own is called by that
    },
)
"""Makers of problems by the names that configuration files use."""


def canonical(table: dict[str, Any]) -> dict[str, Any]:
    """The table of a problem in the words of its class: `weight_decay` is another one for `l2`."""
    require(not {"l2", "weight_decay"} <= table.keys(), "problem: l2 and weight_decay are the same; give one of them")
    return {"l2" if key == "weight_decay" else key: value for key, value in table.items()}
