"""The networks as PyTorch modules, for the contenders that use PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from workload import Workload


def net(work: Workload) -> nn.Sequential:
    """At the common start."""
    if len(work.sample) == 1:
        layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    else:
        layers = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(1024, 500), nn.ReLU(), nn.Linear(500, 10)]
    made = nn.Sequential(*layers)
    with torch.no_grad():
        for p, value in zip(made.parameters(), work.start(), strict=True):
            p.copy_(torch.from_numpy(value))
    return made


@torch.no_grad()
def loss_of(model: nn.Module, work: Workload) -> float:
    x, y = work.seen()
    return float(nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)))
