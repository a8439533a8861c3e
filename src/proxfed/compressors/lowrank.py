"""Compressors that keep two thin factors of the vector as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from proxfed.compressors.coding import wire
from proxfed.compressors.identity import Identity
from proxfed.errors import at_least_one, require
from proxfed.keyed_random import Key, normals
from proxfed.types import Packed


@dataclass(frozen=True)
class LowRank:
    """v as a matrix M of this shape, projected on rank r: q^2 = 1 - r / min(shape).

    The best approximation is the truncated singular value decomposition. `power` uses one power iteration instead, as
    in PowerSGD, from a fresh Gaussian matrix G with r columns: P = orth(M G), C(M) = P P'M. It has the same q^2 in
    expectation: the rows of M span at most min(shape) dimensions, G picks r of them at random, and P P' keeps at least
    the part of M in these. If the factors would be no shorter than M, M itself is sent, and q^2 = 0.
    """

    unbiased: ClassVar[bool] = False
    rank: int
    """r: the number of pairs of vectors sent."""
    shape: tuple[int, int]
    """(a, b) with a * b = d."""
    power: bool = False
    """Whether to use one keyed power iteration instead of the decomposition."""

    def __post_init__(self) -> None:
        at_least_one(self, "rank")
        sides = list(self.shape) if isinstance(self.shape, (tuple, list)) else []
        whole = all(isinstance(side, int) and side >= 1 for side in sides)
        require(whole and len(sides) == 2, f"LowRank: shape = {self.shape!r} must be two whole numbers >= 1")

    def contraction(self, d: int) -> float:
        return 0.0 if self._exact(d) else 1 - self.rank / min(self.shape)

    def _exact(self, d: int) -> bool:
        a, b = self.shape
        require(a * b == d, f"LowRank: shape = {self.shape!r} has {a * b} entries, but the vectors have d = {d}")
        return self.rank * (a + b) >= d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        if self._exact(v.shape[1]):
            return Identity()(v, key)
        M = v.reshape(-1, *self.shape)
        left, right = (part.contiguous() for part in (self._power(M, key) if self.power else self._svd(M)))
        nbytes = left.nbytes + right.nbytes
        return Packed({"left": left, "right": right}, _outer(left, right), nbytes, nbytes, self)

    def _svd(self, M: Tensor) -> tuple[Tensor, Tensor]:
        # LAPACK refuses these; the result is NaN instead, as with any other compressor.
        broken = ~M.isfinite().all(2).all(1)
        U, S, Vh = torch.linalg.svd(M.masked_fill(broken[:, None, None], 0), full_matrices=False)
        S = S.masked_fill(broken[:, None], torch.nan)
        return U[:, :, : self.rank] * S[:, None, : self.rank], Vh[:, : self.rank].mT

    def _power(self, M: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        G = torch.from_numpy(normals(key, M.shape[2] * self.rank)).reshape(len(M), M.shape[2], self.rank)
        P = torch.linalg.qr(M @ G.to(M)).Q
        return P, M.mT @ P

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(*map(wire.rows, packed.parts.values()))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        if self._exact(d):
            return Identity().decode(messages, d, dtype)
        (a, b), r = self.shape, self.rank
        both = Identity().decode(messages, (a + b) * r, dtype)
        return _outer(both[:, : a * r].reshape(-1, a, r), both[:, a * r :].reshape(-1, b, r))


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """left @ right' of each client, flat, (c, d): term by term, because sender and receiver must agree, and the bits of
    a matrix product depend on the machine and on the number of clients."""
    terms = (a[:, :, None] * b[:, None, :] for a, b in zip(left.unbind(2), right.unbind(2), strict=True))
    return reduce(torch.add, terms).flatten(1)
