"""Losses of a model's scores, with their derivatives: squared, Huber, logistic, softmax and Poisson.

All of them are separable: a sample's loss depends on its own score. A loss that is not, such as Cox's, sets
`separate = False` and handles the samples' weights itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import positive, require
from proxfed.explained import explain
from proxfed.types import Measure

__all__ = [
    "CrossEntropy",
    "Huber",
    "Logistic",
    "Loss",
    "MeanSquared",
    "OfClasses",
    "OneHot",
    "Poisson",
    "Softmax",
    "Squared",
]

Bend = Callable[[Tensor], Tensor]
"""(c, outputs, samples) -> (c, outputs, samples): a symmetric matrix for every sample or client."""

ACCURACY, TEST_LOSS = Measure("accuracy", "higher"), Measure("test_loss", "lower")


class Loss(ABC):
    """A loss of the scores s, (c, outputs, samples), given the labels b, (c, samples)."""

    curvature: ClassVar[float]
    """The largest eigenvalue of its Hessian in s; infinite if unbounded."""
    least_curvature: ClassVar[float] = 0.0
    """The smallest eigenvalue of its Hessian over all s."""
    measures: ClassVar[tuple[Measure | str, ...]]
    """The measures that `score` returns: Measure("test_loss", "lower"); a bare name has no direction."""
    classes: ClassVar[bool] = False
    """Whether labels are whole numbers, with a score per class."""
    separate: ClassVar[bool] = True
    """Whether the loss of a sample depends on its own score alone."""
    twice_differentiable: ClassVar[bool] = True
    """Whether it has a second derivative everywhere, given by `bend`."""

    @abstractmethod
    def outputs(self, data: Federated) -> int:
        """The number of scores per sample of these data; refuses labels that do not fit the loss."""

    @abstractmethod
    def value(self, s: Tensor, b: Tensor) -> Tensor:
        """(c, samples)."""

    def least(self, b: Tensor) -> Tensor:
        """(samples,): the lowest value over all scores for each label b (samples,)."""
        return torch.zeros(len(b), dtype=torch.float64)

    @abstractmethod
    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        """The derivative of the sum of the losses in s, (c, outputs, samples); may overwrite s."""

    def second(self, s: Tensor, b: Tensor) -> Tensor:
        """The second derivatives of each sample's loss in its scores, (c, outputs, outputs, samples)."""
        bend, unit = self.bend(s, b), torch.eye(s.shape[1]).to(s)[:, None, :, None]
        return torch.stack([bend(direction.expand_as(s)) for direction in unit], 1)

    def weighted_value(self, s: Tensor, b: Tensor, v: Tensor) -> Tensor:
        """The value with weights v, (c, samples)."""
        return self.value(s, b).mul_(v)

    def weighted_slope(self, s: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return self.slope(s, b).mul_(v[:, None])

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        """The second derivative in s, optionally with weights v, (c, samples), as a linear map of directions
        (c, outputs, samples). By default `value` is differentiated twice."""

        def times(r: Tensor) -> Tensor:
            with torch.enable_grad():
                at = s.detach().clone().requires_grad_()
                each = self.value(at, b) if v is None else self.weighted_value(at, b, v)
                (g,) = torch.autograd.grad(each.sum(), at, create_graph=True)
                return torch.autograd.grad((g * r).sum(), at)[0]

        return times

    @abstractmethod
    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        """Measures on held-out data."""

    @abstractmethod
    def predict(self, s: Tensor) -> Tensor:
        """The predicted labels, (c, samples)."""


@dataclass(frozen=True)
class Squared(Loss):
    """Least squares: (s - b)^2 / 2."""

    curvature: ClassVar[float] = 1.0
    least_curvature: ClassVar[float] = 1.0
    measures: ClassVar[tuple[Measure | str, ...]] = (TEST_LOSS,)

    def outputs(self, data: Federated) -> int:
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s[:, 0] - b).square() / 2

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(b[:, None])

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        return _times(torch.ones_like(s), v)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        return s[:, 0]


@dataclass(frozen=True)
class Huber(Loss):
    """Least squares robust to outliers: with r = s - b, r^2 / 2 up to |r| = delta, and linear beyond."""

    delta: float = 1.35
    """The residual from which on the loss is linear, in the unit of the labels."""

    curvature: ClassVar[float] = 1.0
    measures: ClassVar[tuple[Measure | str, ...]] = (TEST_LOSS,)
    twice_differentiable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, "delta")

    def outputs(self, data: Federated) -> int:
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.huber_loss(s[:, 0], b, reduction="none", delta=self.delta)

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(b[:, None]).clamp_(-self.delta, self.delta)

    def second(self, s: Tensor, b: Tensor) -> Tensor:
        return ((s - b[:, None]).abs() <= self.delta).to(s)[:, None]

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        return s[:, 0]


@dataclass(frozen=True)
class Poisson(Loss):
    """Poisson regression of counts, labels >= 0, with the logarithm as link: exp(s) - b s.

    The curvature of exp is unbounded, so there is no smoothness constant: step sizes are found by a line search.
    """

    curvature: ClassVar[float] = inf
    measures: ClassVar[tuple[Measure | str, ...]] = (TEST_LOSS,)

    def outputs(self, data: Federated) -> int:
        least = min(data.labels.tolist(), default=0)
        require(bool(least >= 0), f"Poisson regression takes labels >= 0, but {data.name} has {least:g}")
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return s[:, 0].exp().sub_(b * s[:, 0])

    def least(self, b: Tensor) -> Tensor:
        return b - torch.xlogy(b, b)

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.exp_().sub_(b[:, None])

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        return _times(s.exp(), v)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        return s[:, 0].exp()


@dataclass(frozen=True)
class Logistic(Loss):
    """Binary logistic regression, labels -1 and +1: log(1 + exp(-b s))."""

    curvature: ClassVar[float] = 0.25
    measures: ClassVar[tuple[Measure | str, ...]] = (ACCURACY, TEST_LOSS)

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

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        e = s.abs().neg().exp()
        return _times(e / (1 + e).square(), v)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": _share(s[:, 0] * b > 0), "test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        return torch.where(s[:, 0] > 0, 1.0, -1.0).to(s)


@dataclass(frozen=True)
class OfClasses(Loss):
    """Losses of labels 0 .. classes-1, with one output per class; the largest output is the predicted class."""

    what: ClassVar[str]
    """The name of the loss in error messages about labels."""
    measures: ClassVar[tuple[Measure | str, ...]] = (ACCURACY, TEST_LOSS)
    classes: ClassVar[bool] = True

    def outputs(self, data: Federated) -> int:
        require(data.classes is not None, f"{self.what} needs class labels, but {data.name} has none")
        return int(data.classes or 0)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {
            "accuracy": _share(s.argmax(1) == b),
            "test_loss": float(self.value(s, b).mean()),
        }

    def predict(self, s: Tensor) -> Tensor:
        return s.argmax(1)


@dataclass(frozen=True)
class Softmax(OfClasses):
    """Softmax regression, labels 0 .. classes-1: cross-entropy."""

    what: ClassVar[str] = "softmax regression"
    curvature: ClassVar[float] = 0.5

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(s, b, reduction="none")

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.softmax(1).scatter_(1, b[:, None], -1.0, reduce="add")

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        p = s.softmax(1)
        weighted = p if v is None else p * v[:, None]
        return lambda r: weighted * (r - (p * r).sum(1, keepdim=True))


@dataclass(frozen=True)
class OneHot(OfClasses):
    """Least squares on classes: |s - e_b|^2 / 2, where e_b is 1 at the class and 0 elsewhere."""

    what: ClassVar[str] = "one-hot least squares"
    curvature: ClassVar[float] = 1.0
    least_curvature: ClassVar[float] = 1.0

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s - _one_hot(s, b)).square().sum(1) / 2

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(_one_hot(s, b))

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        return _times(torch.ones_like(s), v)


@dataclass(frozen=True)
class MeanSquared(OfClasses):
    """Least squares on classes as in torch's MSELoss: |s - e_b|^2 / outputs, which is 2/outputs times `OneHot`."""

    what: ClassVar[str] = "one-hot least squares"
    curvature: ClassVar[float] = 1.0  # an upper bound of 2/outputs

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s - _one_hot(s, b)).square().mean(1)

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(_one_hot(s, b)).mul_(2 / s.shape[1])

    def bend(self, s: Tensor, b: Tensor, v: Tensor | None = None) -> Bend:
        return _times(torch.full_like(s, 2 / s.shape[1]), v)


CrossEntropy = Softmax


def _times(each: Tensor, v: Tensor | None) -> Bend:
    """Multiplication by a number per score."""
    weighted = each if v is None else each * v[:, None]
    return lambda r: weighted * r


def _some(values: np.ndarray) -> str:
    return ", ".join(f"{v:g}" for v in values[:4]) + (", ..." if len(values) > 4 else "")


def _share(right: Tensor) -> float:
    """The share of true entries, on the CPU, since not every device has float64."""
    return float(right.cpu().double().mean())


def _one_hot(s: Tensor, b: Tensor) -> Tensor:
    return torch.zeros_like(s).scatter_(1, b[:, None], 1.0)


explain(__name__)
