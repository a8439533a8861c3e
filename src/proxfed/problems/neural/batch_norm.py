"""Batch norm without hidden state.

While a model is trained, a batch is normalised by its own statistics and nothing is remembered. When it is evaluated,
the statistics are computed anew from training data: then they belong to the very x that is judged, an average of
clients' models included, and a run depends on nothing but its rows of parameters.
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
    """Set the statistics that evaluation uses to those of one large batch, exactly."""
    norms = batch_norms(module)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.track_running_stats, norm.momentum = True, 1.0  # 1: the batch replaces what was there
    with torch.no_grad():
        module(samples)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()
