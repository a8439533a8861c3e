"""Least squares, binary logistic and softmax regression: closed-form gradients for a whole block of clients at once.

    f_i(x) = (1/m_i) sum_j loss(A_ij x, b_ij) + (l2/2) |x|^2

x is the weight matrix (outputs, features) followed by the intercepts, as one row. Activations are kept as
(clients, outputs, samples), so that a layer and its gradient are one batched product each, without transposes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import keyed_random
from proxfed.data.federated import Federated, flat, rows
from proxfed.errors import require
from proxfed.keyed_random import Ids, Key
from proxfed.problems.base import DataProblem
from proxfed.problems.coefficients import Coefficients, coefficients
from proxfed.problems.fista import fista
from proxfed.problems.loop import parameters
from proxfed.problems.losses import Loss
from proxfed.regularisers import Zero
from proxfed.types import Block, Local, Regulariser, Smoothness

GATHER = 1 << 20
"""Numbers of the minibatches that are gathered at a time: a few MB, still in the cache when they are used again."""

CACHE = 1 << 17
"""Numbers of the clients' data that a full gradient reads at a time: both its products then find them in the cache."""


@dataclass(frozen=True, eq=False)
class Linear(DataProblem):
    """A linear model over the clients' data."""

    data: Federated = field()  # without a default, unlike that of a Problem
    loss: Loss | str = field()
    """An object such as Logistic(), or its name: 'squared', 'logistic', 'cross_entropy', 'one_hot'."""
    h: Regulariser = Zero()
    """On the whole vector; `OnBlocks.named(problem.blocks, {"weight": ...})` leaves the intercept alone."""
    l2: float = 0.0
    """Weight of (l2/2) |x|^2 inside every f_i."""
    batch: int | None = None
    """Samples of a stochastic gradient, drawn independently and uniformly; None: full gradients."""
    weighting: str = "uniform"
    """p_i: 'uniform', or 'size' for the client's part of all samples."""
    intercept: bool = False
    dtype: torch.dtype = torch.float64
    """float64 by default: exact solutions are within reach."""
    device: str = "cpu"
    x0: Tensor | None = None
    """Where it begins; None: at zero."""
    _plans: dict[tuple[int, int] | None, list[Piece]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.check()
        if self.data.features.ndim > 2:  # images
            object.__setattr__(self, "data", rows(self.data))
        require(
            self.data.features.ndim == 2,
            f"{self.data.name}: a linear model takes features of shape (samples, p)",
        )
        self.blocks  # noqa: B018  the labels must fit the loss
        self._check_x0()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        q, p = self.criterion.outputs(self.data), int(self.data.features.shape[1])
        weight = Block("weight", 0, q * p, (q, p))
        return (weight, Block("bias", q * p, q * p + q, (q,))) if self.intercept else (weight,)

    # ---- data --------------------------------------------------------------------------------------------------

    def _labels(self, labels: np.ndarray) -> Tensor:
        kind = torch.int64 if self.criterion.classes else self.dtype
        return torch.tensor(np.asarray(labels), dtype=kind, device=self.device)

    @cached_property
    def A(self) -> Tensor:
        return torch.tensor(np.asarray(self.data.features), dtype=self.dtype, device=self.device)

    @cached_property
    def b(self) -> Tensor:
        return self._labels(self.data.labels)

    # ---- the protocol ------------------------------------------------------------------------------------------

    def local(self, t: int, ids: Ids, seed: int = 0) -> Clients:
        stepped = isinstance(ids, range) and ids.step != 1  # everywhere below, a range is a slice
        return Clients(self, t, np.asarray(ids, np.int64) if stepped else ids, seed)

    @property
    def measures(self) -> tuple[str, ...]:
        return () if self.data.test is None else self.criterion.measures

    def evaluate(self, x: Tensor) -> dict[str, float]:
        if self.data.test is None:
            return {}
        features, labels = self.data.test
        A = torch.as_tensor(np.asarray(features), dtype=self.dtype, device=self.device)
        return self.criterion.score(self._scores(A[None], x[None]), self._labels(labels)[None])

    def smoothness(self) -> Smoothness:
        return self._smoothness

    @cached_property
    def _smoothness(self) -> Smoothness:
        """From the spectra of the Gram matrices A_i' A_i / m_i, the intercept's column of ones included."""
        L, mu_min = 0.0, inf
        total = torch.zeros(())
        for where, A, _ in self._groups(range(self.n)):
            A = A.double()
            A = torch.cat([A, torch.ones_like(A[..., :1])], -1) if self.intercept else A
            gram = A.mT @ A / A.shape[1]
            spectra = torch.linalg.eigvalsh(gram)
            L, mu_min = max(L, float(spectra[:, -1].max())), min(mu_min, float(spectra[:, 0].min()))
            total = total + torch.einsum("g,gij->ij", self.weights[where].double(), gram)
        spectrum = torch.linalg.eigvalsh(total)
        most, least = self.criterion.curvature, self.criterion.least_curvature
        rounding = 1e-14 * self.d * L  # of an eigenvalue that is zero
        mu, mu_min = (least * value if value > rounding else 0.0 for value in (float(spectrum[0]), mu_min))
        return Smoothness(*(c + self.l2 for c in (most * L, most * float(spectrum[-1]), mu, mu_min)))

    def solve(self, tolerance: float = 1e-12) -> Tensor:
        """The minimiser of phi, computed in float64 whatever the dtype of the problem."""
        p = replace(self, dtype=torch.float64)
        return fista(p._mean_gradient, p.h, p.smoothness().L_f, p.start(0), tolerance).to(self.dtype)

    def alpha_max(self) -> float:
        """The smallest weight of h for which the solution is zero wherever this weight can make it so.

        What the weight leaves alone, such as an intercept outside of h's blocks, takes the values that it has there.
        """
        require(self.h.thresholds, f"{type(self.h).__name__} has no weight from which on zero is the solution")
        p = replace(self, dtype=torch.float64)
        x = fista(p._mean_gradient, p.h.held_at_zero(p.d), p.smoothness().L_f, torch.zeros(p.d).to(p.weights), 1e-12)
        return p.h.weight_max(p._mean_gradient(x))

    def _mean_gradient(self, x: Tensor) -> Tensor:
        """Of f = sum p_i f_i, at x (d,)."""
        return self.weights @ self.local(0, range(self.n)).full_grad(x)

    # ---- from x back to the user -------------------------------------------------------------------------------

    def module(self, x: Tensor) -> nn.Linear:
        """A layer with these weights; it takes rows of features, which images are flattened to."""
        q, p = self.blocks[0].shape
        layer = nn.Linear(p, q, self.intercept, device=self.device, dtype=self.dtype).eval()
        layer.load_state_dict(parameters(x, self.blocks))
        return layer

    def _apply(self, x: Tensor, X: np.ndarray) -> Tensor:
        rows = self._fits(flat(X) if X.ndim > 2 else X, self.data.features.shape[1:])
        with torch.no_grad():
            return self.module(x)(torch.as_tensor(rows, dtype=self.dtype, device=self.device))

    def coefficients(self, x: Tensor, nonzero: bool = False) -> Coefficients:
        """The weights by the names of the features, and the intercept; `nonzero`: only those that are not 0."""
        parts = parameters(x, self.blocks)
        bias = parts["bias"].tolist() if self.intercept else None
        return coefficients(self.data.names, parts["weight"].tolist(), bias, nonzero)

    # ---- the two products --------------------------------------------------------------------------------------

    def _scores(self, A: Tensor, x: Tensor) -> Tensor:
        """(c, outputs, samples) of samples A (c, samples, p) at x (c, d)."""
        weight = self.blocks[0]
        W = x[:, : weight.stop].view(-1, *weight.shape)
        if self.intercept:
            return torch.baddbmm(x[:, weight.stop :, None], W, A.mT)
        return torch.bmm(W, A.mT)

    def _gradient(self, A: Tensor, b: Tensor, x: Tensor, out: Tensor) -> None:
        """The gradients (c, d) over samples A, b at x, into `out`."""
        weight, m = self.blocks[0], A.shape[1]
        r = self.criterion.slope(self._scores(A, x), b)
        W, G = (v[:, : weight.stop].view(-1, *weight.shape) for v in (x, out))
        torch.baddbmm(W, r, A, beta=self.l2, alpha=1 / m, out=G)
        if self.intercept:
            out[:, weight.stop :] = self.l2 * x[:, weight.stop :] + r.mean(-1)

    def _groups(self, ids: Ids) -> Iterator[tuple[slice | np.ndarray, Tensor, Tensor]]:
        """Clients of equal size together, without padding: (positions in ids, A (g, m, p), b (g, m))."""
        key = (ids.start, ids.stop) if isinstance(ids, range) else None
        pieces = self._plans.get(key) or self._plan(np.asarray(ids, np.int64))
        if key is not None:
            self._plans[key] = pieces
        for piece in pieces:
            yield (
                piece.where,
                self.A[piece.rows].view(-1, piece.m, self.A.shape[1]),
                self.b[piece.rows].view(-1, piece.m),
            )

    def _plan(self, ids: np.ndarray) -> list[Piece]:
        pieces = []
        for m in np.unique(self.sizes[ids]).tolist():
            same = np.flatnonzero(self.sizes[ids] == m)
            count = min(max(1, len(same) * m * self.A.shape[1] // CACHE), len(same))
            for where in np.array_split(same, count):
                rows = (self.offsets[ids[where], None] + np.arange(m)).reshape(-1)
                pieces.append(Piece(_together(where), _together(rows), m))
        return pieces


class Piece(NamedTuple):
    """Some clients of one size: where they stand among the ids, and where their samples stand in the data."""

    where: slice | np.ndarray
    rows: slice | np.ndarray
    m: int


@dataclass(frozen=True, eq=False)
class Clients(Local):
    """The clients `ids` in round t."""

    problem: Linear
    t: int
    ids: Ids
    seed: int

    @cached_property
    def _batch_key(self) -> Key:
        return keyed_random.keys(self.seed, "minibatch", self.ids, self.t)

    def grad(self, x: Tensor, draw: int) -> Tensor:
        p, c = self.problem, len(self.ids)
        if p.batch is None:
            return self.full_grad(x)
        who = slice(self.ids.start, self.ids.stop) if isinstance(self.ids, range) else np.asarray(self.ids, np.int64)
        x, out = self.spread(x), torch.empty(c, p.d, dtype=p.dtype, device=p.device)
        sample = keyed_random.integers(keyed_random.fold(self._batch_key, draw), p.batch, p.sizes[who])
        sample += p.offsets[:-1][who, None]
        rows = torch.from_numpy(sample).to(p.device)
        step = max(1, GATHER // (p.batch * p.A.shape[1]))
        for k in range(0, c, step):
            part = slice(k, k + step)
            A = p.A.index_select(0, rows[part].reshape(-1)).view(-1, p.batch, p.A.shape[1])
            p._gradient(A, p.b[rows[part]], x[part], out[part])
        return out

    def full_grad(self, x: Tensor) -> Tensor:
        p = self.problem
        x, out = self.spread(x), torch.empty(len(self.ids), p.d, dtype=p.dtype, device=p.device)
        for where, A, b in p._groups(self.ids):
            if isinstance(where, slice):
                p._gradient(A, b, x[where], out[where])
            else:
                g = torch.empty(len(where), p.d, dtype=p.dtype, device=p.device)
                p._gradient(A, b, x[where], g)
                out[where] = g
        return out

    def value(self, x: Tensor) -> Tensor:
        p = self.problem
        x, out = self.spread(x), torch.empty(len(self.ids), dtype=p.dtype, device=p.device)
        for where, A, b in p._groups(self.ids):
            out[where] = p.criterion.value(p._scores(A, x[where]), b).mean(-1)
        return out + p.l2 / 2 * x.square().sum(-1)


def _together(index: np.ndarray) -> slice | np.ndarray:
    """A slice, which makes a view instead of a copy, where the indices are consecutive."""
    consecutive = len(index) > 0 and bool((np.diff(index) == 1).all())
    return slice(int(index[0]), int(index[-1]) + 1) if consecutive else index
