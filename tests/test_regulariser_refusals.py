"""Regularisers that make no sense, and vectors that do not fit them: one sentence that names the key and the value."""

from __future__ import annotations

import math

import pytest
import torch

from proxfed.errors import InputError
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
)
from proxfed.types import Block

WEIGHT = Block("weight", 2, 8, (2, 3))
BIAS = Block("bias", 8, 10, (2,))
X = torch.ones(6, dtype=torch.float64)

REFUSALS = [
    (lambda: L1(-0.1), "L1: weight = -0.1 must be >= 0"),
    (lambda: L1("much"), "L1: weight = 'much' is not a finite number"),
    (lambda: SquaredL2(-1), "SquaredL2: weight = -1 must be >= 0"),
    (lambda: L2(math.nan), "L2: weight = nan is not a finite number"),
    (lambda: ElasticNet(0.1, -2), "ElasticNet: l2 = -2 must be >= 0"),
    (lambda: ElasticNet(-2, 0.1), "ElasticNet: l1 = -2 must be >= 0"),
    (lambda: GroupLasso(-1, size=2), "GroupLasso: weight = -1 must be >= 0"),
    (lambda: GroupLasso(1), "GroupLasso: needs one of size and labels, and got neither"),
    (lambda: GroupLasso(1, 2, (0, 1)), "GroupLasso: needs one of size and labels, and got both"),
    (lambda: GroupLasso(1, size=0), "GroupLasso: size = 0 must be a whole number >= 1"),
    (lambda: GroupLasso(1, labels=()), "GroupLasso: labels = [] must be whole numbers, one per coordinate"),
    (lambda: GroupLasso(1, labels=(1, 0.5)), "GroupLasso: labels = [0.5] must be whole numbers, one per coordinate"),
    (lambda: GroupLasso(1, 2, None, (1, -1)), "GroupLasso: group_weights = [-1] must be finite numbers >= 0"),
    (lambda: SparseGroup(-1, 1, size=2), "SparseGroup: l1 = -1 must be >= 0"),
    (lambda: SparseGroup(1, -1, size=2), "SparseGroup: weight = -1 must be >= 0"),
    (lambda: SparseGroup(1, 1), "SparseGroup: needs one of size and labels, and got neither"),
    (lambda: Nuclear(-1, (2, 3)), "Nuclear: weight = -1 must be >= 0"),
    (lambda: Nuclear(1, (2, 3, 4)), "Nuclear: shape = (2, 3, 4) must be two whole numbers >= 1"),
    (lambda: Nuclear(1, (2, 0)), "Nuclear: shape = (2, 0) must be two whole numbers >= 1"),
    (lambda: Nuclear(1, 6), "Nuclear: shape = 6 must be two whole numbers >= 1"),
    (lambda: LInf(-1), "LInf: weight = -1 must be >= 0"),
    (lambda: MCP(-1, 1), "MCP: weight = -1 must be >= 0"),
    (lambda: MCP(1, 0), "MCP: theta = 0 must be > 0"),
    (lambda: SCAD(-1), "SCAD: weight = -1 must be >= 0"),
    (lambda: SCAD(1, 2), "SCAD: a = 2 must be > 2"),
    (lambda: Box(1, 0), "Box: low = 1 must be a number <= high = 0"),
    (lambda: Box(math.nan, 0), "Box: low = nan must be a number <= high = 0"),
    (lambda: Box("0", 1), "Box: low = '0' must be a number <= high = 1"),
    (lambda: L2Ball(0), "L2Ball: radius = 0 must be > 0"),
    (lambda: L1Ball(-1), "L1Ball: radius = -1 must be > 0"),
    (lambda: Simplex(0.0), "Simplex: radius = 0.0 must be > 0"),
    (lambda: OnBlocks(()), "OnBlocks: parts is empty; use Zero for no regularisation"),
    (
        lambda: OnBlocks(((BIAS, L1(1)), (Block("more", 9, 12, (3,)), L1(1)))),
        "OnBlocks: blocks 'bias' and 'more' overlap",
    ),
    (
        lambda: OnBlocks.named([WEIGHT, BIAS], {"wieght": L1(1)}),
        "OnBlocks: no block is called 'wieght'; did you mean 'weight'?",
    ),
    (lambda: GroupLasso(1, size=5).prox(X, 1.0), "groups: size = 5 does not divide d = 6"),
    (lambda: SparseGroup(1, 1, size=5).value(X), "groups: size = 5 does not divide d = 6"),
    (lambda: GroupLasso(1, labels=(0, 1)).prox(X, 1.0), "groups: 2 labels do not fit d = 6"),
    (lambda: GroupLasso(1, 2, None, (1, 1)).prox(X, 1.0), "groups: 2 group_weights do not fit 3 groups"),
    (lambda: Nuclear(1, (2, 2)).prox(X, 1.0), "Nuclear: shape = (2, 2) does not fit d = 6"),
    (lambda: Nuclear(1, (2, 2)).value(X), "Nuclear: shape = (2, 2) does not fit d = 6"),
    (lambda: OnBlocks(((BIAS, L1(1)),)).prox(X, 1.0), "OnBlocks: block 'bias' ends at 10, beyond d = 6"),
    (lambda: OnBlocks(((BIAS, L1(1)),)).value(X), "OnBlocks: block 'bias' ends at 10, beyond d = 6"),
    (lambda: MCP(1, 1.5).prox(X, 1.5), "MCP: step = 1.5 must be >= 0 and < theta = 1.5"),
    (lambda: MCP(1, 49.0).prox(X, 49.0), "MCP: step = 49.0 must be >= 0 and < theta = 49.0"),  # 49 * (1 / 49) < 1
    (lambda: SCAD(1, 3.5).prox(X, 2.5), "SCAD: step = 2.5 must be >= 0 and < a - 1 = 2.5"),
    (
        lambda: OnBlocks(((Block("a", 0, 2, (2,)), MCP(1, 2.0)),)).prox(X, 3),
        "MCP: step = 3 must be >= 0 and < theta = 2.0",
    ),
]


@pytest.mark.parametrize(("build", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refusals_name_the_key_and_what_is_allowed(build, message: str) -> None:
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value) == message
