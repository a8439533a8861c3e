"""The regularisers h: their values, their prox, and their weak convexity.

    value(x)        h of each row, (..., d) -> (...)
    prox(v, step)   P(step, v) = argmin_u step * h(u) + |u - v|^2 / 2 of each row, defined for step * weak_convexity < 1
    indicator       h is 0 on a set and infinite elsewhere; its prox is the projection, whatever the step

A row is the last axis, after any number of others. A prox never writes into v and keeps its dtype and device;
thresholded entries are exactly zero. (The prox of `Zero` is v itself, not a copy.) `step` is a plain number.

On large (clients, d) arrays a prox is memory-bound, and a fresh temporary costs more than the arithmetic, because of
its page faults. So each prox makes as few temporaries as possible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.regularisers.blocks import OnBlocks
from proxfed.regularisers.constraints import Box, L1Ball, L2Ball, Simplex
from proxfed.regularisers.groups import GroupLasso, SparseGroup
from proxfed.regularisers.nonconvex import MCP, SCAD
from proxfed.regularisers.penalties import L1, L2, ElasticNet, LInf, Nuclear, SquaredL2, Zero
from proxfed.types import Regulariser

__all__ = [
    "L1",
    "L2",
    "MCP",
    "REGULARISERS",
    "SCAD",
    "Box",
    "ElasticNet",
    "GroupLasso",
    "L1Ball",
    "L2Ball",
    "LInf",
    "Nuclear",
    "OnBlocks",
    "Simplex",
    "SparseGroup",
    "SquaredL2",
    "Zero",
    "subgradient",
]

REGULARISERS: Registry[type] = Registry(
    "regularisers",
    {
        "zero": Zero,
        "l1": L1,
        "squared_l2": SquaredL2,
        "l2": L2,
        "elastic_net": ElasticNet,
        "group_lasso": GroupLasso,
        "sparse_group": SparseGroup,
        "nuclear": Nuclear,
        "l_inf": LInf,
        "mcp": MCP,
        "scad": SCAD,
        "box": Box,
        "l2_ball": L2Ball,
        "l1_ball": L1Ball,
        "simplex": Simplex,
    },
)
"""The regularisers by the names that configuration files use."""


def subgradient(h: Regulariser, x: Tensor) -> Tensor:
    """A subgradient of h at each row of x, finite also at the kinks (0 at 0 for norms that have it).

    For methods without a prox step. At a kink it is one valid choice among many; an indicator has no useful one.
    """
    name = type(h).__name__
    require(
        not h.indicator,
        f"{name}: an indicator has no useful subgradient; choose an algorithm that takes prox steps",
    )
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        total = h.value(x).sum()
    if not total.requires_grad:  # h is constant
        return torch.zeros_like(x)
    return torch.autograd.grad(total, x)[0]


explain(__name__)
