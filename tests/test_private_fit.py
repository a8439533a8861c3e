"""A linear model with noise on its sums: how private, how good, and when it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.engine.noise import epsilon as epsilon_of
from proxfed.errors import InputError
from proxfed.fit.model_file import Model, read_model
from proxfed.fit.private import (
    SENSITIVITY,
    Bounds,
    hopeless,
    noise_for,
    noisy,
    private_fit,
    products,
    row_epsilon,
    spectral,
    sums,
)
from proxfed.fit.private_tables import (
    Private,
    by_schema,
    fit_private,
    labels_of,
    private_model,
    private_settings,
    save_private,
)
from proxfed.regularisers import L1
from proxfed.silos.coordinator.private_fit import private_fit_between, private_job
from proxfed.silos.protection.privacy import noises
from proxfed.silos.wire.fit_questions import write
from proxfed.silos.wire.message import Letter
from proxfed.tables import read_schema, read_tables
from proxfed.tables.schema import from_plain

from support.fit_sites import SITES, Hospitals

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
    """However large it is."""
    r = rng(seed)
    A, y = size * r.standard_normal((5, d)), size * r.standard_normal(5)
    whole, without = (products(A[:n], y[:n], BOUNDS) for n in (5, 4))
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
    assert "times as large as what 100 rows say of 20 columns: correlations between columns are lost" in said
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


# ---- of tables, here and between organisations -----------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hospitals]:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    budget = {"require": {"privacy": {"noise": 1.0, "epsilon": 1.5, "delta": 1e-5}}}
    return lambda loss="squared", rows=240, site=None: Hospitals(
        tmp_path / "sites", loss, rows, site=budget if site is None else site
    )


def private(h: Hospitals, folder: Path, **more: Any) -> Model:
    label = None if h.loss == "logistic" else (-15.0, 20.0)
    return private_fit_between(h.folder / "tables.toml", h, folder, **{"epsilon": 1.0, "label": label} | more)


def pooled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    found = read_tables(file)
    A = np.concatenate([by_schema(found.schema).apply(table) for table in found.tables])
    return A, np.concatenate([labels_of(table) for table in found.tables])


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_between_organisations_it_is_the_model_of_the_same_sums(
    loss: str, hospitals: Callable[..., Hospitals], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise left out at the sites and here: masks and letters change nothing else."""
    from proxfed.silos.protection import site_link

    monkeypatch.setattr(site_link, "gaussian", lambda secret, count: np.zeros(count))
    h = hospitals(loss)
    model = private(h, tmp_path / "fit")

    total, how = 0.0, Private(**{k: v for k, v in model.settings["private"].items() if k not in ("epsilon", "delta")})
    found = read_tables(h.folder / "tables.toml")
    for each in found.tables:
        M = how.products(by_schema(found.schema).apply(each), labels_of(each))
        total = total + noisy(M, how.noise, np.zeros(M.shape))
    expected = private_model(np.asarray(total), SITES, found.schema, how, 1.0, 1e-5)
    np.testing.assert_allclose(model.original.coef, expected.original.coef, rtol=1e-9)
    assert sorted(model.signatures) == sorted(SITES)


def test_nothing_but_one_noisy_message_leaves_a_site(hospitals: Callable[..., Hospitals], tmp_path: Path) -> None:
    h = hospitals()
    private(h, tmp_path / "fit")
    lines = [json.loads(line) for line in (h.folder / "oslo" / "audit.jsonl").read_text().splitlines()]
    told = [line["what"] for line in lines if line["what"].split()[0] in ("query", "round", "summary")]
    assert told == ["query private"]
    (line,) = [line for line in lines if "noise" in line]
    assert line["noise"] == pytest.approx(2 * noise_for(1.0))
    assert epsilon_of({line["noise"]: 1}, 1e-5) == pytest.approx(1.0, rel=1e-6)  # as the site's account has it


def test_the_account_of_the_site_ends_private_fits(hospitals: Callable[..., Hospitals], tmp_path: Path) -> None:
    """Epsilon of two fits with 1 each is 1.46; the third is refused, after a restart as well."""
    h = hospitals()
    one, two = (private(h, tmp_path / name) for name in "ab")
    assert one.original.coef != two.original.coef  # other noise
    h.start()
    with pytest.raises(InputError, match=r"require\.privacy\.epsilon = 1\.5"):
        private(h, tmp_path / "c")


def test_a_coordinator_that_was_killed_gets_the_same_bytes(hospitals: Callable[..., Hospitals], tmp_path: Path) -> None:
    h = hospitals()
    one = private(h, tmp_path / "fit")
    h.start()
    again = private(h, tmp_path / "fit", resume=True)
    assert again.content() == one.content()
    assert len(noises(h.holders["oslo"].guard.history.noisy.values())) == 1  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="other settings"):
        private(h, tmp_path / "fit", resume=True, epsilon=0.5)


@pytest.mark.parametrize(("site", "change", "said"), [
    ({}, {}, "needs a budget"),
    (None, {"folds": 5}, "no folds"),
    (None, {"private": {"noise": 0.0, "row": 1.0}}, "greater than 0"),
])  # fmt: skip
def test_what_a_site_refuses_of_a_private_fit(
    site: Any, change: dict[str, Any], said: str, hospitals: Callable[..., Hospitals]
) -> None:
    h = hospitals(site=site)
    schema = read_schema(h.folder / "tables.toml")
    how = private_settings(schema, 1.0, label=(-15, 20))
    job = private_job(schema, h, how, {"secure_aggregation": True}, print)
    assert job.fit is not None
    job = replace(job, fit=job.fit | change)
    answer = Letter.decode(h.holders["oslo"].answer(Letter("job", job.digest, body=job.encode()).encode()))
    assert (answer.kind, said in answer.head["why"]) == ("refused", True), answer.head


def test_a_private_fit_answers_no_other_question(hospitals: Callable[..., Hospitals]) -> None:
    h = hospitals()
    schema = read_schema(h.folder / "tables.toml")
    job = private_job(schema, h, private_settings(schema, 1.0, label=(-15, 20)), {"secure_aggregation": True}, print)
    h.holders["oslo"].answer(Letter("job", job.digest, body=job.encode()).encode())
    for what in ("grams", "counts", "histogram"):
        answer = Letter.decode(h.holders["oslo"].answer(write(job.digest, what).encode()))
        assert "has no query" in answer.head["why"]


@pytest.mark.parametrize(("column", "said"), [
    ({"kind": "number"}, "needs range"),
    ({"kind": "number", "range": [0, 1], "polynomial": 2}, "takes numbers as they are"),
])  # fmt: skip
def test_a_schema_must_bound_what_it_prepares(column: dict[str, Any], said: str) -> None:
    plain = {
        "source": {"files": ["a.csv"]},
        "table": {"name": "t"},
        "target": {"column": "y"},
        "columns": {"a": column},
    }
    with pytest.raises(InputError, match=said):
        by_schema(from_plain(plain, "it"))


def test_here_it_is_a_simulation_with_the_noise_of_a_seed(hospitals: Callable[..., Hospitals], tmp_path: Path) -> None:
    file = hospitals(rows=2000).folder / "tables.toml"
    one, same, other = (fit_private(file, epsilon=5.0, label=(-15, 20), seed=seed) for seed in (0, 0, 1))
    assert one.content() == same.content() != other.content()
    loud, (A, y) = fit_private(file, epsilon=1e6, row=3.0, label=(-15, 20)), pooled(file)
    exact = np.linalg.lstsq(np.column_stack([A, np.ones(len(A))]), y, rcond=None)[0]
    assert (
        r2(A, y, np.array(loud.prepared.coef[0]), loud.prepared.intercept[0]) > r2(A, y, exact[:-1], exact[-1]) - 1e-3
    )
    save_private(one, tmp_path / "model")
    assert read_model(tmp_path / "model").content() == one.content()
