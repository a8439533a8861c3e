"""A problem over some of the clients computes what the problem over all does for them: linear models bit for bit,
networks to rounding errors, which depend on where a row begins in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from proxfed.data.federated import Federated, Window
from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import InputError
from proxfed.problems import Linear, Neural
from proxfed.problems.empirical_risk import EmpiricalRisk

SIZES = np.array([5, 9, 5, 3])


def data(classes: int | None) -> Federated:
    rng = np.random.default_rng(1)
    labels = rng.choice([-1.0, 1.0], SIZES.sum()) if classes is None else rng.integers(classes, size=SIZES.sum())
    weights = None if classes else rng.uniform(0.5, 2, SIZES.sum())
    return Federated(rng.normal(size=(SIZES.sum(), 6)), labels, SIZES, None, classes, sample_weights=weights)


def sparse(dense: Federated) -> Federated:
    return replace(dense, features=SparseRows.of(dense.features * (dense.features > 0.5)))


def cut(p: EmpiricalRisk, here: range) -> EmpiricalRisk:
    """The same problem where only these clients are."""
    d, rows = p.data, slice(p.data.offsets[here.start], p.data.offsets[here.stop])
    weights = None if d.sample_weights is None else d.sample_weights[rows]
    window = Window(here.start, p.weights.double().numpy())
    part = Federated(
        d.features[rows], d.labels[rows], d.sizes[here.start : here.stop], None, d.classes,
        sample_weights=weights, window=window,
    )  # fmt: skip
    return replace(p, data=part)


SIZED = {"l2": 0.01, "weighting": "size", "intercept": True}

PROBLEMS = {
    "linear": lambda batch: Linear(data(None), "logistic", batch=batch, **SIZED),
    "sparse": lambda batch: Linear(sparse(data(None)), "logistic", batch=batch, **SIZED),
    "softmax": lambda batch: Linear(data(3), "cross_entropy", batch=batch, weighting="size"),
    "network": lambda batch: Neural(data(3), "mlp", batch=batch, weighting="size", dtype=torch.float64),
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("here", [range(1), range(1, 3), range(3, 4)])
def test_window_computes_what_all_do(name: str, batch: int | None, here: range) -> None:
    whole = PROBLEMS[name](batch)
    part = cut(whole, here)
    assert (part.n, part.d, part.blocks) == (whole.n, whole.d, whole.blocks)
    assert torch.equal(part.weights, whole.weights)
    assert torch.equal(part.initial(3), whole.initial(3))
    x = torch.randn(whole.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = whole.local(2, range(4), seed=3), part.local(2, here, seed=3)
    rows = slice(here.start, here.stop)
    error = 1e-13 if name == "network" else 0.0
    for draw in (0, 1):
        torch.testing.assert_close(b.grad(x, draw), a.grad(x, draw)[rows], rtol=error, atol=error)
    torch.testing.assert_close(b.full_grad(x), a.full_grad(x)[rows], rtol=error, atol=error)
    torch.testing.assert_close(b.value(x), a.value(x)[rows], rtol=error, atol=error)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_without_data_knows_the_model(name: str) -> None:
    whole = PROBLEMS[name](None)
    empty = cut(whole, range(0))
    assert (empty.n, empty.d, empty.blocks) == (whole.n, whole.d, whole.blocks)
    assert torch.equal(empty.initial(1), whole.initial(1))
    assert empty.local(0, range(0)).full_grad(empty.initial(0)).shape == (0, whole.d)


@pytest.mark.parametrize(
    ("loss", "form"), [("squared", replace), ("logistic", sparse), ("cox", replace), ("cox", sparse)]
)
def test_client_constants_are_those_of_the_whole(loss: str, form: Callable[[Federated], Federated]) -> None:
    whole = Linear(form(data(None)), loss, l2=0.01)
    part = cut(whole, range(1, 3))
    assert torch.equal(part.client_smoothness, whole.client_smoothness[1:3])
    assert torch.equal(part.client_convexity, whole.client_convexity[1:3])
    assert whole.smoothness().mu_min == float(whole.client_convexity.min())
    assert float(whole.client_smoothness.max()) == whole.smoothness().L


def test_what_takes_all_clients_is_refused() -> None:
    whole = PROBLEMS["linear"](None)
    part = cut(whole, range(1))
    with pytest.raises(InputError, match="all clients, but some are remote"):
        part.smoothness()
    with pytest.raises(InputError, match="class_weights = 'balanced' needs the samples of all clients"):
        replace(part, class_weights="balanced")
    with pytest.raises(InputError, match=r"clients 3\.\.4 are not among the 4"):
        replace(part.data, sizes=[2, 3], window=Window(3, np.full(4, 0.25)))
    with pytest.raises(InputError, match="must be above 0 and sum to one"):
        replace(part.data, window=Window(0, np.full(4, 0.3)))
