"""Generalised linear models: closed-form gradients for a whole block of clients at once.

    f_i(x) = sum_j w_ij loss(A_ij x, b_ij) / sum_j w_ij + (l2/2) |x|^2

The weights w_ij are those of the samples times those of their classes; without any, all are 1 and nothing is
multiplied. With weights, v_ij = w_ij m_i / sum_j w_ij is what a sample counts in a plain mean. x is the weight matrix
(outputs, features) followed by the intercepts, as one row. Activations are kept as (clients, outputs, samples), so that
a layer and its gradient are one batched product each, without transposes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import keyed_random
from proxfed.data.federated import Federated, flat, rows
from proxfed.data.on_demand import OnDemand
from proxfed.errors import require
from proxfed.keyed_random import Ids, Key
from proxfed.problems.base import DataProblem
from proxfed.problems.class_weights import with_classes
from proxfed.problems.coefficients import Coefficients, coefficients
from proxfed.problems.cox import by_time
from proxfed.problems.feature_groups import labels_of
from proxfed.problems.fetched import Fetched
from proxfed.problems.fista import by_line_search, fista
from proxfed.problems.loop import parameters
from proxfed.problems.losses import Loss
from proxfed.problems.spectra import Extremes, extremes
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
    loss: Loss | str | dict[str, Any] = field()
    """An object such as Logistic(), or its name: 'squared', 'huber', 'logistic', 'cross_entropy', 'one_hot', 'poisson',
    'cox'; or a table with its name and settings."""
    h: Regulariser = Zero()
    """On the whole vector; `OnBlocks.named(problem.blocks, {"weight": ...})` leaves the intercept alone."""
    l2: float = 0.0
    """Weight of (l2/2) |x|^2 inside every f_i."""
    batch: int | None = None
    """Samples of a stochastic gradient, drawn independently and uniformly; None: full gradients."""
    weighting: str = "uniform"
    """p_i: 'uniform', or 'size' for the client's part of all samples, counted with their weights."""
    intercept: bool = False
    class_weights: str | dict[str, float] | None = None
    """How much the samples of a class count: 'balanced' for the same in all, over all clients together, or a number by
    label, 1 where none is given; None: what the samples themselves weigh."""
    dtype: torch.dtype = torch.float64
    """float64 by default: exact solutions are within reach."""
    device: str = "cpu"
    x0: Tensor | None = None
    """Where it begins; None: at zero."""
    _plans: dict[tuple[int, int] | None, list[Piece]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.check()
        if isinstance(self.data, OnDemand):
            object.__setattr__(self, "train_measures", False)  # they would read everybody's samples
        if self.data.features.ndim > 2:  # images
            object.__setattr__(self, "data", rows(self.data))
        require(
            self.data.features.ndim == 2,
            f"{self.data.name}: a linear model takes features of shape (samples, p)",
        )
        self.blocks  # noqa: B018  the labels must fit the loss
        self.v  # noqa: B018  and the class weights the labels
        name, separate = type(self.criterion).__name__, self.criterion.separate
        require(separate or self.batch is None, f"{name}: batch = {self.batch}, but a part of the samples has no loss")
        require(separate or not self.intercept, f"{name}: intercept = True, but the baseline hazard takes its place")
        self._check_x0()

    def _with(self, **values: Any) -> Self:
        if not values.keys() <= {"h", "x0"}:
            return super()._with(**values)
        other = copy.copy(self)  # what was computed from the data stays
        for name, value in values.items():
            object.__setattr__(other, name, value)
        other.check()
        other._check_x0()
        return other

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
    def _order(self) -> np.ndarray | slice:
        """The rows as they are computed with: as they come, or by time where the loss looks at risk sets."""
        return slice(None) if self.criterion.separate else by_time(self.data.labels, self.offsets)

    @cached_property
    def A(self) -> Tensor:
        return torch.tensor(np.asarray(self.data.features)[self._order], dtype=self.dtype, device=self.device)

    @cached_property
    def b(self) -> Tensor:
        return self._labels(self.data.labels[self._order])

    @cached_property
    def _sample_weights(self) -> np.ndarray | None:
        """w, (N,), in the order of the data."""
        if self.class_weights == "balanced":
            self._everybody("class_weights = 'balanced'")
        return with_classes(self.data, self.class_weights)

    @cached_property
    def weight_sums(self) -> np.ndarray:
        if self.class_weights is None:
            return self.data.weight_sums
        self._everybody("weighting = 'size' with class_weights")
        return replace(self.data, sample_weights=self._sample_weights).weight_sums

    @cached_property
    def v(self) -> Tensor | None:
        """(N,): what a sample counts in its client's mean; None: all the same."""
        if self._sample_weights is None:
            return None
        each = self._sample_weights * np.repeat(self.data.sizes / self.weight_sums, self.data.sizes)
        return torch.tensor(each[self._order], dtype=self.dtype, device=self.device)

    # ---- the protocol ------------------------------------------------------------------------------------------

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        if isinstance(self.data, OnDemand):
            return Fetched(self, t, ids, seed)
        stepped = isinstance(ids, range) and ids.step != 1  # everywhere below, a range is a slice
        return Clients(self, t, np.asarray(ids, np.int64) if stepped else ids, seed)

    @property
    def measures(self) -> tuple[str, ...]:
        return () if self.data.test is None else self.criterion.measures

    def evaluate(self, x: Tensor) -> dict[str, float]:
        if self.data.test is None:
            return {}
        features, labels = self.data.test
        if not self.criterion.separate:
            order = by_time(labels, np.array([0, len(labels)]))
            features, labels = features[order], labels[order]
        A = torch.as_tensor(np.asarray(features), dtype=self.dtype, device=self.device)
        return self.criterion.score(self._scores(A[None], x[None]), self._labels(labels)[None])

    def smoothness(self) -> Smoothness:
        return self._smoothness

    @cached_property
    def _smoothness(self) -> Smoothness:
        self._everybody("the smoothness of f")
        most, least = self.criterion.curvature, self.criterion.least_curvature
        L = float(self.client_smoothness.max())
        if not self.criterion.separate:
            return Smoothness(L, float(self.weights.double() @ self.client_smoothness), self.l2, self.l2)
        whole = self._whole_spectrum()
        mu = least * self._not_rounding(whole.smallest)
        return Smoothness(L, most * float(whole.largest) + self.l2, mu + self.l2, float(self.client_convexity.min()))

    @cached_property
    def client_convexity(self) -> Tensor:
        """A strong convexity constant of each f_i that is here."""
        if not self.criterion.separate:
            return torch.full((len(self.data),), self.l2, dtype=torch.float64)
        least = self.criterion.least_curvature
        smallest = [self._not_rounding(value) for value in self._spectra.smallest]
        return least * torch.tensor(smallest, dtype=torch.float64) + self.l2

    def _not_rounding(self, value: Tensor) -> float:
        """An eigenvalue, if it is more than the rounding error of one that is zero."""
        return float(value) if value > 1e-14 * self.d * float(self._spectra.largest.max()) else 0.0

    @cached_property
    def client_smoothness(self) -> Tensor:
        """A smoothness constant of each f_i that is here, which its client can tell from its own samples."""
        if not self.criterion.separate:
            cox, out = self.criterion, torch.zeros(len(self.data), dtype=torch.float64)
            for where, A, b, v in self._groups(self.data.here):
                out[where] = cox.smoothness(A.double(), b, torch.ones_like(b) if v is None else v)  # type: ignore[attr-defined]
            return out + self.l2
        most, name = self.criterion.curvature, type(self.criterion).__name__
        require(isfinite(most), f"{name}: its curvature has no bound, so there is no step size by theory: give numbers")
        return most * self._spectra.largest + self.l2

    @cached_property
    def _spectra(self) -> Extremes:
        """Of each A_i' A_i / m_i that is here, the intercept's column of ones included."""
        largest, smallest = torch.zeros(2, len(self.data), dtype=torch.float64)
        for where, A, _, v in self._groups(self.data.here):
            largest[where], smallest[where] = extremes(self._scaled(A, v), A.shape[1])
        return Extremes(largest, smallest)

    def _whole_spectrum(self) -> Extremes:
        """Of sum_i p_i A_i' A_i / m_i."""
        p, wide, total = self.weights.double(), len(self.A) < self.A.shape[1], torch.zeros(())
        stacked = []
        for where, A, _, v in self._groups(range(self.n)):
            A, m = self._scaled(A, v), A.shape[1]
            if wide:
                stacked.append((A * (p[where] / m).sqrt()[:, None, None]).flatten(0, 1))
            else:
                total = total + torch.einsum("g,gij->ij", p[where], A.mT @ A / m)
        if wide:
            return extremes(torch.cat(stacked))
        values = torch.linalg.eigvalsh(total)
        return Extremes(values[-1], values[0])

    def _scaled(self, A: Tensor, v: Tensor | None) -> Tensor:
        """Rows times the roots of what they count, with a column of ones if there is an intercept."""
        A = A.double()
        A = torch.cat([A, torch.ones_like(A[..., :1])], -1) if self.intercept else A
        return A if v is None else A * v.double().sqrt()[..., None]

    def solve(self, tolerance: float = 1e-12) -> Tensor:
        """The minimiser of phi, computed in float64 whatever the dtype of the problem."""
        p = replace(self, dtype=torch.float64)
        return p._minimise(p.h, p.start(0), tolerance).to(self.dtype)

    def alpha_max(self) -> float:
        """The smallest weight of h for which the solution is zero wherever this weight can make it so.

        What the weight leaves alone, such as an intercept outside of h's blocks, takes the values that it has there.
        """
        require(self.h.thresholds, f"{type(self.h).__name__} has no weight from which on zero is the solution")
        p = replace(self, dtype=torch.float64)
        x = p._minimise(p.h.held_at_zero(p.d), torch.zeros(p.d).to(p.weights), 1e-12)
        return p.h.weight_max(p._mean_gradient(x))

    def _minimise(self, h: Regulariser, x0: Tensor, tolerance: float) -> Tensor:
        if not isfinite(self.criterion.curvature) and self.criterion.separate:  # there is no L
            return by_line_search(self._mean_gradient, self._mean_value, h, x0, tolerance)
        return fista(self._mean_gradient, h, self.smoothness().L_f, x0, tolerance)

    def _mean_gradient(self, x: Tensor) -> Tensor:
        """Of f = sum p_i f_i, at x (d,)."""
        return self.weights @ self.local(0, range(self.n)).full_grad(x)

    def _mean_value(self, x: Tensor) -> Tensor:
        return self.weights @ self.local(0, range(self.n)).value(x)

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

    def feature_groups(self, groups: Mapping[str, Any]) -> tuple[int, ...]:
        """The `labels` of a GroupLasso or SparseGroup on the weights, by name: {group: features} or {feature: group}.

        A feature in none is a group of its own; with several classes it brings its weights of all of them.
        """
        return labels_of(self.data.names, groups) * self.blocks[0].shape[0]

    # ---- the two products --------------------------------------------------------------------------------------

    def _scores(self, A: Tensor, x: Tensor) -> Tensor:
        """(c, outputs, samples) of samples A (c, samples, p) at x (c, d)."""
        weight = self.blocks[0]
        W = x[:, : weight.stop].view(-1, *weight.shape)
        if self.intercept:
            return torch.baddbmm(x[:, weight.stop :, None], W, A.mT)
        return torch.bmm(W, A.mT)

    def _gradient(self, A: Tensor, b: Tensor, v: Tensor | None, x: Tensor, out: Tensor) -> None:
        """The gradients (c, d) over samples A, b that count v at x, into `out`."""
        weight, m, loss = self.blocks[0], A.shape[1], self.criterion
        s = self._scores(A, x)
        r = loss.slope(s, b) if v is None else loss.weighted_slope(s, b, v)
        W, G = (v[:, : weight.stop].view(-1, *weight.shape) for v in (x, out))
        torch.baddbmm(W, r, A, beta=self.l2, alpha=1 / m, out=G)
        if self.intercept:
            out[:, weight.stop :] = self.l2 * x[:, weight.stop :] + r.mean(-1)

    def _groups(self, ids: Ids) -> Iterator[tuple[slice | np.ndarray, Tensor, Tensor, Tensor | None]]:
        """Clients of equal size together, without padding: (positions in ids, A (g, m, p), b and v (g, m))."""
        key = (ids.start, ids.stop) if isinstance(ids, range) else None
        pieces = self._plans.get(key) or self._plan(np.asarray(ids, np.int64))
        if key is not None:
            self._plans[key] = pieces
        for piece in pieces:
            yield (
                piece.where,
                self.A[piece.rows].view(-1, piece.m, self.A.shape[1]),
                self.b[piece.rows].view(-1, piece.m),
                None if self.v is None else self.v[piece.rows].view(-1, piece.m),
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
        return keyed_random.keys(self.seed, "minibatch", self.problem.numbered(self.ids), self.t)

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
            p._gradient(A, p.b[rows[part]], None if p.v is None else p.v[rows[part]], x[part], out[part])
        return out

    def full_grad(self, x: Tensor) -> Tensor:
        p = self.problem
        x, out = self.spread(x), torch.empty(len(self.ids), p.d, dtype=p.dtype, device=p.device)
        for where, A, b, v in p._groups(self.ids):
            if isinstance(where, slice):
                p._gradient(A, b, v, x[where], out[where])
            else:
                g = torch.empty(len(where), p.d, dtype=p.dtype, device=p.device)
                p._gradient(A, b, v, x[where], g)
                out[where] = g
        return out

    def value(self, x: Tensor) -> Tensor:
        p = self.problem
        x, out = self.spread(x), torch.empty(len(self.ids), dtype=p.dtype, device=p.device)
        for where, A, b, v in p._groups(self.ids):
            s = p._scores(A, x[where])
            losses = p.criterion.value(s, b) if v is None else p.criterion.weighted_value(s, b, v)
            out[where] = losses.mean(-1)
        return out + p.l2 / 2 * x.square().sum(-1)


def _together(index: np.ndarray) -> slice | np.ndarray:
    """A slice, which makes a view instead of a copy, where the indices are consecutive."""
    consecutive = len(index) > 0 and bool((np.diff(index) == 1).all())
    return slice(int(index[0]), int(index[-1]) + 1) if consecutive else index
