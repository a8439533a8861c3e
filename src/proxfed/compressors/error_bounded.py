"""A quantiser with a bound on its error, which uses as few bits as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from proxfed.compressors.arrays import host
from proxfed.compressors.coding import quantised_message
from proxfed.compressors.step_search import LEAST, largest_level, quantise
from proxfed.errors import finite, require
from proxfed.keyed_random import Key
from proxfed.types import Packed


@dataclass(frozen=True)
class ErrorBoundedQuantiser:
    """Multiples of the largest step s with |C(v) - v|^2 <= q2 |v|^2; the bound holds for every v.

        l_j = floor(|v_j| / s + 0.4)        C(v)_j = sign(v_j) (l_j + o) s  where l_j > 0, else 0

    o is the mean rounding remainder. Small entries become 0 (the dead zone) and cost almost nothing in the code of the
    levels, so the length of a message depends on the distribution of v: about 2 bits per entry for normal ones with
    q2 = 0.1, far fewer if only a few entries are large. Messages have the step, the offset and the levels.
    """

    unbiased: ClassVar[bool] = False
    q2: float
    """The bound on the relative squared error, at least 1e-6 and below 1."""

    def __post_init__(self) -> None:
        fits = finite(self.q2) and LEAST <= self.q2 < 1
        require(fits, f"ErrorBoundedQuantiser: q2 = {self.q2!r} must be at least {LEAST:g} and below 1")

    def contraction(self, d: int) -> float:
        return self.q2

    def __call__(self, v: Tensor, key: Key) -> Packed:
        return self.within(v, self.q2)

    def within(self, v: Tensor, q2: float | np.ndarray) -> Packed:
        """The same with other bounds, one for all rows or (c,), none below the compressor's own, which decodes them."""
        x = host(v)
        bound = np.broadcast_to(np.maximum(np.asarray(q2, np.float64), self.q2), len(x))
        fine = np.isfinite(x).all(1)
        some = fine & x.any(1)
        messages = [
            quantised_message.zero(x.shape[1]) if ok else quantised_message.not_finite(x.shape[1]) for ok in fine
        ]
        dense = np.zeros_like(x)
        dense[~fine] = np.nan
        if some.any():
            q, dense[some] = quantise(x if some.all() else x[some], bound[some])
            written = quantised_message.write(q, largest_level(x.shape[1], self.q2))
            for i, message in zip(np.flatnonzero(some), written, strict=True):
                messages[i] = message
        return quantised_message.pack(messages, dense, v, self)

    def encode(self, packed: Packed) -> list[bytes]:
        return quantised_message.unpack(packed)

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        return quantised_message.decode(messages, d, dtype, largest_level(d, self.q2))
