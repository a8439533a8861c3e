"""Problems: what f is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from proxfed.problems.linear import Linear
from proxfed.problems.losses import Logistic, Softmax, Squared
from proxfed.problems.network import Model
from proxfed.registry import Registry

PROBLEMS: Registry[Callable[..., Any]] = Registry(
    "problems",
    {
        "least_squares": partial(Linear, loss=Squared()),
        "logistic": partial(Linear, loss=Logistic()),
        "network": Model,
        "softmax": partial(Linear, loss=Softmax()),
    },
)
"""Makers of problems by the names that configuration files use."""
