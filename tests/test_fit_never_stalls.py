"""Random models with random penalties: every one of them ends, in few rounds, at a point that is a solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed import Federated
from proxfed.data.survival import survival_labels
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber
from proxfed.regularisers import (
    L1,
    L2,
    MCP,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    LInf,
    Nuclear,
    SparseGroup,
    SquaredL2,
    Zero,
)

LOSSES = ("squared", "logistic", "poisson", "huber", "cross_entropy", "one_hot", "cox", "efron")


def drawn(seed: int):
    """(data, loss, penalty): features of many scales, some of them copies of others, constants or rare."""
    rng = np.random.default_rng(seed)
    loss = LOSSES[seed % len(LOSSES)]
    n, p = int(rng.integers(20, 200)), int(rng.integers(1, 25))
    A = rng.normal(size=(n, p)) * 10 ** rng.uniform(-1.5, 1.5, p)
    kind = rng.integers(0, 5, p)
    A[:, kind == 0] = rng.random((n, int((kind == 0).sum()))) < 0.1
    if p > 2 and rng.random() < 0.4:
        A[:, -1] = A[:, 0] if rng.random() < 0.5 else A[:, 0] + A[:, 1]
    if p > 3 and rng.random() < 0.2:
        A[:, 2] = 1.0
    s = (A / np.maximum(A.std(0), 1e-9)) @ (rng.normal(size=p) * (rng.random(p) < 0.5))
    s = s / max(1.0, np.abs(s).max() / 4) + rng.normal()
    weights = rng.random(n) + 0.1 if rng.random() < 0.5 else None
    classes = None
    if loss in ("cross_entropy", "one_hot"):
        classes = 3
        labels = np.clip(np.round(s + rng.normal(size=n)), -1, 1).astype(np.int64) + 1
        labels[:3] = [0, 1, 2]
    elif loss in ("cox", "efron"):
        labels = survival_labels(np.ceil(5 * rng.exponential(np.exp(-s / 2))), rng.random(n) < 0.7)
        labels[0] = abs(labels[0]) or 1.0
    else:
        labels = {
            "squared": s + rng.normal(size=n),
            "huber": 3 * s + 20 * (rng.random(n) < 0.2) + rng.normal(size=n) + 30 * rng.normal(),
            "logistic": np.where(s + rng.logistic(size=n) > 0, 1.0, -1.0),
            "poisson": rng.poisson(np.exp(np.clip(s, -5, 5))).astype(float),
        }[loss]
        if loss == "logistic":
            labels[:2] = [-1, 1]
    cuts = np.sort(rng.choice(np.arange(1, n), int(rng.integers(0, 3)), replace=False))
    sizes = np.diff([0, *cuts, n])
    if loss in ("cox", "efron"):
        sizes = np.array([n])
    data = Federated(A, labels, sizes, classes=classes, sample_weights=weights)
    what = {"huber": Huber(1.0), "cox": "cox", "efron": Cox("efron")}.get(loss, loss)
    return data, what, _penalty(rng, p * (classes or 1), (classes or 1, p))


def _penalty(rng: np.random.Generator, d: int, shape: tuple[int, int]):
    w = 10 ** rng.uniform(-4, 0)
    return [
        Zero(),
        L1(w),
        SquaredL2(w),
        ElasticNet(w, w / 3),
        GroupLasso(w, labels=tuple(rng.integers(0, 4, d).tolist())),
        SparseGroup(w / 3, w, labels=tuple(rng.integers(0, 4, d).tolist())),
        L2(w),
        LInf(w),
        Box(-w, 2 * w),
        L2Ball(5 * w),
        Nuclear(w, shape),
        MCP(w, 1e3),
    ][int(rng.integers(0, 12))]


def ends(seed: int) -> None:
    data, loss, penalty = drawn(seed)
    model = linear_model(data, loss, penalty)
    fit = Solver(1e-8).fit(model)
    assert fit.traffic.rounds <= 80, (seed, loss, penalty, fit.traffic)
    g = model.f.gradient(fit.x)
    start = float(model.f.gradient(torch.zeros_like(fit.x)).norm())
    L = float(torch.linalg.matrix_norm(torch.from_numpy(np.asarray(data.features, float)), 2)) ** 2 / len(data.labels)
    L = max(L, 2 * model.h.weak_convexity)
    off = float((fit.x - model.h.prox(fit.x - g / L, 1 / L)).norm()) * L
    assert off <= 1e-6 * start, (seed, loss, penalty, off / start)


@pytest.mark.parametrize("seed", range(24))
def test_a_fit_ends(seed: int) -> None:
    ends(seed)


def test_scales_three_decades_apart_under_a_penalty_that_couples_all_coefficients() -> None:
    """The largest coefficient, of an Efron Cox model: the inner steps once took a second each and did not converge."""
    ends(47)


def test_a_penalty_that_is_not_convex_where_the_data_do_not_bend_either() -> None:
    """Poisson with MCP and copied columns: the step was no way down, and shortening it helped nothing."""
    ends(1418)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(50))
def test_five_hundred_fits_end(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        ends(seed)
