"""Generalised linear models: closed-form gradients for a whole block of clients at once.

    f_i(x) = sum_j w_ij loss(A_ij x, b_ij) / sum_j w_ij + (l2/2) |x|^2

The weight w_ij is the sample's weight times its class's weight; without weights all are 1 and nothing is multiplied.
v_ij = w_ij m_i / sum_j w_ij is the sample's weight in a plain mean. x is the weight matrix (outputs, features) followed
by the intercepts, as one row. Sparse features stay sparse.

`passes.py` defines the sums over samples, `curvature.py` the smoothness of f.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import keyed_random
from proxfed.data.federated import flat, rows
from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import require
from proxfed.keyed_random import Ids, Key
from proxfed.machine import numba_is_used, with_double
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.problems.fetched import Fetched
from proxfed.problems.fista import by_line_search, fista
from proxfed.problems.linear.class_weights import with_classes
from proxfed.problems.linear.coefficients import Coefficients, coefficients
from proxfed.problems.linear.cox import by_time
from proxfed.problems.linear.curvature import Curvature
from proxfed.problems.linear.feature_groups import labels_of
from proxfed.problems.linear.hessian import hessian
from proxfed.problems.linear.passes import FEW, FUSED, Passes
from proxfed.problems.linear.sparse_products import Entries
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import find_loss
from proxfed.problems.neural.loop import parameters
from proxfed.regularisers import OnBlocks, Zero
from proxfed.types import Block, Local, Problem, Regulariser, Smoothness

AHEAD = 1 << 20
"""Samples of local steps drawn at a time."""


@dataclass(frozen=True, eq=False)
class Linear(EmpiricalRisk):
    """f of a linear model over the clients' data."""

    loss: Loss | str | dict[str, Any]
    """An object such as Logistic(), its name ('squared', 'huber', 'logistic', 'cross_entropy', 'one_hot', 'poisson',
    'cox'), or a table with its name and settings."""
    _: KW_ONLY
    batch: int | None = None
    """Samples of a stochastic gradient, drawn independently and uniformly; None: full gradients."""
    intercept: bool = False
    """Whether to add a constant to every score; `f + h` leaves it unpenalised."""
    class_weights: str | dict[str, float] | None = None
    """Weights of classes: 'balanced' gives all classes the same total weight over all clients; or a number by label (1
    if a label is missing); None: only the samples' own weights."""
    dtype: torch.dtype = torch.float64
    """float64 by default, for accurate solutions."""

    def __post_init__(self) -> None:
        self.check()
        object.__setattr__(self, "loss", find_loss(self.loss))
        if isinstance(self.data, OnDemand):
            object.__setattr__(self, "train_measures", False)  # they would read the samples of all clients
        if self.data.features.ndim > 2:  # images
            object.__setattr__(self, "data", rows(self.data))
        require(
            self.data.features.ndim == 2,
            f"{self.data.name}: a linear model takes features of shape (samples, p)",
        )
        self.blocks  # noqa: B018  the labels must fit the loss
        self.v  # noqa: B018  and the class weights the labels
        name, separate = type(self.criterion).__name__, self.criterion.separate
        require(separate or self.batch is None, f"{name}: batch = {self.batch}, but its loss needs all samples")
        require(separate or not self.intercept, f"{name}: intercept = True, but the baseline hazard takes its place")

    def __add__(self, h: Regulariser) -> Problem[Self]:
        """f + h, with h on the weights only: the intercept is not penalised. `Problem(f, h)` has h on all of x."""
        alone = not self.intercept or isinstance(h, (OnBlocks, Zero)) or not isinstance(h, Regulariser)
        return Problem(self, h if alone else OnBlocks.named(self.blocks, {"weight": h}))

    @property
    def criterion(self) -> Loss:
        assert isinstance(self.loss, Loss)  # found by its name
        return self.loss

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
        """The order of the rows in computations: the data's own, or by time if the loss uses risk sets."""
        return slice(None) if self.criterion.separate else by_time(self.data.labels, self.offsets)

    @cached_property
    def samples(self) -> Features:
        """(N, p): the features in that order and in the problem's dtype; not a copy if nothing changes."""
        dtype, features = torch.empty(0, dtype=self.dtype).numpy().dtype, self.data.features
        if isinstance(features, SparseRows):
            chosen = features if isinstance(self._order, slice) else features[self._order]
            return replace(chosen, values=np.require(chosen.values, dtype, ["C", "W"]))
        return np.require(features[self._order], dtype, ["C", "W"])

    @cached_property
    def A(self) -> Tensor:
        """The same as a tensor, for dense features."""
        assert isinstance(self.samples, np.ndarray)
        return torch.from_numpy(self.samples).to(self.device)

    @cached_property
    def b(self) -> Tensor:
        return self._labels(self.data.labels[self._order])

    @cached_property
    def sample_weights(self) -> np.ndarray | None:
        """w, (N,), in the order of the data."""
        if self.class_weights is None:
            return self.data.sample_weights
        if self.class_weights == "balanced":
            self._everybody("class_weights = 'balanced'")
        return with_classes(self.data, self.class_weights)

    @cached_property
    def weight_sums(self) -> np.ndarray:
        if self.class_weights is None:
            return self.data.weight_sums
        self._everybody("weighting = 'size' with class_weights")
        return replace(self.data, sample_weights=self.sample_weights).weight_sums

    @cached_property
    def v(self) -> Tensor | None:
        """(N,): the sample's weight in its client's mean; None: all equal."""
        if self.sample_weights is None:
            return None
        each = self.sample_weights * np.repeat(self.data.sizes / self.weight_sums, self.data.sizes)
        return torch.tensor(each[self._order], dtype=self.dtype, device=self.device)

    @cached_property
    def passes(self) -> Passes:
        """How sums over the samples are computed: in one compiled pass if numba is installed (`pip install
        "proxfed[fast]"`), on the CPU, for the losses that it supports and if that is faster; else as products."""
        sparse = isinstance(self.data.features, SparseRows)
        known = self.device == "cpu" and type(self.criterion) in FUSED
        if known and (sparse or self.blocks[0].shape[0] <= FEW) and numba_is_used():
            from proxfed.problems.linear.fused import Fused

            return Fused(self)
        from proxfed.problems.linear.products import Products
        from proxfed.problems.linear.sparse_products import SparseProducts

        return SparseProducts() if sparse else Products()

    # ---- the protocol ------------------------------------------------------------------------------------------

    @property
    def sample_size(self) -> float:
        """Numbers that the gradient of a sample reads, on average."""
        A, outputs = self.data.features, self.blocks[0].shape[0]
        return outputs * (len(A.values) / max(1, len(A)) if isinstance(A, SparseRows) else A.shape[1])

    @cached_property
    def gradient_size(self) -> int:
        samples = self.data.sizes.sum() / max(1, len(self.data.sizes)) if self.batch is None else self.batch
        return int(self.sample_size * samples)

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        if isinstance(self.data, OnDemand):
            return Fetched(self, t, ids, seed)
        stepped = isinstance(ids, range) and ids.step != 1  # below, a range is always a slice
        return Clients(self, t, np.asarray(ids, np.int64) if stepped else ids, seed)

    @property
    def has_hessian(self) -> bool:  # type: ignore[override]
        return self.criterion.twice_differentiable

    def _tested(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert self.data.test is not None
        features, labels = self.data.test
        if not self.criterion.separate:
            order = by_time(labels, np.array([0, len(labels)]))
            features, labels = features[order], labels[order]
        return self._scores(x, features).mT[None], self._labels(labels)[None]

    def smoothness(self) -> Smoothness:
        self._everybody("the smoothness of f")
        return self._curvature.smoothness

    @property
    def client_smoothness(self) -> Tensor:
        """A smoothness constant of each local f_i, which a client computes from its own samples."""
        return self._curvature.of_clients

    @property
    def client_convexity(self) -> Tensor:
        """A strong convexity constant of each local f_i."""
        return self._curvature.convexity_of_clients

    @cached_property
    def _curvature(self) -> Curvature:
        return Curvature(self)

    @cached_property
    def double(self) -> Linear:
        if self.dtype == torch.float64:
            return self
        return replace(self, dtype=torch.float64, device=with_double(self.device))

    def minimise(self, h: Regulariser, x0: Tensor, tolerance: float = 1e-12) -> Tensor:
        if not isfinite(self.criterion.curvature) and self.criterion.separate:  # there is no L
            return by_line_search(self.gradient, self.value, h, x0, tolerance)
        return fista(self.gradient, h, self.smoothness().L_f, x0, tolerance)

    # ---- using the model x -------------------------------------------------------------------------------------

    def module(self, x: Tensor) -> nn.Linear:
        """A layer with these weights; it takes rows of features (flatten images first)."""
        q, p = self.blocks[0].shape
        layer = nn.Linear(p, q, self.intercept, device=self.device, dtype=self.dtype).eval()
        layer.load_state_dict(parameters(x, self.blocks))
        return layer

    def _apply(self, x: Tensor, X: Features) -> Tensor:
        return self._scores(x, self._fits(flat(X) if X.ndim > 2 else X, self.data.features.shape[1:]))

    def _scores(self, x: Tensor, X: Features) -> Tensor:
        """Scores (k, outputs) of samples X (k, p)."""
        if not isinstance(X, SparseRows):
            with torch.no_grad():
                return self.module(x)(torch.as_tensor(X, dtype=self.dtype, device=self.device))
        weight, bias = self.blocks[0], x[self.blocks[0].stop :]
        s = Entries(X, np.zeros(len(X), np.int64), x).scores(x[: weight.stop].view(1, *weight.shape)).mT
        return s + bias if self.intercept else s

    def coefficients(self, x: Tensor, nonzero: bool = False) -> Coefficients:
        """The weights by the names of the features, and the intercept; `nonzero`: only those that are not 0."""
        parts = parameters(x, self.blocks)
        bias = parts["bias"].tolist() if self.intercept else None
        return coefficients(self.data.names, parts["weight"].tolist(), bias, nonzero)

    def feature_groups(self, groups: Mapping[str, Any]) -> tuple[int, ...]:
        """The `labels` of a GroupLasso or SparseGroup on the weights, by name: {group: features} or {feature: group}.

        A feature without a group is a group of its own. With several classes, a feature's weights of all classes are in
        its group.
        """
        return labels_of(self.data.names, groups) * self.blocks[0].shape[0]


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
        p = self.problem
        return self.full_grad(x) if p.batch is None else p.passes.minibatch(p, self._rows(draw, p.batch), x)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        p = self.problem
        if p.batch is None:
            for _ in draws:
                y.sub_(self.full_grad(y), alpha=eta)
        else:
            ahead = max(1, AHEAD // max(1, len(y) * p.batch))
            for k in range(0, len(draws), ahead):
                p.passes.descend(p, np.stack([self._rows(draw, p.batch) for draw in draws[k : k + ahead]]), y, eta)

    def _rows(self, draw: int, batch: int) -> np.ndarray:
        """The sample indices of a draw, (c, batch)."""
        p = self.problem
        who = slice(self.ids.start, self.ids.stop) if isinstance(self.ids, range) else np.asarray(self.ids, np.int64)
        sample = keyed_random.integers(keyed_random.fold(self._batch_key, draw), batch, p.sizes[who])
        sample += p.offsets[:-1][who, None]
        return sample

    def full_grad(self, x: Tensor) -> Tensor:
        return self.problem.passes.full(self.problem, self.ids, x, gradients=True).gradients

    def value(self, x: Tensor) -> Tensor:
        return self.problem.passes.full(self.problem, self.ids, x, values=True).values

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.problem.passes.full(self.problem, self.ids, x, values=True, gradients=True)

    @property
    def l2(self) -> float:
        return self.problem.l2

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return hessian(self.problem, self.ids, x)
