"""Problems: the smooth parts f."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from proxfed.explained import explain
from proxfed.problems.linear.cox import Cox
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Huber, Logistic, Poisson, Softmax, Squared
from proxfed.problems.neural.neural import Neural
from proxfed.registry import Registry

__all__ = ["PROBLEMS", "Cox", "Huber", "Linear", "Logistic", "Neural", "Poisson", "Softmax", "Squared"]

PROBLEMS: Registry[Callable[..., Any]] = Registry(
    "problems",
    {
        "cox": partial(Linear, loss=Cox()),
        "huber": partial(Linear, loss=Huber()),
        "least_squares": partial(Linear, loss=Squared()),
        "logistic": partial(Linear, loss=Logistic()),
        "network": Neural,
        "poisson": partial(Linear, loss=Poisson()),
        "softmax": partial(Linear, loss=Softmax()),
        "linear": Linear,  # last: a problem with a more specific name keeps that name
    },
)
"""Constructors of problems by their names in configuration files."""


explain(__name__)
