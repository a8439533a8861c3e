"""Batch norm without hidden state.

In training, a batch is normalised by its own statistics, and no running statistics are kept. For evaluation the
statistics are recomputed from training data: so they fit the x that is evaluated, even an average of clients' models,
and a run depends on nothing but its rows of parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [m for m in module.modules() if isinstance(m, _BatchNorm)]


def forget(module: nn.Module) -> None:
    """In training, normalise by the batch's own statistics and keep none."""
    for norm in batch_norms(module):
        norm.track_running_stats = False


def remember(module: nn.Module, samples: Tensor) -> None:
    """Set the statistics for evaluation to the exact statistics of one large batch."""
    norms = batch_norms(module)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.track_running_stats, norm.momentum = True, 1.0  # 1: the batch replaces the old statistics
    with torch.no_grad():
        module(samples)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()
