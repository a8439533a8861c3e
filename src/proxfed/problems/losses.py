"""Losses of a model's scores, with their derivatives: least squares, logistic and softmax regression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import require


class Loss(Protocol):
    """A loss of the scores s, (c, outputs, samples), given the labels b, (c, samples)."""

    @property
    def curvature(self) -> float:
        """The largest eigenvalue of its Hessian in s."""

    @property
    def least_curvature(self) -> float:
        """The smallest eigenvalue of its Hessian in any s."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what `score` returns."""

    def outputs(self, data: Federated) -> int: ...

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        """(c, samples)."""

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        """The derivative in s, (c, outputs, samples); may overwrite s."""

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        """Measures on held-out data."""


@dataclass(frozen=True)
class Squared:
    """Least squares: (s - b)^2 / 2."""

    curvature: float = field(default=1.0, init=False)
    least_curvature: float = field(default=1.0, init=False)
    measures: tuple[str, ...] = field(default=("test_loss",), init=False)

    def outputs(self, data: Federated) -> int:
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s[:, 0] - b).square() / 2

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(b[:, None])

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}


@dataclass(frozen=True)
class Logistic:
    """Binary logistic regression, labels -1 and +1: log(1 + exp(-b s))."""

    curvature: float = field(default=0.25, init=False)
    least_curvature: float = field(default=0.0, init=False)
    measures: tuple[str, ...] = field(default=("accuracy", "test_loss"), init=False)

    def outputs(self, data: Federated) -> int:
        found = np.unique(np.asarray(data.labels))
        require(
            bool(np.isin(found, (-1, 1)).all()),
            f"logistic regression takes labels -1 and +1, but {data.name} has {_some(found)}",
        )
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-b * s[:, 0])

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        b = b[:, None]
        return s.mul_(b).neg_().sigmoid_().mul_(b).neg_()

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": float((s[:, 0] * b > 0).double().mean()), "test_loss": float(self.value(s, b).mean())}


@dataclass(frozen=True)
class Softmax:
    """Softmax regression, labels 0 .. classes-1: cross-entropy."""

    curvature: float = field(default=0.5, init=False)
    least_curvature: float = field(default=0.0, init=False)
    measures: tuple[str, ...] = field(default=("accuracy", "test_loss"), init=False)

    def outputs(self, data: Federated) -> int:
        require(data.classes is not None, f"softmax regression needs class labels, but {data.name} has none")
        return int(data.classes or 0)

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(s, b, reduction="none")

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.softmax(1).scatter_(1, b[:, None], -1.0, reduce="add")

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": float((s.argmax(1) == b).double().mean()), "test_loss": float(self.value(s, b).mean())}


@dataclass(frozen=True)
class OneHot:
    """Least squares on classes: |s - e_b|^2 / 2, where e_b is 1 at the class and 0 elsewhere."""

    curvature: float = field(default=1.0, init=False)
    least_curvature: float = field(default=1.0, init=False)
    measures: tuple[str, ...] = field(default=("accuracy", "test_loss"), init=False)

    def outputs(self, data: Federated) -> int:
        require(data.classes is not None, f"one-hot least squares needs class labels, but {data.name} has none")
        return int(data.classes or 0)

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s - _one_hot(s, b)).square().sum(1) / 2

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(_one_hot(s, b))

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": float((s.argmax(1) == b).double().mean()), "test_loss": float(self.value(s, b).mean())}


def _some(values: np.ndarray) -> str:
    return ", ".join(f"{v:g}" for v in values[:4]) + (", ..." if len(values) > 4 else "")


def _one_hot(s: Tensor, b: Tensor) -> Tensor:
    return torch.zeros_like(s).scatter_(1, b[:, None], 1.0)
