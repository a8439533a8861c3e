"""A local step in place: y - eta grad f(y), whichever way it is computed, and counted as one gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from proxfed.engine.halves import Oracle, Work
from proxfed.problems.neural import network_clients as clients
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1
from proxfed.types import Regulariser

from support.image_data import images, point

ETA = 0.3
SETTINGS: list[dict[str, Any]] = [
    {"batch": 5},
    {"batch": 5, "mechanism": "loop"},
    {"batch": 5, "l2": 0.1},
    {"batch": 5, "l2": 0.1, "mechanism": "loop"},
    {"batch": 5, "l2": 1 / ETA},  # nothing of y is left
    {"batch": 5, "l2": 1 / ETA, "mechanism": "loop"},
    {"batch": 5, "clip": 0.01},
    {"batch": 5, "augment": "crop_flip"},
    {"batch": None},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_descend_is_a_step_along_the_gradient(settings: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    p = Neural(images(), "mlp", dtype=dtype, **settings)
    f = p.local(2, range(p.n), seed=1)
    for draw in range(3):
        y = point(p, draw)
        expected = y - ETA * f.grad(y, draw)
        before = y.clone()
        f.descend(y, range(draw, draw + 1), ETA)
        assert (expected - before).norm() > 1e-3
        assert (y - expected).norm() <= tolerance * before.norm()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("ahead", [1, 1 << 11, 1 << 20])
def test_many_draws_are_many_steps(settings: dict[str, Any], ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients whose epochs end at different draws, with as many minibatches fetched ahead as one likes."""
    monkeypatch.setattr(clients, "AHEAD", ahead)
    p = Neural(images((7, 12, 12, 5, 9)), "mlp", dtype=torch.float64, **settings)
    f, y = p.local(2, range(p.n), seed=1), point(p)
    expected = y.clone()
    for draw in range(2, 8):
        expected.sub_(f.grad(expected, draw), alpha=ETA)
    f.descend(y, range(2, 8), ETA)
    assert (y - expected).norm() <= 1e-13 * expected.norm()


def test_without_draws_there_are_no_steps() -> None:
    p = Neural(images(), "mlp", batch=5)
    y = point(p)
    before = y.clone()
    p.local(2, range(p.n), seed=1).descend(y, range(0), ETA)
    assert torch.equal(y, before)


def test_convolutions_step_by_their_gradient_to_the_bit() -> None:
    p = Neural(images(side=16), "fednag_cnn", batch=5)
    f, y = p.local(2, range(p.n), seed=1), point(p)
    expected = y.sub(f.grad(y, 0), alpha=ETA)
    f.descend(y, range(1), ETA)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("inside", [None, L1(0.1)])
def test_the_oracle_adds_weights_and_the_subgradient(weighted: bool, inside: Regulariser | None) -> None:
    p = Neural(images(), "mlp", batch=5, dtype=torch.float64)
    scale = torch.arange(1.0, p.n + 1, dtype=torch.float64)[:, None] if weighted else None
    f, work = p.local(2, range(p.n), seed=1), Work()
    y = point(p)
    expected = y - ETA * Oracle(f, Work(), scale, inside).grad(y, 0)
    expected = expected - ETA * Oracle(f, Work(), scale, inside).grad(expected, 1)
    Oracle(f, work, scale, inside).descend(y, range(2), ETA)
    assert torch.allclose(y, expected, rtol=0, atol=1e-14)
    assert work.gradients == 2 * p.n


def test_rows_do_not_depend_on_who_shares_the_block() -> None:
    p = Neural(images((8, 8, 8, 8)), "mlp", batch=5)
    together, alone = point(p), point(p)
    p.local(2, range(p.n), seed=1).descend(together, range(4), ETA)
    for i in range(p.n):
        p.local(2, [i], seed=1).descend(alone[i : i + 1], range(4), ETA)
    assert torch.allclose(together, alone, rtol=0, atol=1e-6)
