"""What follows from the data alone is computed once, whatever h, x0, weight or round it is needed for."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from proxfed import Federated, Linear, Logistic
from proxfed.fit.cross_validate import cross_validate
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.problems.linear import curvature, linear
from proxfed.regularisers import L1, GroupLasso

CLIENTS = 4


def data(seed: int = 0) -> Federated:
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(25, 6)) for _ in range(CLIENTS)]
    return Federated.from_clients([(A, np.where(A[:, 0] + rng.normal(size=25) > 0, 1.0, -1.0)) for A in features])


@pytest.fixture
def spectra(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often eigenvalues of some data were computed: of the clients one by one, and of all together."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Any:
        compute: Callable[[Any], Any] = vars(curvature.Curvature)[name].func

        def computed(self: Any) -> Any:
            counted[name] += 1
            return compute(self)

        return computed

    for name in ("_each", "_whole"):
        cached = type(vars(curvature.Curvature)[name])(counting(name))
        cached.__set_name__(curvature.Curvature, name)
        monkeypatch.setattr(curvature.Curvature, name, cached)
    return counted


def test_paths_and_cross_validation_take_no_spectrum(spectra: Counter[str]) -> None:
    model = linear_model(data(), "logistic", L1(1.0))
    Solver(1e-6).path(model, 30, 0.1)
    cross_validate(model, 3, 8, 0.1, Solver(1e-6))
    assert not spectra


def test_problems_that_share_f_share_what_it_has_computed(spectra: Counter[str]) -> None:
    f = Linear(data(), Logistic(), l2=0.01)
    for h in (L1(0.1), L1(0.01), GroupLasso(0.1, size=2)):
        problem = f + h
        problem.starting_at(problem.solve()).with_h(L1(0.2)).solve()
        problem.alpha_max()
    assert spectra == {"_each": 1, "_whole": 1}
    assert f.double is f


def test_in_float32_the_reference_solver_converts_the_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Linear(data(), Logistic(), l2=0.01, dtype=torch.float32)
    assert (f + L1(0.1)).solve().dtype == torch.float32
    made: list[object] = []
    monkeypatch.setattr(linear.Linear, "__post_init__", lambda self: made.append(self))
    for weight in (0.1, 0.01):
        (f + L1(weight)).solve()
    assert made == []


def test_what_was_computed_does_not_travel_to_other_processes() -> None:
    f = Linear(data(), Logistic(), l2=0.01)
    before = len(pickle.dumps(f))
    x = (f + L1(0.1)).solve()
    assert len(pickle.dumps(f)) == before
    assert torch.equal((pickle.loads(pickle.dumps(f)) + L1(0.1)).solve(), x)
