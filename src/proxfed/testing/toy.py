"""A small problem for testing all claims of an algorithm: five heterogeneous clients, ten numbers."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.keyed_random import Ids
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic
from proxfed.regularisers import L1, SquaredL2
from proxfed.types import Local, Problem, Smooth

N, D, M, L2, LAMBDA = 5, 10, 40, 0.05, 0.02
OUTPUTS = 3
EQUAL = (M,) * N
RAGGED = (7, 40, 13, 40, 25)
SPARSE = L1(LAMBDA)
RIDGE = SquaredL2(LAMBDA)


@cache
def scores(sizes: tuple[int, ...], p: int = D, seed: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples that lie around a centre of each client's own, in rows of norm 1, and OUTPUTS scores of each by a model
    of the client's own."""
    rng = np.random.default_rng(seed)

    def client(m: int) -> tuple[np.ndarray, np.ndarray]:
        A = rng.normal(size=(m, p)) + 1.5 * rng.normal(size=p)
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        truth = rng.normal(size=(p, OUTPUTS)) + rng.normal(size=OUTPUTS)
        return A, A @ truth + 0.1 * rng.normal(size=(m, OUTPUTS))

    return [client(m) for m in sizes]


def begin(size: int, seed: int = 2) -> tuple[float, ...]:
    """Away from 0, where l1 would hide the first prox step."""
    return tuple(np.random.default_rng(seed + 100).normal(size=size))


@cache
def problem(h: L1 | SquaredL2 = SPARSE, sizes: tuple[int, ...] = EQUAL, **options: Any) -> Problem[Linear]:
    """Logistic regression; strongly convex, so that it has one solution."""
    clients = [(A, np.where(s[:, 0] > 0, 1.0, -1.0)) for A, s in scores(sizes)]
    x0 = torch.tensor(begin(D), dtype=options.get("dtype", torch.float64))
    return Problem(Linear(Federated.from_clients(clients), Logistic(), l2=L2, **options), h, x0)


@cache
def solution(h: L1 | SquaredL2 = SPARSE) -> Tensor:
    """argmin f + h, by FISTA."""
    return problem(h).solve()


def error(x: Tensor, reference: Tensor) -> float:
    """|x - x*| / |x*|."""
    return float((x - reference).norm() / reference.norm())


def objective(p: Problem[Linear], x: Tensor) -> float:
    return float(p.value(x))


class Renamed(Smooth):
    """An f whose client i is client order[i] of another, with all it has: data, minibatches, randomness."""

    def __init__(self, f: Smooth, order: np.ndarray) -> None:
        self.f, self.order = f, order
        self.n, self.d, self.has_hessian = f.n, f.d, f.has_hessian

    @cached_property
    def weights(self) -> Tensor:
        return self.f.weights[torch.from_numpy(self.order)]

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return self.f.local(t, self.order[np.asarray(ids)], seed)
