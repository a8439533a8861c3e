"""Real tables at sites that keep them: the same model as in one place, and as another solver's on the pooled rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.data.directory import data_directory
from proxfed.fit import fit
from proxfed.silos.carriers.loopback_sites import make_table_sites
from proxfed.silos.coordinator.fit import fit_between
from proxfed.silos.site.config import read_site
from proxfed.silos.site.from_config import holder
from proxfed.tables import read_schema

from support.tables import EXAMPLES

PLACE = data_directory()

WEIGHTS = {"heart-disease": 0.02, "eicu-demo": 0.02, "sba-loans": 0.01, "fed-tcga-brca": 0.03, "golub-leukemia": 0.05}


class Sites:
    """Holders in this process, as a carrier."""

    def __init__(self, schema: Path, folder: Path) -> None:
        count = len(read_sites(schema))
        self.sites = make_table_sites(schema, str(PLACE), folder, count, 5)
        self.holders = {name: holder(read_site(folder / name / "site.toml")) for name in self.sites}

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        return {site: self.holders[site].answer(question) for site, question in questions.items()}


def read_sites(schema: Path) -> list[str]:
    from proxfed.tables import read_tables

    return [table.organisation for table in read_tables(schema, PLACE).tables]


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_deployed_is_simulated_and_that_of_pooled_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = EXAMPLES / f"{name}.toml"
    if not (PLACE / read_schema(schema).source.folder).is_dir():
        pytest.skip(f"there is no folder {name} in the data directory {PLACE}")
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setenv("PROXFED_DATA", str(PLACE))
    settings: dict[str, Any] = {"weight": WEIGHTS[name], "alone": False, "repetitions": 0, "penalty": "l1"}
    settings |= {"class_weights": None, "cv": None, "tolerance": 1e-12, "cv_tolerance": 1e-3}
    one = fit_between(schema, Sites(schema, tmp_path / "sites"), tmp_path / "fit", say=lambda said: None, **settings)
    other = fit(schema, PLACE, **settings)
    x, y = one.fit.x.numpy(), other.fit.x.numpy()
    assert np.abs(x - y).max() <= 1e-9 * np.abs(y).max()
    assert np.array_equal(x != 0, y != 0)
    data = other.problem.f.data
    A, b = np.asarray(data.features, float), np.asarray(data.labels, float)
    if name == "fed-tcga-brca":
        g = _cox_gradient(A, b, data.sizes.tolist(), x)
    else:
        assert data.sample_weights is None
        s = A @ x[:-1] + x[-1]
        r = -b / (1 + np.exp(b * s)) / len(b)
        assert abs(r.sum()) <= 1e-9
        g, x = r @ A, x[:-1]
    weight = WEIGHTS[name]
    assert 0 < (x != 0).sum() < len(x)
    np.testing.assert_allclose(g[x != 0], -weight * np.sign(x[x != 0]), atol=1e-8)
    assert np.abs(g).max() <= weight + 1e-8
    assert sum(step.rounds for step in one.model.sent) <= 60
    shutil.rmtree(tmp_path / "sites")


def _cox_gradient(A: np.ndarray, labels: np.ndarray, sizes: list[int], x: np.ndarray) -> np.ndarray:
    """Of the mean over all rows of Breslow's partial likelihood, each organisation a stratum, event by event."""
    g = np.zeros(A.shape[1])
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        X, b = A[end - size : end], labels[end - size : end]
        t, risk = np.abs(b), np.exp(X @ x)
        for j in np.flatnonzero(~np.signbit(b)):
            there = t >= t[j]
            g -= X[j] - risk[there] @ X[there] / risk[there].sum()
    return g / len(labels)
