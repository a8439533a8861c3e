"""The models at which a site is queried: a path from the start of a job in bounded steps."""

from __future__ import annotations

import torch
from torch import Tensor

MOST, BYTES = 64, 1 << 28
"""The maximum number of stored models, and of their bytes."""


class Trajectory:
    """The models of all jobs of a family, which begin at the same point or at zero."""

    def __init__(self, start: Tensor) -> None:
        start = start.detach().double().cpu()
        self.known = [torch.zeros_like(start), start]

    def far(self, x: Tensor) -> float:
        """The distance from the nearest stored model; 0 for a vector of another length."""
        x = x.detach().double().cpu().flatten()
        if x.shape != self.known[0].shape:
            return 0.0
        return min(float((x - y).norm()) for y in self.known)

    def add(self, x: Tensor) -> None:
        """Store x; the oldest models except the start are dropped."""
        x = x.detach().double().cpu().flatten()
        if x.shape == self.known[0].shape and not any(torch.equal(x, y) for y in self.known[-2:]):
            room = max(4, min(MOST, BYTES // max(1, 8 * x.numel())))
            self.known = [*self.known[:2], *self.known[2:][2 - room :], x]
