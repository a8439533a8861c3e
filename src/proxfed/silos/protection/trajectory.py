"""The models that a site is asked about: a path that it can follow, from the start of a job in bounded steps."""

from __future__ import annotations

import torch
from torch import Tensor

MOST, BYTES = 64, 1 << 28
"""Models that are remembered, and the memory that they may take."""


class Trajectory:
    """Of all jobs of a family, which begin at the same point or at zero."""

    def __init__(self, start: Tensor) -> None:
        start = start.detach().double().cpu()
        self.known = [torch.zeros_like(start), start]

    def far(self, x: Tensor) -> float:
        """The distance from the nearest model that is known; 0 of a vector of another length."""
        x = x.detach().double().cpu().flatten()
        if x.shape != self.known[0].shape:
            return 0.0
        return min(float((x - y).norm()) for y in self.known)

    def add(self, x: Tensor) -> None:
        """From now on it is known; of the oldest ones the start stays."""
        x = x.detach().double().cpu().flatten()
        if x.shape == self.known[0].shape and not any(torch.equal(x, y) for y in self.known[-2:]):
            room = max(4, min(MOST, BYTES // max(1, 8 * x.numel())))
            self.known = [*self.known[:2], *self.known[2:][2 - room :], x]
