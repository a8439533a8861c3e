"""ProxNewton: its matrix is that of BFGS, its line search lets no objective rise, and it takes few rounds."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.algorithms import FISTA, ProxNewton
from proxfed.algorithms.prox_newton import INNER, LBFGS
from proxfed.algorithms.proximal_model import model_step
from proxfed.problems.fista import by_line_search, fista
from proxfed.regularisers import L1, Box, GroupLasso, Zero

from support import toy_problems as toy

D = 7


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, the last ones first, and what the gradient of a quadratic changes by."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(D, D))
    S = rng.normal(size=(count, D))
    return S, S @ (root @ root.T + 0.1 * np.eye(D))


def bfgs(S: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The update of a full matrix, pair after pair, the oldest first."""
    B = Y[0] @ Y[0] / (S[0] @ Y[0]) * np.eye(D)
    for s, y in zip(S[::-1], Y[::-1], strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (s @ y)
    return B


@given(st.integers(1, 4), st.integers(0, 1000))
def test_the_matrix_is_that_of_bfgs_updates(count, seed) -> None:
    S, Y = pairs(count, seed)
    B, full = LBFGS.of(1.0, torch.tensor(S), torch.tensor(Y)), bfgs(S, Y)
    ours = torch.stack([B(e) for e in torch.eye(D, dtype=torch.float64)]).numpy()
    assert np.abs(ours - full).max() <= 1e-8 * np.abs(full).max()
    assert np.abs(B(torch.tensor(S[0])).numpy() - Y[0]).max() <= 1e-8 * np.abs(Y[0]).max()
    assert float(B.largest) == pytest.approx(np.linalg.eigvalsh(full)[-1], rel=1e-8)


@pytest.mark.parametrize("h", [Zero(), L1(0.5), Box(-0.1, 0.1), GroupLasso(0.3, size=7)], ids=repr)
def test_a_step_minimises_the_model(h) -> None:
    S, Y = pairs(3, 1)
    B, rng = LBFGS.of(1.0, torch.tensor(S), torch.tensor(Y)), np.random.default_rng(2)
    x, g = h.prox(torch.tensor(rng.normal(size=D)), 0.0), torch.tensor(rng.normal(size=D))
    z = fista(lambda z: g + B(z - x), h, float(B.largest), x, 1e-13)
    assert torch.allclose(x + model_step(B, x, g, h, INNER), z, atol=1e-3 * float((z - x).norm()))


@pytest.mark.parametrize("curvature", [1e-4, 0.2, 1e4])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_whatever_the_first_curvature_the_objective_never_rises(loss, curvature) -> None:
    p = toy.problem(loss, intercept=True, l2=0.001)
    best = toy.objective(p, p.solve().numpy())
    seen = [toy.objective(p, x) for x in islice(toy.models(p, ProxNewton(curvature)), 150)]
    assert all(after <= before + 1e-14 for before, after in pairwise(seen))
    assert seen[-1] - best <= 1e-12


def test_it_takes_a_fraction_of_the_rounds_of_fista() -> None:
    p = toy.problem("logistic", l2=1e-4, p=20)
    exact, L = p.solve(), p.f.smoothness().L_f

    def rounds(algorithm) -> int:
        far = (toy.error(x, exact.numpy()) for x in toy.models(p, algorithm))
        return next(t for t, error in enumerate(far, 1) if error < 1e-7)

    assert 3 * rounds(ProxNewton(L)) < rounds(FISTA(1 / L))


def test_solved_by_a_line_search_is_solved() -> None:
    p = toy.problem("softmax", h=L1(0.01))
    x = by_line_search(p.f.gradient, p.f.value, p.h, p.start(0))
    assert torch.allclose(x, p.solve(), atol=1e-9)
