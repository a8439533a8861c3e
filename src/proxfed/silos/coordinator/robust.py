"""A robust centre of the messages instead of their mean: a few lying clients cannot move it far.

median              coordinate by coordinate; fewer than half of the messages may lie
trimmed_mean        coordinate by coordinate without the `trim` lowest and highest; that many may lie
centred_clipping    v + mean_i clip(m_i - v, radius), three times from the median (Karimireddy, He and Jaggi 2021)

If all messages are equal, the centre is that message. It is the mean for trimmed_mean with trim = 0, and for
centred_clipping if no message is farther than `radius` from the centre. Otherwise honest clients with heterogeneous
data are cut off, too: the fixed point of an exact method then moves by as much as their messages differ.

Weights are ignored: a lying client could claim to be large. Under masks there is nothing to compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxfed.errors import require

if TYPE_CHECKING:
    from proxfed.harness.protection import Robust

STEPS = 3
"""Steps of centred clipping."""


def centre(rows: Tensor, rule: Robust) -> Tensor:
    """(n, k) messages -> (k,)."""
    if rule.name == "median":
        return _median(rows)
    if rule.name == "trimmed_mean":
        kept = len(rows) - 2 * rule.trim
        require(kept >= 1, f"protection.robust.trim = {rule.trim} leaves none of {len(rows)} messages")
        return torch.sort(rows, 0).values[rule.trim : rule.trim + kept].mean(0)
    v = _median(rows)
    for _ in range(STEPS):
        away = rows - v
        norm = away.norm(dim=1, keepdim=True)
        v = v + (away * (rule.radius / norm).clamp(max=1.0).nan_to_num(1.0)).mean(0)
    return v


def _median(rows: Tensor) -> Tensor:
    ordered, n = torch.sort(rows, 0).values, len(rows)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
