"""Regularisation paths: each model begins where the last one ended, and is the solution for its weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed import FedAvg, FedComposite, Federated, Linear, Model, run
from proxfed.errors import InputError
from proxfed.harness.path import path
from proxfed.regularisers import L1, OnBlocks, SquaredL2

from support import toy_problems as toy
from support.image_data import images

ALGORITHM = FedComposite(eta=0.5, eta_g=1.0, tau=2)


def problem(**options) -> Linear:
    return Linear(toy.data("logistic", (30, 20, 25), 5), "logistic", L1(1.0), l2=0.05, **options)


@pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "intercept"])
def test_it_agrees_with_the_solution_at_every_weight(intercept) -> None:
    p = problem(intercept=intercept)
    if intercept:
        p = p.with_h(OnBlocks.named(p.blocks, {"weight": L1(1.0)}))
    found = path(p, ALGORITHM, 5, rounds=400)
    assert found.weights[0] == p.alpha_max()
    assert found.weights[-1] == pytest.approx(p.alpha_max() / 1000)
    assert np.diff(np.log(found.weights)) == pytest.approx(np.log(1e-3) / 4)
    for weight, x, row in zip(found.weights, found.models, found.rows, strict=True):
        exact = p.with_h(p.h.with_weight(weight)).solve()
        assert torch.allclose(x, exact, atol=1e-6)
        assert torch.equal(x != 0, exact != 0)
        assert row["weight"] == weight
        assert row["objective"] == pytest.approx(toy.objective(p.with_h(p.h.with_weight(weight)), exact.numpy()))
    assert list(found.nonzeros) == sorted(found.nonzeros)
    assert found.nonzeros[0] == intercept
    assert np.all(np.diff(found.objective) < 0)


def test_every_run_begins_where_the_last_one_ended() -> None:
    p, weights = problem(), [0.02, 0.005]
    found = path(p, ALGORITHM, weights, rounds=3)
    first = run(p.with_h(L1(0.02)), ALGORITHM, 3).model
    assert torch.equal(found.models[0], first)
    assert torch.equal(found.models[1], run(p.with_h(L1(0.005)).starting_at(first), ALGORITHM, 3).model)
    assert not torch.equal(found.models[1], run(p.with_h(L1(0.005)), ALGORITHM, 3).model)
    assert torch.equal(path(p, ALGORITHM, weights, rounds=3).models, found.models)


def test_coefficients_by_name() -> None:
    data = toy.data("least_squares", (30, 20), 3)
    named = Federated(data.features, data.labels, data.sizes, feature_names=("age", "income", "height"))
    found = path(Linear(named, "squared", L1(1.0), intercept=True), ALGORITHM, [10.0, 0.001], rounds=50)
    first, last = found.coefficients(nonzero=True)
    assert (first.weights, first.intercept) == ({}, 0.0)
    assert set(last.weights) <= {"age", "income", "height"}
    assert last.weights
    with pytest.raises(InputError, match="only linear models have coefficients by name, not Model"):
        path(Model(images(), "linear", h=L1(1.0)), FedAvg(0.1, 1), [0.1], rounds=1).coefficients()


@pytest.mark.parametrize("weights", [[0.1, 0.2], [], [0.1, 0.1], ["a"], [-1.0], 0, "l1", [float("nan")]])
def test_weights_that_make_no_path_are_refused(weights) -> None:
    with pytest.raises(InputError, match="weights = "):
        path(problem(), ALGORITHM, weights, rounds=1)


def test_ridge_has_a_path_of_given_weights_only() -> None:
    p = problem().with_h(SquaredL2(1.0))
    assert len(path(p, FedAvg(0.5, 1), [1.0, 0.1], rounds=2).weights) == 2
    with pytest.raises(InputError, match="SquaredL2 has no weight from which on zero is the solution"):
        path(p, FedAvg(0.5, 1), 3, rounds=2)
