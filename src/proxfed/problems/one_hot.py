"""Least squares on classes: |s - e_b|^2 / 2, where e_b is 1 at the class and 0 elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import require


@dataclass(frozen=True)
class OneHot:
    """Squared distance to the one-hot class, summed over the outputs."""

    curvature: float = field(default=1.0, init=False)

    def outputs(self, data: Federated) -> int:
        require(data.classes is not None, f"one-hot least squares needs class labels, but {data.name} has none")
        return int(data.classes or 0)

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return (s - _one_hot(s, b)).square().sum(1) / 2

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return s.sub_(_one_hot(s, b))

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"accuracy": float((s.argmax(1) == b).double().mean()), "test_loss": float(self.value(s, b).mean())}


def _one_hot(s: Tensor, b: Tensor) -> Tensor:
    return torch.zeros_like(s).scatter_(1, b[:, None], 1.0)
