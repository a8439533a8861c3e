"""Every regulariser with settings that differ in kind, and how the tests look at them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from proxfed.regularisers import (
    L1,
    L2,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    LInf,
    Nuclear,
    OnBlocks,
    Simplex,
    SparseGroup,
    SquaredL2,
    Zero,
)
from proxfed.types import Block

D = 12
LABELS = (5, 5, 0, -1, 0, 5, 7, 7, 7, 7, 0, 2)  # unequal groups, not in order, one of them a single coordinate
WEIGHT = Block("weight", 2, 8, (2, 3))
BIAS = Block("bias", 8, 10, (2,))

CASES = {
    "zero": [Zero()],
    "l1": [L1(0.3), L1(0.0), L1(2)],
    "squared_l2": [SquaredL2(0.7)],
    "l2": [L2(0.7), L2(0.0), L2(3.0)],
    "elastic_net": [ElasticNet(0.3, 0.5)],
    "group_lasso": [
        GroupLasso(0.4, size=3),
        GroupLasso(0.4, labels=LABELS),
        GroupLasso(0.4, size=4, group_weights=(1.0, 0.0, 2.5)),
        GroupLasso(0.4, labels=LABELS, group_weights=(1.0, 0.0, 2.5, 0.5, 1.0)),
    ],
    "sparse_group": [SparseGroup(0.2, 0.3, size=4), SparseGroup(0.2, 0.3, labels=LABELS)],
    "nuclear": [Nuclear(0.8, (3, 4)), Nuclear(0.8, (6, 2))],
    "l_inf": [LInf(0.9), LInf(0.0), LInf(6.0)],
    "mcp": [MCP(0.4, 1.5), MCP(0.0, 1.0), MCP(1.2, 3.0)],
    "scad": [SCAD(0.4), SCAD(0.5, 2.1), SCAD(0.0)],
    "box": [Box(-0.5, 0.8), Box(0.0, math.inf), Box(0.1, 0.1)],
    "l2_ball": [L2Ball(1.2)],
    "l1_ball": [L1Ball(1.5)],
    "simplex": [Simplex(), Simplex(2.5)],
}
EVERY = [h for cases in CASES.values() for h in cases] + [
    OnBlocks(((WEIGHT, L1(0.3)), (BIAS, SquaredL2(0.5)))),
    OnBlocks(((BIAS, Box(-0.1, 0.1)), (WEIGHT, MCP(0.4, 1.5)))),
]
CONVEX = [h for h in EVERY if h.weak_convexity == 0]
INDICATORS = [h for h in EVERY if isinstance(h, (Box, L2Ball, L1Ball, Simplex))]
FINITE = [h for h in EVERY if not h.indicator]
WEAK = [h for h in EVERY if isinstance(h, (MCP, SCAD))]

every = pytest.mark.parametrize("h", EVERY, ids=repr)
seeds = st.integers(0, 2**32 - 1)
steps = st.floats(1e-3, 0.95)
scales = st.sampled_from([0.05, 1.0, 10.0])


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


def close(x: Tensor, y: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(x, y, rtol=1e-10, atol=atol)


def largest_step(h: MCP | SCAD) -> float:
    return h.theta if isinstance(h, MCP) else h.a - 1
