"""Smoothness and strong convexity of linear models.

The Hessian of f_i is between the Hessian of least squares times the least and the largest curvature of the loss, plus
l2. Its spectrum is computed exactly for dense features. For sparse features the largest eigenvalue is Lanczos' estimate
plus its residual, and the smallest is taken to be 0.

All of it is computed once, on the CPU and in float64, whatever the device and dtype of f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import require
from proxfed.keyed_random import generator
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Squared
from proxfed.types import Smoothness

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear

ROOM = 1 << 22
"""Numbers of the clients' vectors that Lanczos' iteration processes at a time."""


class Extremes(NamedTuple):
    """The largest and the smallest eigenvalue, each (...)."""

    largest: Tensor
    smallest: Tensor


class Curvature:
    def __init__(self, problem: Linear) -> None:
        self.p = problem if problem.device == "cpu" else replace(problem, device="cpu")

    @cached_property
    def smoothness(self) -> Smoothness:
        p, loss = self.p, self.p.criterion
        L, mu_min = float(self.of_clients.max()), float(self.convexity_of_clients.min())
        if not loss.separate:
            return Smoothness(L, float(p.weights.double() @ self.of_clients), p.l2, mu_min)
        mu = loss.least_curvature * float(self._not_rounding(self._whole.smallest))
        return Smoothness(L, loss.curvature * float(self._whole.largest) + p.l2, mu + p.l2, mu_min)

    @cached_property
    def convexity_of_clients(self) -> Tensor:
        """A strong convexity constant of each local f_i."""
        p, loss = self.p, self.p.criterion
        if not loss.separate:
            return torch.full((len(p.data),), p.l2, dtype=torch.float64)
        return loss.least_curvature * self._not_rounding(self._each.smallest) + p.l2

    def _not_rounding(self, values: Tensor) -> Tensor:
        """The eigenvalues, with those below the rounding error set to 0."""
        rounding = 1e-14 * self.p.d * max(self._each.largest.tolist(), default=0.0)
        return torch.where(values > rounding, values, 0.0)

    @cached_property
    def of_clients(self) -> Tensor:
        """A smoothness constant of each local f_i."""
        p, loss = self.p, self.p.criterion
        if isinstance(loss, Cox):
            return self._of_cox(loss) + p.l2
        name = type(loss).__name__
        bounded = isfinite(loss.curvature)
        require(bounded, f"{name}: its curvature has no bound, so there is no step size by theory: give numbers")
        return loss.curvature * self._each.largest + p.l2

    def _of_cox(self, cox: Cox) -> Tensor:
        p = self.p
        b, v = p.b.double(), torch.ones_like(p.b) if p.v is None else p.v.double()
        ends = [slice(start, stop) for start, stop in pairwise(p.data.offsets)]
        each = [float(cox.smoothness(_distances(p.samples[i]).to(b), b[i], v[i])) for i in ends]
        return torch.tensor(each, dtype=torch.float64)

    # ---- spectra of least squares, with a column of ones for the intercept -------------------------------------

    @cached_property
    def _each(self) -> Extremes:
        """The extreme eigenvalues of A_i' A_i / m_i for each local client."""
        p, here = self.p, self.p.data.here
        largest, smallest = torch.zeros(2, len(here), dtype=torch.float64)
        if isinstance(p.samples, SparseRows):
            step = max(1, ROOM // p.samples.width)
            for k in range(0, len(here), step):
                ids = here[k : k + step]
                largest[k : k + step] = lanczos(self._times(ids), self._begin(len(ids)))
        else:
            for where, A in self._groups(here):
                largest[where], smallest[where] = extremes(A, A.shape[1])
        return Extremes(largest, smallest)

    @cached_property
    def _whole(self) -> Extremes:
        """The extreme eigenvalues of sum_i p_i A_i' A_i / m_i."""
        p, weights = self.p, self.p.weights.double()
        if isinstance(p.samples, SparseRows):
            times = self._times(range(p.n))
            return Extremes(lanczos(lambda x: (weights @ times(x))[None], self._begin(1))[0], torch.zeros(()))
        wide, total, stacked = len(p.samples) < p.samples.shape[1], torch.zeros(()), []
        for where, A in self._groups(range(p.n)):
            m = A.shape[1]
            if wide:
                stacked.append((A * (weights[where] / m).sqrt()[:, None, None]).flatten(0, 1))
            else:
                total = total + torch.einsum("g,gij->ij", weights[where], A.mT @ A / m)
        if wide:
            return extremes(torch.cat(stacked))
        values = torch.linalg.eigvalsh(finite(total))
        return Extremes(values[-1], values[0])

    def _groups(self, ids: range) -> Iterator[tuple[slice | np.ndarray, Tensor]]:
        """(positions among the ids, samples (g, m, p)) for clients of one size: rows times the square roots of their
        weights, with a column of ones if there is an intercept."""
        samples, v = self.p.A, self.p.v
        for where, rows, m in self.p.pieces(ids):
            A = samples[rows].view(-1, m, samples.shape[1]).double()
            A = torch.cat([A, torch.ones_like(A[..., :1])], -1) if self.p.intercept else A
            yield where, A if v is None else A * v[rows].view(-1, m, 1).double().sqrt()

    def _times(self, ids: range) -> Callable[[Tensor], Tensor]:
        """x (c, d) -> A_i' A_i x_i / m_i: the gradients of least squares with labels 0."""
        p = self.p
        zero = np.zeros(len(p.data.labels))
        data = replace(p.data, labels=zero, classes=None, sample_weights=p.sample_weights, test=None, test_clients=None)
        f = replace(p, data=data, loss=Squared(), l2=0.0, batch=None, class_weights=None, dtype=torch.float64)
        local = f.local(0, ids)
        return lambda x: local.full_grad(x if len(x) == len(ids) else x[0])

    def _begin(self, c: int) -> Tensor:
        width = self.p.samples.shape[1] + self.p.intercept
        return torch.tensor(generator(0, "smoothness").normal(size=width)).expand(c, -1)


# ---- extreme eigenvalues --------------------------------------------------------------------------------------------


def extremes(A: Tensor, m: int = 1) -> Extremes:
    """The extreme eigenvalues of A'A / m for A (..., rows, columns); if there are fewer rows, of AA' / m and 0."""
    wide = A.shape[-2] < A.shape[-1]
    values = torch.linalg.eigvalsh(finite((A @ A.mT if wide else A.mT @ A) / m))
    return Extremes(values[..., -1], torch.zeros_like(values[..., 0]) if wide else values[..., 0])


def finite(x: Tensor) -> Tensor:
    """x itself, computed from squares of features; refused if these overflow."""
    require(bool(x.isfinite().all()), "the features are so large that their squares overflow: scale them")
    return x


def lanczos(times: Callable[[Tensor], Tensor], start: Tensor, tolerance: float = 1e-10, steps: int = 200) -> Tensor:
    """The largest eigenvalue (c,) of each of c positive semi-definite matrices, given by products `times`.

    The rows `start`, (c, d), must not be orthogonal to the eigenvectors. A bound of the remaining error is added, so
    that the result is an upper bound.
    """
    q, before = start / start.norm(dim=-1, keepdim=True), torch.zeros_like(start)
    beta = torch.zeros(len(q), dtype=q.dtype)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for k in range(1, steps + 1):
        w = times(q) - beta[:, None] * before
        diagonal.append((w * q).sum(-1))
        w = w - diagonal[-1][:, None] * q
        beta = w.norm(dim=-1)
        T = torch.diag_embed(torch.stack(diagonal, -1))
        if beside:
            T = T + torch.diag_embed(torch.stack(beside, -1), 1) + torch.diag_embed(torch.stack(beside, -1), -1)
        values, vectors = torch.linalg.eigh(finite(T))
        wrong = beta * vectors[:, -1, -1].abs()
        if bool((wrong <= tolerance * values[:, -1]).all()) or k == start.shape[-1]:
            break
        beside.append(beta)
        before, q = q, w / beta.clamp_min(torch.finfo(w.dtype).tiny)[:, None]
    return values[:, -1] + wrong


def _distances(A: np.ndarray | SparseRows) -> Tensor:
    """(m,): the squared distances of a client's samples from their mean."""
    if not isinstance(A, SparseRows):
        A = A.astype(np.float64, copy=False)
        return torch.from_numpy(np.square(A - A.mean(0)).sum(1))
    values, row = A.values.astype(np.float64), A.row_of
    mean = np.bincount(A.indices, values, A.width) / len(A)
    changed = np.square(values - mean[A.indices]) - np.square(mean[A.indices])
    return torch.from_numpy(np.square(mean).sum() + np.bincount(row, changed, len(A)))
