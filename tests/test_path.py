"""Regularisation paths: each model begins where the last one ended, and is the solution for its weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed import FedAvg, FedComposite, Federated, Linear, Neural, run
from proxfed.errors import InputError
from proxfed.harness.path import penalty_path
from proxfed.regularisers import L1, SquaredL2
from proxfed.types import Problem

from support import toy_problems as toy
from support.image_data import images

ALGORITHM = FedComposite(eta=0.5, eta_g=1.0, tau=2)


def problem(**options) -> Problem[Linear]:
    return Linear(toy.data("logistic", (30, 20, 25), 5), "logistic", l2=0.05, **options) + L1(1.0)


@pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "intercept"])
def test_it_agrees_with_the_solution_at_every_weight(intercept) -> None:
    p = problem(intercept=intercept)
    found = penalty_path(p, ALGORITHM, 5, rounds=400)
    assert found.weights[0] == p.alpha_max()
    assert found.weights[-1] == pytest.approx(p.alpha_max() / 1000)
    assert np.diff(np.log(found.weights)) == pytest.approx(np.log(1e-3) / 4)
    for k, (weight, x, row) in enumerate(zip(found.weights, found.models, found.rows, strict=True)):
        exact = p.with_h(p.h.with_weight(weight)).solve()
        assert torch.allclose(x, exact, atol=1e-6)
        rounding = 0.0 if k else 1e-12  # at alpha_max entries are just at the threshold
        assert torch.equal(x.abs() > rounding, exact.abs() > 1e-12)
        assert row["weight"] == weight
        assert row["objective"] == pytest.approx(toy.objective(p.with_h(p.h.with_weight(weight)), exact.numpy()))
    assert list(found.nonzeros[1:]) == sorted(found.nonzeros[1:])
    assert (found.models[0].abs() > 1e-12).sum() == intercept
    assert np.all(np.diff(found.objective) < 0)


def test_every_run_begins_where_the_last_one_ended() -> None:
    p, weights = problem(), [0.02, 0.005]
    found = penalty_path(p, ALGORITHM, weights, rounds=3)
    first = run(p.with_h(L1(0.02)), ALGORITHM, 3).model
    assert torch.equal(found.models[0], first)
    assert torch.equal(found.models[1], run(p.with_h(L1(0.005)).starting_at(first), ALGORITHM, 3).model)
    assert not torch.equal(found.models[1], run(p.with_h(L1(0.005)), ALGORITHM, 3).model)
    assert torch.equal(penalty_path(p, ALGORITHM, weights, rounds=3).models, found.models)


def test_coefficients_by_name() -> None:
    data = toy.data("least_squares", (30, 20), 3)
    named = Federated(data.features, data.labels, data.sizes, feature_names=("age", "income", "height"))
    found = penalty_path(Linear(named, "squared", intercept=True) + L1(1.0), ALGORITHM, [10.0, 0.001], rounds=50)
    first, last = found.coefficients(nonzero=True)
    assert first.weights == {}
    assert first.intercept == pytest.approx(data.labels.mean(), rel=1e-6)  # it is not penalised
    assert set(last.weights) <= {"age", "income", "height"}
    assert last.weights
    with pytest.raises(InputError, match="only linear models have coefficients by name, not Neural"):
        penalty_path(Neural(images(), "linear") + L1(1.0), FedAvg(0.1, 1), [0.1], rounds=1).coefficients()


@pytest.mark.parametrize("weights", [[0.1, 0.2], [], [0.1, 0.1], ["a"], [-1.0], 0, "l1", [float("nan")]])
def test_weights_that_make_no_path_are_refused(weights) -> None:
    with pytest.raises(InputError, match="weights = "):
        penalty_path(problem(), ALGORITHM, weights, rounds=1)


def test_ridge_has_a_path_of_given_weights_only() -> None:
    p = problem().with_h(SquaredL2(1.0))
    assert len(penalty_path(p, FedAvg(0.5, 1), [1.0, 0.1], rounds=2).weights) == 2
    with pytest.raises(InputError, match="SquaredL2 has no weight from which on zero is the solution"):
        penalty_path(p, FedAvg(0.5, 1), 3, rounds=2)
