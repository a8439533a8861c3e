"""alpha_max: just above it the solution is zero where the weight acts, just below it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxfed import Linear, Neural
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
    LInf,
    Nuclear,
    OnBlocks,
    Simplex,
    SparseGroup,
    SquaredL2,
    Zero,
)
from proxfed.types import Problem, Regulariser

from support import toy_problems as toy
from support.image_data import images

P = 6
CONVEX = {
    "l1": lambda q: L1(1.0),
    "l2": lambda q: L2(1.0),
    "l_inf": lambda q: LInf(1.0),
    "elastic_net": lambda q: ElasticNet(1.0, 0.3),
    "groups": lambda q: GroupLasso(1.0, size=3),
    "labelled groups": lambda q: GroupLasso(1.0, labels=(0, 1, 1, 2, 0, 2) * q, group_weights=(0.5, 2.0, 1.0)),
    "sparse groups": lambda q: SparseGroup(0.003, 1.0, size=2),
    "nuclear": lambda q: Nuclear(1.0, (q, P)),
}
WEAK = {"mcp": lambda q: MCP(1.0, 50.0), "scad": lambda q: SCAD(1.0, 60.0)}
losses = pytest.mark.parametrize("loss", list(toy.LOSSES))
intercepts = pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "intercept"])


def problem(loss: str, intercept: bool, h: Any, **options: Any) -> Problem[Linear]:
    """h acts on the weights alone; the intercept is free."""
    q = toy.CLASSES if loss == "softmax" else 1
    f = Linear(toy.data(loss, (30, 20, 25), P), toy.LOSSES[loss], l2=0.05, intercept=intercept, **options)
    return f + (h(q) if callable(h) else h)


def weights(p: Problem[Linear], x: Tensor) -> Tensor:
    return x[: p.f.blocks[0].stop]


def at(p: Problem[Linear], factor: float) -> Problem[Linear]:
    return p.with_h(p.h.with_weight(p.alpha_max() * factor))


@losses
@intercepts
@pytest.mark.parametrize("h", CONVEX.values(), ids=CONVEX)
def test_the_solution_is_zero_just_above_and_not_just_below(loss, intercept, h) -> None:
    p = problem(loss, intercept, h)
    above, below = at(p, 1 + 1e-6).solve(), at(p, 1 - 1e-2).solve()
    assert not weights(p, above).any()
    assert weights(p, below).any()
    if intercept:
        assert above[p.f.blocks[0].stop :].any()  # fitted, not just left at zero


@losses
@intercepts
@pytest.mark.parametrize("h", WEAK.values(), ids=WEAK)
def test_of_penalties_that_are_not_convex_zero_is_stationary_just_above_and_not_below(loss, intercept, h) -> None:
    p = problem(loss, intercept, h)
    x = p.with_h(OnBlocks.named(p.f.blocks, {"weight": L1(1e9)})).solve()  # the intercepts alone
    s = 1 / p.f.smoothness().L_f
    for factor, zero in ((1 + 1e-6, True), (1 - 1e-2, False)):
        after = at(p, factor).h.prox(x - s * p.f.gradient(x), s)
        assert weights(p, after).any() != zero
        assert torch.allclose(after[p.f.blocks[0].stop :], x[p.f.blocks[0].stop :], atol=1e-9)


def test_what_has_another_penalty_is_fitted_under_it() -> None:
    p = problem("logistic", True, Zero())
    for rest in (SquaredL2(0.4), Box(-0.01, 0.01)):
        both = p.with_h(OnBlocks.named(p.f.blocks, {"weight": L1(1.0), "bias": rest}))
        assert not at(both, 1 + 1e-6).solve()[:P].any()
        assert at(both, 1 - 1e-2).solve()[:P].any()
        assert abs(both.alpha_max() / p.with_h(OnBlocks.named(p.f.blocks, {"weight": L1(1.0)})).alpha_max() - 1) > 1e-4


def test_groups_without_a_weight_are_free() -> None:
    p = problem("least_squares", False, GroupLasso(1.0, size=2, group_weights=(1.0, 0.0, 3.0)))
    above, below = at(p, 1 + 1e-6).solve(), at(p, 1 - 1e-2).solve()
    assert [bool(x.any()) for x in above.split(2)] == [False, True, False]
    assert below[:2].any() or below[4:].any()


def test_the_largest_of_several_blocks_counts() -> None:
    f = Linear(toy.data("softmax", (30, 20), P), "cross_entropy", intercept=True)
    p = f + OnBlocks.named(f.blocks, {"weight": L1(1.0), "bias": L2(1.0)})
    g = f.gradient(torch.zeros(f.d, dtype=torch.float64))
    assert p.alpha_max() == pytest.approx(max(float(g[: 3 * P].abs().max()), float(g[3 * P :].norm())), rel=1e-12)
    assert not at(p, 1 + 1e-6).solve().any()
    assert at(p, 1 - 1e-2).solve().any()


@settings(max_examples=25, deadline=None)
@given(
    g=st.lists(st.floats(-10, 10), min_size=P, max_size=P),
    name=st.sampled_from([*CONVEX, *WEAK]),
)
def test_the_dual_norm_is_where_the_prox_of_a_step_becomes_zero(g, name) -> None:
    h: Regulariser = (CONVEX | WEAK)[name](1)
    g = torch.tensor(g, dtype=torch.float64)
    weight = h.weight_max(g)
    assert weight >= 0
    assert not h.with_weight(weight * (1 + 1e-9) + 1e-12).prox(-g, 1.0).any()
    if weight > 1e-6:
        assert h.with_weight(weight * (1 - 1e-3)).prox(-g, 1.0).any()


@pytest.mark.parametrize("h", [SquaredL2(0.1), Zero(), Box(-1, 1), L1Ball(1.0), Simplex()], ids=repr)
def test_where_there_is_no_such_weight_one_sentence_says_so(h) -> None:
    sentence = f"{type(h).__name__} has no weight from which on zero is the solution"
    for ask in (lambda: problem("logistic", False, h).alpha_max(), lambda: h.weight_max(torch.ones(P))):
        with pytest.raises(InputError) as e:
            ask()
        assert str(e.value) == sentence
    if not isinstance(h, SquaredL2):
        with pytest.raises(InputError, match="has no weight that could be changed"):
            h.with_weight(1.0)


def test_networks_have_none() -> None:
    with pytest.raises(InputError, match="alpha_max is not known for Neural"):
        (Neural(images(), "mlp") + L1(0.1)).alpha_max()


def test_it_is_the_largest_correlation_of_the_lasso() -> None:
    p = Linear(toy.data("least_squares", (20, 20), P), "squared") + L1(1.0)
    A, b = p.f.data.features, p.f.data.labels
    assert p.alpha_max() == pytest.approx(np.abs(A.T @ b / 40).max(), rel=1e-12)
