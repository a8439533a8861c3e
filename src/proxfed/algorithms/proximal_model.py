"""The model of phi that servers minimise: argmin over u of <c, u - y> + |u - y|_B^2/2 + h(u), with the prox of h alone.

B is any symmetric positive definite matrix with a product and a known bound on its largest eigenvalue. `Metric` is a
multiple of I plus a low-rank matrix, with everything that follows from its spectrum: norms, solutions, the trace of its
inverse. Its rank may be d, so that it covers full matrices as well.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from proxfed.types import Regulariser


class Matrix(Protocol):
    """A symmetric positive definite matrix."""

    @property
    def largest(self) -> Tensor:
        """Its largest eigenvalue, or a bound."""

    def __call__(self, p: Tensor) -> Tensor:
        """B p, (d,)."""


class Metric(NamedTuple):
    """B = b I + E diag(e - b) E', with orthonormal columns E."""

    b: Tensor  # its eigenvalue on all that is orthogonal to E, if anything is
    E: Tensor  # (d, k)
    e: Tensor  # (k,) its eigenvalues there, ascending
    d: int

    @classmethod
    def full(cls, A: Tensor, least: float = 0.0) -> Metric:
        """A symmetric matrix; eigenvalues below `least` are raised to it."""
        e, E = torch.linalg.eigh(_symmetric(A))
        return cls(e.new_ones(()), E, e.clamp_min(least), len(A))

    @classmethod
    def of(cls, b: float, U: Tensor, M: Tensor, least: float = 0.0) -> Metric:
        """b I + U M U' for U (d, k) and symmetric M (k, k), k < d; eigenvalues below `least` are raised to it."""
        d, k = U.shape
        if k >= d:
            return cls.full(b * torch.eye(d).to(U) + U @ M @ U.mT, least)
        Q, R = torch.linalg.qr(U)
        e, Z = torch.linalg.eigh(_symmetric(R @ M @ R.mT))
        E = Q @ Z
        return cls(U.new_tensor(max(b, least)), E, (e + b).clamp_min(least), d)

    @property
    def largest(self) -> Tensor:
        return torch.maximum(self.e[-1], self.b) if 0 < len(self.e) < self.d else self.e[-1] if len(self.e) else self.b

    @property
    def mean_inverse(self) -> Tensor:
        """tr(B^-1)/d."""
        return ((1 / self.e).sum() + (self.d - len(self.e)) / self.b) / self.d

    def __call__(self, p: Tensor) -> Tensor:
        return self._spectral(p, self.e, self.b)

    def solve(self, p: Tensor) -> Tensor:
        """B^-1 p."""
        return self._spectral(p, 1 / self.e, 1 / self.b)

    def _spectral(self, p: Tensor, e: Tensor, b: Tensor) -> Tensor:
        if len(e) == self.d:
            return self.E @ (e * (self.E.mT @ p))
        return b * p + self.E @ ((e - b) * (self.E.mT @ p))

    def norm(self, p: Tensor) -> float:
        """|p|_B."""
        return float(torch.dot(p, self(p)).clamp_min(0).sqrt())


def _symmetric(A: Tensor) -> Tensor:
    return (A + A.mT) / 2


def model_step(B: Matrix, y: Tensor, c: Tensor, h: Regulariser, steps: int, tolerance: float = 0.0) -> Tensor:
    """Approximates argmin over p of <c, p> + <p, B p>/2 + h(y + p) by at most `steps` steps of FISTA with restart.

    It stops early once no entry moves by more than `tolerance` times the largest displacement of an entry so far.
    """
    s = 1 / float(B.largest)
    p = q = torch.zeros_like(y)
    t, far = 1.0, 0.0
    for _ in range(steps):
        p_next = h.prox(y + q - s * (c + B(q)), s) - y
        if torch.dot(q - p_next, p_next - p) > 0:
            t = 1.0
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        q = p_next + (t - 1) / t_next * (p_next - p)
        if tolerance > 0:
            moved, far = float((p_next - p).abs().max()), max(far, float(p_next.abs().max()))
            if moved <= tolerance * far:
                return p_next
        p, t = p_next, t_next
    return p
