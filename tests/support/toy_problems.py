"""Small heterogeneous problems, and how the tests look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed import Federated, Linear, Logistic, Softmax, Squared, keyed_random
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.participation import Full
from proxfed.testing import toy
from proxfed.topologies import Complete, OnePeerExponentialGraph, Ring, StarGraph
from proxfed.types import Algorithm, Constants, Graph, Participation, Problem, Regulariser, Topology

from support import numpy_references as ref

N, D, M, L2, LAMBDA, CLASSES = toy.N, toy.D, toy.M, toy.L2, toy.LAMBDA, toy.OUTPUTS
SPARSE, RAGGED = toy.SPARSE, toy.RAGGED
LOSSES = {"logistic": Logistic(), "least_squares": Squared(), "softmax": Softmax()}
EVERYONE = Full()
GRAPHS = {"ring": Ring, "star": StarGraph, "complete": Complete, "one_peer": OnePeerExponentialGraph}


@cache
def data(loss: str, sizes: tuple[int, ...], p: int = D, seed: int = 2) -> Federated:
    """Clients whose samples lie around centres of their own and are labelled by models of their own; rows of norm 1."""

    def labels(s: np.ndarray) -> np.ndarray:
        if loss == "softmax":
            return s.argmax(1)
        return np.where(s[:, 0] > 0, 1.0, -1.0) if loss == "logistic" else s[:, 0]

    clients = [(A, labels(s)) for A, s in toy.scores(sizes, p, seed)]
    return Federated.from_clients(clients, classes=CLASSES if loss == "softmax" else None)


@cache
def problem(
    loss: str = "logistic",
    h: Regulariser = SPARSE,
    sizes: tuple[int, ...] = toy.EQUAL,
    x0: tuple[float, ...] | None = None,
    p: int = D,
    seed: int = 2,
    l2: float = L2,
    **options: Any,
) -> Problem[Linear]:
    """The problem of most tests; it begins away from 0, where l1 would hide the first prox step."""
    outputs = CLASSES if loss == "softmax" else 1
    if x0 is None:
        x0 = toy.begin(outputs * (p + options.get("intercept", False)), seed)
    begin = torch.tensor(x0, dtype=torch.float64)
    return Problem(Linear(data(loss, sizes, p, seed), LOSSES[loss], l2=l2, **options), h, begin)


def start(p: Problem[Linear]) -> np.ndarray:
    return p.start(0).numpy()


def name_of(p: Problem[Linear]) -> str:
    return next(name for name, loss in LOSSES.items() if loss == p.f.loss)


def gradient(p: Problem[Linear], seed: int = 0) -> Callable[..., np.ndarray]:
    """grad(i, x, t, k): client i's gradient in NumPy, on the minibatch of local step k of round t if there are any."""
    clients, loss = [p.f.data.client(i) for i in range(p.f.n)], ref.GRADIENTS[name_of(p)]

    def grad(i: int, x: np.ndarray, t: int = 0, k: int = 0) -> np.ndarray:
        A, b = clients[i]
        if p.f.batch is not None:
            key = keyed_random.fold(keyed_random.keys(seed, "minibatch", [i], t), k)
            rows = keyed_random.integers(key, p.f.batch, len(b))[0]
            A, b = A[rows], b[rows]
        return loss(A, b, x) + p.f.l2 * x

    return grad


def mean_gradient(p: Problem[Linear]) -> Callable[[np.ndarray], np.ndarray]:
    """The gradient of f = sum p_i f_i."""
    grad, weights = gradient(p), p.f.weights.numpy()
    return lambda x: sum(w * grad(i, x) for i, w in enumerate(weights))


@cache
def solution(p: Problem[Linear], h: Callable | None = None) -> np.ndarray:
    """argmin f + h by plain proximal gradient steps, until they stand still; h: a prox, by default l1."""
    prox = ref.prox_l1(p.h.weight) if h is None else h
    return ref.minimise(mean_gradient(p), prox, 1 / p.f.smoothness().L_f, np.zeros(p.f.d))


def begin(p: Problem[Linear], algorithm: Algorithm, topology: Topology | None = None) -> Run:
    return run_of(p, algorithm, Stacked(p.f.n, p.f.d, topology))


def trajectory(
    p: Problem[Linear], algorithm: Algorithm, rounds: int, topology: Topology | None = None
) -> Iterator[tuple[int, Any]]:
    """(t, state) for t = 0 .. rounds, with NumPy arrays of their own in place of tensors."""
    run = begin(p, algorithm, topology)
    yield 0, numpy(run.state)
    for t in range(1, rounds + 1):
        run.round(t)
        yield t, numpy(run.state)


def numpy(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.numpy().copy()
    parts = [numpy(part) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def final(p: Problem[Linear], algorithm: Algorithm, rounds: int, topology: Topology | None = None) -> np.ndarray:
    """The model after some rounds."""
    run = begin(p, algorithm, topology)
    for t in range(1, rounds + 1):
        run.round(t)
    return run.model().numpy()


def reaches(
    p: Problem[Linear],
    algorithm: Algorithm,
    tolerance: float,
    most: int,
    topology: Topology | None = None,
    far: Any = None,
) -> bool:
    """Whether far(model), by default the error to `solution`, falls below the tolerance in at most so many rounds."""
    far = far or (lambda x: error(x, solution(p)))
    run = begin(p, algorithm, topology)
    for t in range(1, most + 1):
        run.round(t)
        if t % 25 == 0 and far(run.model().numpy()) < tolerance:
            return True
    return False


def constants(p: Problem[Linear], rounds: int, topology: Topology | None = None) -> Constants:
    psi = 0.0 if topology is None else 1 - topology.spectral_gap()
    return Constants(p.f.smoothness(), p.f.n, p.f.d, rounds, p.h.weak_convexity, psi)


def objective(p: Problem[Linear], x: np.ndarray) -> float:
    x = torch.as_tensor(x)
    return float(p.f.weights @ p.f.local(0, range(p.f.n)).value(x)) + float(p.h.value(x))


def rows(*vectors: np.ndarray) -> Tensor:
    return torch.tensor(np.stack(vectors))


def error(x: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(x - reference) / np.linalg.norm(reference))


def gap(a: Any, b: Any) -> float:
    """The largest difference, relative to the size of b where that exceeds 1."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


def started(p: Problem[Linear], algorithm: Algorithm, participation: Participation = EVERYONE) -> Run:
    return run_of(
        p, algorithm, Stacked(p.f.n, p.f.d, Complete(p.f.n) if isinstance(algorithm, Graph) else None), participation
    )


def models(p: Problem[Linear], algorithm: Algorithm, participation: Participation = EVERYONE) -> Iterator[np.ndarray]:
    """The model after rounds 1, 2, ..."""
    run = started(p, algorithm, participation)
    for t in count(1):
        run.round(t)
        yield run.model().numpy()


def rows_of(
    p: Problem[Linear], algorithm: Algorithm, rounds: int, topology: Topology, first: Callable[[Run], Any] | None = None
) -> Iterator[np.ndarray]:
    """The clients' iterates after rounds 1, 2, ...; `first` makes the state before the first of them."""
    run = begin(p, algorithm, topology)
    if first is not None:
        run.state = first(run)
    for t in range(1, rounds + 1):
        run.round(t)
        yield run.state.x.numpy()


def assert_same(one: Iterator[np.ndarray], other: Iterator[np.ndarray], least_move: float = 1e-3) -> None:
    """Equal to rounding error in every round, and not because nothing moves."""
    pairs = list(zip(one, other, strict=True))
    assert all(gap(a, b) <= 1e-12 for a, b in pairs)
    assert np.abs(pairs[-1][0] - pairs[0][0]).max() >= least_move


def gradients(p: Problem[Linear]) -> Callable[..., np.ndarray]:
    """G(X, t, k): row i is client i's gradient at row i of X."""
    grad = gradient(p)
    return lambda X, t, k=0: np.stack([grad(i, X[i], t, k) for i in range(p.f.n)])
