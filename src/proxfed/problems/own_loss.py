"""Losses of your own: any function or torch module of (scores, labels), such as nn.CrossEntropyLoss(weight=...).

f_i is the mean over samples, so a loss must return one number per sample. Torch's losses, and others with a
`reduction`, are called with "none".
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from proxfed.data.federated import Federated
from proxfed.errors import InputError, require
from proxfed.explained import explain
from proxfed.problems.losses import ACCURACY, TEST_LOSS, Loss
from proxfed.types import Measure

__all__ = ["OwnLoss"]


@dataclass(frozen=True)
class OwnLoss(Loss):
    """A loss of networks given as a function: of classes if the data have classes, else of numbers."""

    call: Callable[..., Any]
    """(scores (m, outputs), labels (m,)) -> (m,); with one output, scores are (m,)."""
    width: int | None = None
    """Scores per sample; None: one per class, or one number."""

    curvature: ClassVar[float] = inf
    measures: ClassVar[tuple[Measure | str, ...]] = (TEST_LOSS,)

    def outputs(self, data: Federated) -> int:
        return 1 if self.width is None else self.width

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        c, outputs, m = s.shape
        flat = s.mT.reshape(c * m, outputs)
        found = self._each(flat[:, 0] if outputs == 1 else flat, b.reshape(-1))
        each = isinstance(found, Tensor) and found.shape == (c * m,)
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        require(each, f"loss = {self.call!r:.60} must return a number for each of {c * m} samples, not {shape}")
        return found.view(c, m)

    def _each(self, s: Tensor, b: Tensor) -> Any:
        if isinstance(self.call, nn.Module):
            module: Any = copy.deepcopy(self.call).to(s.device, s.dtype)
            if hasattr(module, "reduction"):
                module.reduction = "none"
            return module(s, b)
        return self.call(s, b, reduction="none") if _has_reduction(self.call) else self.call(s, b)

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = s.detach().requires_grad_()
            return torch.autograd.grad(self.value(leaf, b).sum(), leaf)[0]

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        return s[:, 0]


@dataclass(frozen=True)
class OwnLossOfClasses(OwnLoss):
    """The same for labels 0 .. classes-1; the largest score is the predicted class."""

    measures: ClassVar[tuple[Measure | str, ...]] = (ACCURACY, TEST_LOSS)
    classes: ClassVar[bool] = True

    def outputs(self, data: Federated) -> int:
        require(data.classes is not None, f"loss = {self.call!r:.60} of classes, but {data.name} has none")
        return int(data.classes or 0)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": float((s.argmax(1) == b).double().mean())} | super().score(s, b)

    def predict(self, s: Tensor) -> Tensor:
        return s.argmax(1)


def _has_reduction(call: Callable[..., Any]) -> bool:
    try:
        return "reduction" in inspect.signature(call).parameters
    except ValueError:  # functions written in C may have no signature
        return False


def as_own(loss: Any) -> OwnLoss | None:
    """A callable as a loss; None if it is not callable."""
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise InputError(f"loss = {loss.__name__} is a class: give an object, {loss.__name__}()")
    return OwnLoss(loss) if callable(loss) and not isinstance(loss, (str, Loss, type)) else None


explain(__name__)
