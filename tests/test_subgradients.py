"""Subgradients of the regularisers, for algorithms that take h into f."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from proxfed.errors import InputError
from proxfed.regularisers import subgradient

from support.regulariser_cases import EVERY, FINITE, WEAK, D, close, dot, largest_step, normal, scales, seeds


@pytest.mark.parametrize("h", FINITE, ids=repr)
@given(seed=seeds, scale=scales)
def test_subgradient_inequality(h, seed: int, scale: float) -> None:
    """h(y) >= h(x) + <g, y - x> - rho / 2 |y - x|^2 for all y, also where h has kinks."""
    x = scale * normal(seed, 10, D)
    x[1] = 0
    x[2:5] *= normal(seed + 1, 3, D) > 0.5
    x[5:7] = x[5:7].sign()
    x[7, :6] = 0
    with torch.no_grad():
        g = subgradient(h, x)
    assert g.isfinite().all()
    assert (g.shape, g.dtype, g.requires_grad) == (x.shape, x.dtype, False)
    for y in [torch.zeros_like(x), -x, *(x + size * normal(seed + 2, 10, D) for size in (1e-3, 0.1, 1.0, 10.0))]:
        gap = h.value(y) - h.value(x) - dot(g, y - x) + h.weak_convexity / 2 * dot(y - x, y - x)
        assert (gap >= -1e-12 * (1 + h.value(x) + h.value(y) + dot(g, g))).all()


@pytest.mark.parametrize("h", WEAK, ids=repr)
def test_subgradient_is_the_gradient_where_there_is_one(h) -> None:
    x = normal(14, 400, 1)
    kinks = torch.tensor(
        [0.0, h.weight, largest_step(h) * h.weight, getattr(h, "a", 0) * h.weight], dtype=torch.float64
    )
    x = x[((x.abs() - kinks).abs() > 1e-3).all(-1)]
    slope = (h.value(x + 1e-5) - h.value(x - 1e-5)) / 2e-5
    torch.testing.assert_close(subgradient(h, x).squeeze(-1), slope, rtol=1e-8, atol=1e-8)


def test_a_regulariser_from_elsewhere_has_a_subgradient() -> None:
    class Quartic:
        weak_convexity = 0.0
        indicator = False

        def value(self, x: Tensor) -> Tensor:
            return (x**4).sum(-1)

        def prox(self, v: Tensor, step: float) -> Tensor:
            raise NotImplementedError

    x = normal(15, 3, D)
    close(subgradient(Quartic(), x), 4 * x**3)


@pytest.mark.parametrize("h", [h for h in EVERY if h.indicator], ids=repr)
def test_indicators_have_no_subgradient(h) -> None:
    with pytest.raises(
        InputError, match=f"^{type(h).__name__}: an indicator has no useful subgradient; choose an algo"
    ):
        subgradient(h, torch.zeros(D))
