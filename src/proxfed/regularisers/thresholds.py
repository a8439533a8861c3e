"""Shrinking a row by its norm, and shifting it until its positive parts have a given sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shrinkage(norm: Tensor, s: float | Tensor) -> Tensor:
    """(1 - s / norm)_+, exactly 0 for norm <= s and for norm = 0."""
    return (norm - s).clamp_min_(0).div_(norm.clamp_min(torch.finfo(norm.dtype).tiny))


def shifted(v: Tensor, r: float) -> tuple[Tensor, Tensor]:
    """(u, tau) with u = v - tau, one tau per row (..., 1), such that the positive parts of each row of u sum to r.

    Newton's method on this convex, piecewise linear function of tau, from below: coordinates only ever drop out, so it
    terminates, after 2-15 passes in practice; ten times faster than sorting a thousand rows. It moves u itself rather
    than only tau, so that each residual is computed from the returned numbers: they sum to r up to the rounding of one
    sum, however large v is and however many coordinates there are.
    """
    tau = v.amax(-1, keepdim=True)
    u = v - tau
    move = ((u.sum(-1, keepdim=True) - r) / u.shape[-1]).clamp_min_(-r)  # as if all or one were positive: both too low
    positive, fewest = torch.empty_like(u), torch.full_like(tau, math.inf)
    while True:
        u.sub_(move)
        tau += move
        torch.clamp(u, min=0, out=positive)
        total = positive.sum(-1, keepdim=True)
        active = positive.sign_().sum(-1, keepdim=True)
        if not (active < fewest).any():
            return u, tau
        fewest = torch.minimum(active, fewest)
        move = (total - r) / active.clamp_min(1)
