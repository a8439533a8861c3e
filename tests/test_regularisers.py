"""Laws of the regularisers: each prox solves its problem, and is as smooth as the theory says."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxfed.errors import InputError
from proxfed.regularisers import (
    L1,
    L2,
    MCP,
    REGULARISERS,
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

from support.regulariser_cases import (
    BIAS,
    CASES,
    CONVEX,
    FINITE,
    INDICATORS,
    LABELS,
    WEAK,
    WEIGHT,
    D,
    close,
    dot,
    every,
    largest_step,
    normal,
    scales,
    seeds,
    steps,
)


def test_every_registered_regulariser_is_in_the_table() -> None:
    assert CASES.keys() == REGULARISERS.keys()
    for name, cases in CASES.items():
        assert cases
        assert all(type(h) is REGULARISERS[name] for h in cases)


# --- values -----------------------------------------------------------------------------------------------------------

X = torch.tensor([3.0, -4.0, 0.0, 0.0, 0.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("h", "value"),
    [
        (Zero(), 0.0),
        (L1(0.5), 4.5),
        (SquaredL2(0.5), 7.25),
        (L2(0.5), math.sqrt(29) / 2),
        (ElasticNet(0.5, 0.5), 4.5 + 7.25),
        (GroupLasso(0.5, size=2), 0.5 * math.sqrt(2) * (5 + 2)),
        (GroupLasso(0.5, labels=(1, 1, 0, 0, 0, 0)), 0.5 * (2 * 2 + math.sqrt(2) * 5)),
        (GroupLasso(0.5, labels=(1, 1, 0, 0, 0, 0), group_weights=(10.0, 1.0)), 0.5 * (10 * 2 + 5)),
        (SparseGroup(0.25, 0.5, size=2), 0.25 * 9 + 0.5 * math.sqrt(2) * (5 + 2)),
        (Nuclear(0.5, (3, 2)), 0.5 * math.sqrt(29 + 2 * 6)),  # |A|_F^2 + 2 sqrt(det A'A)
        (LInf(0.5), 2.0),
        (MCP(1.0, 3.5), (3 - 9 / 7) + 3.5 / 2 + (2 - 4 / 7)),
        (SCAD(1.0, 3.5), (21 - 9 - 1) / 5 + 4.5 / 2 + (14 - 4 - 1) / 5),
        (Box(-4, 3), 0.0),
        (Box(-3, 3), math.inf),
        (L2Ball(math.sqrt(29)), 0.0),
        (L2Ball(5.38), math.inf),
        (L1Ball(9.0), 0.0),
        (L1Ball(8.99), math.inf),
        (Simplex(1.0), math.inf),
        (OnBlocks(((Block("a", 0, 1, (1,)), L1(0.5)), (Block("b", 1, 3, (2,)), L2(2.0)))), 1.5 + 8),
    ],
    ids=repr,
)
def test_values_by_hand(h, value: float) -> None:
    assert h.value(X).item() == pytest.approx(value, abs=1e-14)


def test_a_simplex_wants_the_sum_and_the_signs() -> None:
    rows = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.75, -0.25], [0.25, 0.7, 0.0], [0.25, 0.8, 0.0]])
    assert Simplex().value(rows).tolist() == [0, math.inf, math.inf, math.inf]


def test_a_point_that_is_not_a_number_is_in_no_set() -> None:
    x = torch.full((3,), math.nan)
    assert all(h.value(x) == math.inf for h in INDICATORS)


# --- the prox solves its problem --------------------------------------------------------------------------------------


@every
@given(seed=seeds, step=steps, scale=scales)
def test_prox_is_optimal(h, seed: int, step: float, scale: float) -> None:
    """F(u) = step h(u) + |u - v|^2 / 2 is strongly convex: F(u) >= F(p) + (1 - step rho) / 2 |u - p|^2 for all u."""
    v = scale * normal(seed, 8, D)
    p = h.prox(v, step)
    objective = lambda u: step * h.value(u) + dot(u - v, u - v) / 2
    assert objective(p).isfinite().all()
    noise = normal(seed + 1, 8, D)
    nearby = [p + size * noise for size in (1e-4, 1e-2, 1.0, scale)]
    sparse = [torch.zeros_like(v), p * (noise > 0), p + (v - p) * (noise > 1)]
    for u in [*nearby, *sparse, *(h.prox(w, step) for w in nearby), v]:  # the prox of a point: feasible for indicators
        growth = (1 - step * h.weak_convexity) / 2 * dot(u - p, u - p)
        slack = 1e-12 * (1 + objective(p) + growth)
        assert (objective(u) >= objective(p) + growth - slack).all()


def mcp_curve(x: Tensor, weight: float, theta: float) -> Tensor:
    x = x.abs()
    return torch.where(x <= theta * weight, weight * x - x**2 / (2 * theta), theta * weight**2 / 2)


def scad_curve(x: Tensor, weight: float, a: float) -> Tensor:
    x = x.abs()
    middle = (2 * a * weight * x - x**2 - weight**2) / (2 * (a - 1))
    return torch.where(x <= weight, weight * x, torch.where(x <= a * weight, middle, weight**2 * (a + 1) / 2))


CURVES = [
    (L1(0.8), lambda x: 0.8 * x.abs(), 4.0),
    (SquaredL2(0.8), lambda x: 0.4 * x**2, 4.0),
    (ElasticNet(0.8, 0.5), lambda x: 0.8 * x.abs() + 0.25 * x**2, 4.0),
    (Box(-0.5, 1.25), lambda x: torch.where((x >= -0.5) & (x <= 1.25), 0 * x, math.inf), 4.0),
    (MCP(0.8, 1.5), lambda x: mcp_curve(x, 0.8, 1.5), 1.5),
    (MCP(0.8, 5.0), lambda x: mcp_curve(x, 0.8, 5.0), 5.0),
    (SCAD(0.8), lambda x: scad_curve(x, 0.8, 3.7), 2.7),
    (SCAD(1.1, 2.2), lambda x: scad_curve(x, 1.1, 2.2), 1.2),
]


@pytest.mark.parametrize("c", [0.3, 2.0])
def test_a_multiple_of_mcp_is_mcp(c: float) -> None:
    v, h, scaled = normal(3, 4, D), MCP(0.4, 1.5), MCP(c * 0.4, 1.5 / c)
    close(scaled.value(v), c * h.value(v))
    close(scaled.prox(v, 0.5), h.prox(v, c * 0.5))
    assert scaled.weak_convexity == pytest.approx(c * h.weak_convexity)


@pytest.mark.parametrize(("h", "curve", "bound"), CURVES, ids=[repr(h) for h, _, _ in CURVES])
@pytest.mark.parametrize("part", [0.02, 0.4, 0.9, 0.999])
def test_prox_of_one_coordinate_against_a_fine_grid(h, curve, bound: float, part: float) -> None:
    step, spacing = part * bound, 1 / 2048
    grid = torch.arange(-6, 6, spacing, dtype=torch.float64)  # -0.5 and 1.25 are on it
    v = torch.linspace(-5, 5, 61, dtype=torch.float64).unsqueeze(-1)
    best = grid[(step * curve(grid) + (grid - v) ** 2 / 2).argmin(-1)]
    # The function is convex: its minimiser is next to the best grid point.
    assert (h.prox(v, step).squeeze(-1) - best).abs().max() <= 1.001 * spacing
    close(h.value(grid.unsqueeze(-1)), curve(grid))


def by_sorting(v: Tensor, r: float) -> Tensor:
    """The projection on the simplex as in the textbook."""
    u = v.sort(descending=True).values
    tau = (u.cumsum(-1) - r) / torch.arange(1, len(v) + 1)
    k = (u > tau).nonzero().max()
    return (v - tau[k]).clamp_min(0)


@given(seed=seeds, d=st.integers(1, 300), scale=st.sampled_from([1e-3, 0.1, 1.0, 100.0]), r=st.floats(1e-2, 30))
def test_simplex_and_l1_ball_against_sorting(seed: int, d: int, scale: float, r: float) -> None:
    v = scale * normal(seed, 5, d)
    v[3:] = v[3:].round(decimals=1)  # ties
    for row, on_simplex, in_ball in zip(v, Simplex(r).prox(v, 1.0), L1Ball(r).prox(v, 1.0), strict=True):
        close(on_simplex, by_sorting(row, r), atol=1e-11)
        close(in_ball, row if row.abs().sum() <= r else by_sorting(row.abs(), r) * row.sign(), atol=1e-11)


# --- smoothness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("h", CONVEX, ids=repr)
@given(seed=seeds, step=st.floats(1e-3, 20), scale=scales)
def test_convex_prox_is_firmly_non_expansive(h, seed: int, step: float, scale: float) -> None:
    v, w = scale * normal(seed, 20, D), normal(seed + 1, 20, D)
    p = h.prox(v, step) - h.prox(w, step)
    assert (dot(p, p) <= dot(p, v - w) + 1e-12 * (1 + dot(v - w, v - w))).all()


@pytest.mark.parametrize("h", WEAK, ids=repr)
@given(seed=seeds, part=st.floats(0.01, 0.99), scale=scales)
def test_weakly_convex_prox_is_lipschitz(h, seed: int, part: float, scale: float) -> None:
    step = part * largest_step(h)
    v = scale * normal(seed, 20, D)
    w = v + 0.1 * normal(seed + 1, 20, D)
    p, q = h.prox(v, step), h.prox(w, step)
    bound = 1 / (1 - step * h.weak_convexity)
    assert (dot(p - q, p - q).sqrt() <= bound * dot(v - w, v - w).sqrt() * (1 + 1e-10) + 1e-12).all()


@pytest.mark.parametrize("h", [h for h in WEAK if h.weight > 0], ids=repr)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_the_lipschitz_constant_is_attained(h, part: float) -> None:
    step = part * largest_step(h)
    v = torch.linspace(0, 5, 100_001, dtype=torch.float64).unsqueeze(-1)
    slopes = h.prox(v, step).diff(dim=0) / v.diff(dim=0)
    assert slopes.max().item() == pytest.approx(1 / (1 - step * h.weak_convexity), rel=1e-6)


@pytest.mark.parametrize("h", [h for h in WEAK if h.weight > 0], ids=repr)
def test_mcp_and_scad_do_not_shrink_large_coordinates(h) -> None:
    far = (h.theta if isinstance(h, MCP) else h.a) * h.weight
    v = torch.tensor([far, -1.5 * far, 100 * far], dtype=torch.float64)
    close(h.prox(v, 0.9), v)


# --- identities -------------------------------------------------------------------------------------------------------


@given(seed=seeds, weight=st.floats(0.01, 10), step=st.floats(0.01, 2), scale=scales)
def test_moreau_identity(seed: int, weight: float, step: float, scale: float) -> None:
    """v = P_h(v) + the projection on the dual ball of radius step * weight."""
    v, r = scale * normal(seed, 6, D), step * weight
    for h, dual in [(L1(weight), Box(-r, r)), (LInf(weight), L1Ball(r)), (L2(weight), L2Ball(r))]:
        close(h.prox(v, step) + dual.prox(v, 1.0), v, atol=1e-11)


@pytest.mark.parametrize("h", INDICATORS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projections_are_in_the_set_whatever_the_step(h, dtype: torch.dtype) -> None:
    for scale in (0.01, 1.0, 1e3):
        v = scale * normal(1, 9, D, dtype=dtype)
        p = h.prox(v, 0.5)
        assert torch.equal(p, h.prox(v, 0.0))
        assert torch.equal(p, h.prox(v, 1e6))
        torch.testing.assert_close(h.prox(p, 1.0), p)
        assert (h.value(p) == 0).all()


@pytest.mark.parametrize("h", [L2Ball(3.0), L1Ball(3.0)], ids=repr)
def test_a_ball_leaves_its_points_alone(h) -> None:
    v = normal(2, 50, D)
    v /= v.abs().sum(-1, keepdim=True) / 2.9
    assert torch.equal(h.prox(v, 1.0), v)


@given(seed=seeds, radius=st.floats(1e-3, 1e3), offset=st.sampled_from([0.0, -50.0, 1e4, 1e8]))
def test_simplex_rows_sum_to_the_radius_whatever_the_rounding(seed: int, radius: float, offset: float) -> None:
    v = normal(seed, 4, 600, dtype=torch.float32) + offset
    p = Simplex(radius).prox(v, 1.0)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.full((4,), radius), rtol=1e-5, atol=0)
    assert (Simplex(radius).value(p) == 0).all()


@pytest.mark.parametrize("h", [L1Ball(7.0), L2Ball(7.0), Simplex(7.0)], ids=repr)
def test_long_float32_projections_are_inside(h) -> None:
    v = normal(3, 2, 300_000, dtype=torch.float32)
    v[:, 0] = v.abs().amax() + 5  # most of the mass on one coordinate
    assert (h.value(h.prox(v, 1.0)) == 0).all()
    assert (h.value(1.01 * h.prox(v, 1.0)) == math.inf).all()


@pytest.mark.parametrize("h", [L1Ball(1.0), Simplex(1.0)], ids=repr)
def test_many_small_coordinates_beside_a_large_one(h) -> None:
    """They share half of the radius: a threshold rounded to float32 would be off by a tenth of their size."""
    v = torch.full((1_000_001,), 0.25)
    v[0] = 0.75
    p = h.prox(v, 1.0)
    assert h.value(p) == 0
    torch.testing.assert_close(p[:2], torch.tensor([0.5 + 0.5e-6, 0.5e-6]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 12), (12, 1)])
def test_nuclear_soft_thresholds_the_singular_values(shape: tuple[int, int]) -> None:
    v = normal(4, 7, D)
    sigma = torch.linalg.svdvals(v.reshape(7, *shape))
    h = Nuclear(2 * sigma.median().item(), shape)
    p = h.prox(v, 0.5)
    close(torch.linalg.svdvals(p.reshape(7, *shape)), (sigma - h.weight / 2).clamp_min(0))
    kept = torch.linalg.matrix_rank(p.reshape(7, *shape), atol=1e-12)
    assert torch.equal(kept, (sigma > h.weight / 2).sum(-1))
    assert (kept < min(shape)).any()


@pytest.mark.parametrize("group_weights", [None, (1.0, 0.0, 2.0, 0.3)])
def test_groups_by_size_are_groups_by_label(group_weights) -> None:
    labels = tuple(i // 3 for i in range(D))
    v = normal(5, 4, 6, D)
    for kind in (lambda **groups: GroupLasso(0.5, **groups), lambda **groups: SparseGroup(0.2, 0.5, **groups)):
        by_size, by_label = kind(size=3, group_weights=group_weights), kind(labels=labels, group_weights=group_weights)
        close(by_size.prox(v, 0.7), by_label.prox(v, 0.7))
        close(by_size.value(v), by_label.value(v))


def test_group_lasso_is_the_l2_norm_of_each_group() -> None:
    v, h = normal(6, 5, D), GroupLasso(0.4, labels=LABELS)
    p, labels = h.prox(v, 0.9), torch.tensor(LABELS)
    for label in set(LABELS):
        mine = labels == label
        close(p[:, mine], L2(0.4 * math.sqrt(mine.sum())).prox(v[:, mine], 0.9))


@pytest.mark.parametrize("groups", [{"size": 4}, {"labels": LABELS}], ids=repr)
def test_sparse_group_is_block_soft_after_soft(groups) -> None:
    v = normal(7, 5, D)
    expected = GroupLasso(0.3, **groups).prox(L1(0.2).prox(v, 0.9), 0.9)
    close(SparseGroup(0.2, 0.3, **groups).prox(v, 0.9), expected)


# --- contracts that all of them keep ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_independent_and_inputs_untouched(h, dtype: torch.dtype) -> None:
    v = normal(8, 2, 3, D, dtype=dtype)
    before = v.clone()
    p, values = h.prox(v, 0.6), h.value(v)
    assert torch.equal(v, before)
    assert (p.shape, p.dtype) == (v.shape, dtype)
    assert (values.shape, values.dtype) == ((2, 3), dtype)
    for i in range(2):
        torch.testing.assert_close(h.prox(v[i], 0.6), p[i])
        for j in range(3):
            torch.testing.assert_close(h.prox(v[i, j], 0.6), p[i, j])
            torch.testing.assert_close(h.value(v[i, j]), values[i, j])
    strided = torch.stack([v, -v], -1)[..., 0]
    torch.testing.assert_close(h.prox(strided, 0.6), p)
    assert h.prox(v[0, :0], 0.6).shape == (0, D)
    assert h.value(v[0, :0]).shape == (0,)


@every
def test_regularisers_compare_as_values(h) -> None:
    assert {h: "known"}[dataclasses.replace(h)] == "known"  # equal fields, equal regulariser
    with pytest.raises(AttributeError):
        h.weight = 2.0


@pytest.mark.parametrize("h", FINITE, ids=repr)
def test_a_prox_step_of_zero_changes_nothing(h) -> None:
    v = normal(9, 4, D)
    v[0] = 0
    close(h.prox(v, 0.0), v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "h",
    [L1(0.3), ElasticNet(0.3, 1.0), MCP(0.3, 1.2), SCAD(0.3), L2(3.0), LInf(30.0), SparseGroup(0.3, 0.0, size=3)],
    ids=repr,
)
def test_what_is_thresholded_is_exactly_zero(h, dtype: torch.dtype) -> None:
    v = 0.29 * normal(10, 50, D, dtype=dtype).clamp(-1, 1)
    assert (h.prox(v, 1.0) == 0).all()
    assert (h.prox(100 * v, 1.0) != 0).any()


@pytest.mark.parametrize("h", [GroupLasso(0.5, size=3), GroupLasso(0.5, labels=LABELS)], ids=repr)
def test_whole_groups_are_exactly_zero(h) -> None:
    v = normal(11, 200, D, dtype=torch.float32)
    zeros = h.prox(v, 1.0) == 0
    labels = torch.tensor(LABELS if h.labels else [i // 3 for i in range(D)])
    for label in set(labels.tolist()):
        mine = zeros[:, labels == label]
        assert torch.equal(mine.all(-1), mine.any(-1))
        assert 0 < mine.all(-1).sum() < 200


@pytest.mark.parametrize("h", [MCP(0.4, 1.5), SCAD(0.4)], ids=repr)
def test_large_arrays_give_what_small_ones_do(h) -> None:
    v = normal(12, 3, 700_001, dtype=torch.float32)
    p = h.prox(v, 0.6)
    for some in (slice(0, 1000), slice(349_000, 351_500), slice(-1000, None)):
        assert torch.equal(p[:, some], h.prox(v[:, some], 0.6))


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_on_blocks_acts_there_and_nowhere_else() -> None:
    v, h = normal(13, 4, 5, D), OnBlocks(((BIAS, L2(0.8)), (WEIGHT, MCP(0.4, 1.5))))
    p = h.prox(v, 0.6)
    assert torch.equal(p[..., 2:8], MCP(0.4, 1.5).prox(v[..., 2:8], 0.6))
    assert torch.equal(p[..., 8:10], L2(0.8).prox(v[..., 8:10], 0.6))
    assert torch.equal(p[..., :2], v[..., :2])
    assert torch.equal(p[..., 10:], v[..., 10:])
    close(h.value(v), MCP(0.4, 1.5).value(v[..., 2:8]) + L2(0.8).value(v[..., 8:10]))
    assert h.weak_convexity == MCP(0.4, 1.5).weak_convexity
    assert OnBlocks(((BIAS, SCAD(0.8)), (WEIGHT, MCP(0.4, 1.5)))).weak_convexity == 1 / 1.5
    assert not h.indicator
    assert OnBlocks(((BIAS, Box(0, 1)), (WEIGHT, L1(0.4)))).indicator


def test_on_blocks_by_name_or_pattern() -> None:
    blocks = [
        Block(f"{i}.{what}", 10 * i + a, 10 * i + b, (b - a,))
        for i in range(2)
        for what, a, b in [("weight", 0, 8), ("bias", 8, 10)]
    ]
    h = OnBlocks.named(blocks, {"*.weight": L1(0.1), "1.bias": SquaredL2(0.2)})
    assert h.parts == ((blocks[0], L1(0.1)), (blocks[2], L1(0.1)), (blocks[3], SquaredL2(0.2)))


# --- what none of them takes ------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("step", [-0.1, math.nan, math.inf])
def test_steps_are_finite_and_not_negative(h, step: float) -> None:
    with pytest.raises(InputError, match=rf"^\w+: step = {step} must be >= 0 and < "):
        h.prox(torch.ones(D), step)
