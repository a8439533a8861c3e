"""Curvature as a sum of rank-one pieces: the pieces of each client, and their mean at the server.

A client's curvature H is approximated by Hh = sum_k a_k v_k v_k'. The next piece is the top eigenvector of the
remainder R = H - Hh, from Lanczos' iteration, which needs only products of R with vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.algorithms.proximal_model import Metric

GRADES = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
"""The possible q^2 of messages; half a byte encodes the choice."""

PIECES = 64
"""The most pieces that a client keeps; once it has them, it sends no more."""

FULL = 1024
"""Up to this d the server stores the mean of the Hh_i as a matrix; above, as at most this many pieces."""

LANCZOS = 12
"""Hessian products per eigenvector."""

Times = Callable[[Tensor], Tensor]


class Pieces(NamedTuple):
    """The pieces of the clients of a block."""

    v: Tensor  # (c, PIECES, d)
    a: Tensor  # (c, PIECES) their factors
    number: Tensor  # (c,) the number of pieces

    @classmethod
    def none(cls, rows: Tensor) -> Pieces:
        """No pieces yet, for clients with rows (c, d)."""
        c, d = rows.shape
        v = rows.new_zeros(c, PIECES, d)
        return cls(v, v[:, :, 0], torch.zeros(c, dtype=torch.int64, device=rows.device))

    def __call__(self, V: Tensor) -> Tensor:
        """Hh of each client times its row, (c, d)."""
        k = int(self.number.max()) if len(self.number) else 0
        v, a = self.v[:, :k], self.a[:, :k]
        return ((a * (v @ V[:, :, None])[:, :, 0])[:, None] @ v)[:, 0]

    @property
    def room(self) -> Tensor:
        """(c,): whether there is room for another piece."""
        return self.number < self.v.shape[1]

    def with_one(self, v: Tensor, a: Tensor) -> Pieces:
        """With one more piece, (c, d) and (c,), for every client whose factor is not 0."""
        here = torch.arange(self.v.shape[1], device=a.device) == self.number[:, None]
        new = here & (a != 0)[:, None]
        v, factors = torch.where(new[:, :, None], v[:, None], self.v), torch.where(new, a[:, None], self.a)
        return Pieces(v, factors, self.number + (a != 0))


class Known(NamedTuple):
    """The mean of the Hh_i, at the server."""

    H: Tensor  # (d, d); (0, 0) for large d, which has instead:
    v: Tensor  # (FULL, d) all pieces
    a: Tensor  # (FULL,) and their factors
    used: Tensor  # the number of pieces

    @classmethod
    def nothing(cls, y: Tensor) -> Known:
        """No curvature yet, for functions of y."""
        side, room = (len(y), 0) if len(y) <= FULL else (0, FULL)
        return cls(y.new_zeros(side, side), y.new_zeros(room, len(y)), y.new_zeros(room), y.new_zeros(()))

    def __call__(self, p: Tensor) -> Tensor:
        """Its product with p, (d,), in float64."""
        if self.H.numel():
            return self.H.double() @ p
        v, a = self.v[: int(self.used)].double(), self.a[: int(self.used)].double()
        return v.mT @ (a * (v @ p))

    def has_room(self, clients: int) -> bool:
        return self.H.numel() > 0 or int(self.used) + clients <= FULL

    def plus(self, a: Tensor, v: Tensor) -> Known:
        """With the pieces of all clients, their factors times their weights."""
        if self.H.numel():
            return self._replace(H=(self.H.double() + (v * a[:, None]).mT @ v).to(self.H))
        where = slice(int(self.used), int(self.used) + len(a))
        vectors, factors = self.v.clone(), self.a.clone()
        vectors[where], factors[where] = v.to(vectors), a.to(factors)
        return self._replace(v=vectors, a=factors, used=self.used + len(a))

    def metric(self, b: float, pair: Tensor, least: float) -> Metric:
        """The mean plus b I, with the secant pair (step, change of the gradient) if its curvature is positive.

        The mean of the H_i has no negative eigenvalues. Those of the pieces come from quantisation and from Hessians at
        old points, and would make steps far too long: they are set to 0.
        """
        step, change = pair
        if self.H.numel():
            B = Metric.full(self.H.double() + b * torch.eye(len(step)).to(pair), b)
        else:
            k = int(self.used)
            B = Metric.of(b, self.v[:k].double().mT, self.a[:k].double().diag(), b)
        if not float(step @ change) > 0:
            return B
        Bs = B(step)
        U, signs = torch.stack([Bs, change], 1), torch.stack([-1 / (step @ Bs), 1 / (step @ change)])
        return Metric.of(float(B.b), torch.cat([B.E, U], 1), torch.cat([B.e - B.b, signs]).diag(), least)


def best_factor(w: Tensor, rest: Times) -> Tensor:
    """(c,): a for which a w w' is nearest to R; 0 where w is."""
    size = (w * w).sum(1)
    return torch.where(size > 0, (w * rest(w)).sum(1) / size.square().clamp_min(1e-300), 0.0)


def piece_grade(ratio: np.ndarray) -> np.ndarray:
    """(c,): q^2 of a piece; q is about half the ratio of the second eigenvalue to the first."""
    q = np.maximum(0.5 * np.nan_to_num(ratio), 2e-3)
    grade = np.argmax(np.sqrt(np.array(GRADES))[None] <= q[:, None], 1)
    found: np.ndarray = np.array(GRADES)[np.clip(grade, 2, 5)]
    return found


def top_eigenvector(times: Times, start: Tensor, steps: int = LANCZOS) -> tuple[Tensor, Tensor, Tensor]:
    """(|e_1|, its vector, |e_2|), (c,), (c, d), (c,), of symmetric matrices, by the size of their eigenvalues: Lanczos'
    iteration from rows `start`, (c, d), with all vectors kept orthogonal.
    The largest entry of the vector is positive."""
    k, d = min(steps, start.shape[1]), start.shape[1]
    v = start / start.norm(dim=1, keepdim=True)
    V, T = start.new_zeros(len(start), k, d), start.new_zeros(len(start), k, k)
    for j in range(k):
        V[:, j] = v
        w = times(v)
        for _ in range(2):
            part = V[:, : j + 1] @ w[:, :, None]
            w = w - (part.mT @ V[:, : j + 1])[:, 0]
            T[:, : j + 1, j] += part[:, :, 0]
        size = w.norm(dim=1, keepdim=True)
        v = torch.where(size > torch.finfo(w.dtype).tiny, w / size.clamp_min(torch.finfo(w.dtype).tiny), 0.0)
    e, Z = torch.linalg.eigh(T.triu() + T.triu(1).mT)
    order = e.abs().argsort(1, descending=True)
    sizes = e.abs().gather(1, order)
    best = Z.gather(2, order[:, None, :1].expand(-1, k, 1)).mT
    vector = (best @ V)[:, 0]
    vector = vector / vector.norm(dim=1, keepdim=True).clamp_min(torch.finfo(vector.dtype).tiny)
    top = vector.gather(1, vector.abs().argmax(1, keepdim=True))
    vector = torch.where(top < 0, -vector, vector)
    return sizes[:, 0], vector, sizes[:, 1] if k > 1 else sizes[:, 0]
