"""A linear model with noise on its sums: how private, how good, and when it cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.fit.private import SENSITIVITY, Bounds, hopeless, noise_for, private_fit, row_epsilon, spectral, sums
from proxfed.regularisers import L1

BOUNDS = Bounds(row=4.0, label=3.0)
SILENT = 1e-12


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(n: int, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    r = rng(seed)
    A = r.standard_normal((n, d)) * 0.8
    return A, A @ np.linspace(-0.5, 0.5, d) + 0.3 + 0.2 * r.standard_normal(n)


def r2(A: np.ndarray, y: np.ndarray, weights: np.ndarray, intercept: float) -> float:
    return float(1 - np.mean((y - A @ weights - intercept) ** 2) / np.var(y))


@given(seed=st.integers(0, 2**32), size=st.floats(1e-3, 1e6), d=st.integers(1, 8))
def test_a_row_moves_the_sums_by_the_stated_norm(seed: int, size: float, d: int) -> None:
    """However large it is: with the same noise, so that it cancels."""
    r = rng(seed)
    A, y = size * r.standard_normal((5, d)), size * r.standard_normal(5)
    whole, without = (sums(A[:n], y[:n], BOUNDS, 1.0, rng(1)) for n in (5, 4))
    assert np.linalg.norm(whole - without) <= SENSITIVITY * (1 + 1e-9)


def test_the_stated_norm_is_reached() -> None:
    A, y = np.array([[4.0, 0.0]]), np.array([3.0])
    moved = sums(A, y, BOUNDS, 1.0, rng(1)) - sums(A[:0], y[:0], BOUNDS, 1.0, rng(1))
    assert np.linalg.norm(moved) == pytest.approx(SENSITIVITY)


def test_the_noise_is_isotropic_in_the_frobenius_norm() -> None:
    """So that the mechanism is Gaussian with the same deviation along every symmetric direction."""
    E = np.stack([sums(np.zeros((0, 2)), np.zeros(0), BOUNDS, 2.0, rng(k)) for k in range(4000)])
    r = rng(9)
    for _ in range(5):
        V = r.standard_normal((4, 4))
        V = V + V.T
        along = (E * (V / np.linalg.norm(V))).sum((1, 2))
        assert along.std() == pytest.approx(SENSITIVITY * 2.0, rel=0.06)
    assert np.array_equal(E, E.transpose(0, 2, 1))


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    from scipy import stats

    for noise in (0.5, 2.0, 8.0):
        e, mu = row_epsilon(noise), 1 / noise
        delta = stats.norm.cdf(mu / 2 - e / mu) - np.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)
        assert delta == pytest.approx(1e-5, rel=1e-6)
        assert noise_for(e) == pytest.approx(noise, rel=1e-6)
        assert row_epsilon(noise, messages=4) == pytest.approx(row_epsilon(noise / 2))


def test_without_noise_it_is_least_squares() -> None:
    tables = [table(200, seed=k) for k in range(3)]
    A, y = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    assert np.linalg.norm(A, axis=1).max() < BOUNDS.row  # nothing is cut
    assert np.abs(y).max() < BOUNDS.label
    fit = private_fit([sums(*each, BOUNDS, SILENT, rng(k)) for k, each in enumerate(tables)], BOUNDS, SILENT)
    exact, *_ = np.linalg.lstsq(np.column_stack([A, np.ones(len(A))]), y, rcond=None)
    assert np.allclose(fit.weights, exact[:-1], atol=1e-9)
    assert fit.intercept == pytest.approx(exact[-1], abs=1e-9)
    assert fit.rows == pytest.approx(600)


def test_with_a_penalty_it_is_the_penalised_one() -> None:
    """The subgradient of the objective at the solution, in scaled units."""
    A, y = table(500)
    h = L1(0.02)
    fit = private_fit([sums(A, y, BOUNDS, SILENT, rng())], BOUNDS, SILENT, h)
    z = np.column_stack([A / BOUNDS.row, np.ones(len(A))])
    w = np.append(fit.weights * BOUNDS.row, fit.intercept) / BOUNDS.label
    g = z.T @ (z @ w - y / BOUNDS.label) / len(A)
    assert (w == 0).any()
    assert np.allclose(g[w != 0], -0.02 * np.sign(w[w != 0]), atol=1e-6)
    assert (np.abs(g[w == 0]) <= 0.02 + 1e-6).all()


def test_what_it_costs() -> None:
    """Three sites with 4,000 rows each and epsilon 1: R^2 within 0.03 of least squares, over ten draws of the noise."""
    tables, noise = [table(4000, seed=k) for k in range(3)], noise_for(1.0)
    A, y = table(4000, seed=9)
    exact = private_fit([sums(*each, BOUNDS, SILENT, rng()) for each in tables], BOUNDS, SILENT)
    best = r2(A, y, exact.weights.numpy(), exact.intercept)
    assert best > 0.8
    found = []
    for draw in range(10):
        fit = private_fit(
            [sums(*each, BOUNDS, noise, rng(10 * draw + k)) for k, each in enumerate(tables)], BOUNDS, noise
        )
        found.append(r2(A, y, fit.weights.numpy(), fit.intercept))
    assert hopeless(12_000, 6, 3, noise) == ""
    assert np.mean(found) > best - 0.03


def test_labels_of_two_classes() -> None:
    A, s = table(6000)
    y = np.where(s > 0.3, 1.0, -1.0)
    bounds, noise = Bounds(4.0, 1.0), noise_for(1.0)
    fit = private_fit([sums(A, y, bounds, noise, rng())], bounds, noise)
    right = np.mean((A @ fit.weights.numpy() + fit.intercept > 0) == (y > 0))
    assert right > 0.85


def test_a_setting_that_cannot_work_is_said_to_be_one_and_is() -> None:
    noise = noise_for(0.5)
    said = hopeless(100, 20, 3, noise)
    assert "times as large as what 100 rows say of 20 columns: the model would be noise" in said
    A, y = table(100, d=20)
    B, z = table(2000, d=20, seed=5)
    fits = [private_fit([sums(A, y, BOUNDS, noise, rng(k))], BOUNDS, noise) for k in range(10)]
    assert np.median([r2(B, z, fit.weights.numpy(), fit.intercept) for fit in fits]) < 0.3
    needed = int(said.split("at least ")[1].split(" ")[0].replace(",", ""))
    assert hopeless(needed, 20, 3, noise) == ""


def test_the_norm_of_the_noise_is_about_what_is_stated() -> None:
    norms = [
        np.linalg.norm(
            sum(sums(np.zeros((0, 30)), np.zeros(0), BOUNDS, 2.0, rng(7 * k + i)) for i in range(3))[:-1, :-1], 2
        )
        for k in range(20)
    ]
    assert np.mean(norms) == pytest.approx(spectral(2.0, 3, 30), rel=0.15)


def test_what_is_not_finite_counts_as_nothing_and_what_is_wrong_is_refused() -> None:
    A, y = np.array([[np.nan, 1.0], [np.inf, 2.0]]), np.array([np.nan, 1.0])
    assert np.isfinite(sums(A, y, BOUNDS, 1.0, rng())).all()
    for build in (
        lambda: Bounds(0.0),
        lambda: Bounds(1.0, float("inf")),
        lambda: sums(A, y, BOUNDS, 0.0, rng()),
        lambda: noise_for(0.0),
        lambda: private_fit([], BOUNDS, 1.0),
    ):
        with pytest.raises(InputError):
            build()
    assert isinstance(private_fit([sums(A, y, BOUNDS, 1.0, rng())], BOUNDS, 1.0).weights, torch.Tensor)
