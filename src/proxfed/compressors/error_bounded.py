"""A quantiser that is told how much it may lose, and finds the fewest bits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors import plane_code, subset_code, wire
from proxfed.compressors.arrays import host, tensor
from proxfed.compressors.message import check, reading
from proxfed.compressors.planes import put_together, take_apart
from proxfed.compressors.step_search import LOWEST, Quantised, largest_level, quantise, values
from proxfed.errors import finite, require
from proxfed.keyed_random import Key
from proxfed.types import Packed

LEAST = 1e-6
"""The smallest q2: float32 numbers have little more to give."""

_ZERO, _NOT_FINITE = 0, 2**24 - 1
"""Where another row has its step: these have none."""


@dataclass(frozen=True)
class ErrorBoundedQuantiser:
    """Multiples of a step s, the largest with |C(v) - v|^2 <= q2 |v|^2: certain for every v, whatever its length.

        l_j = floor(|v_j| / s + 0.4)        C(v)_j = sign(v_j) (l_j + o) s  where l_j > 0, else 0

    o is the mean of what was rounded off. Small entries become 0 (the dead zone) and cost next to nothing in the code
    of the levels, so a message takes as many bits as the shape of v asks for: about 2 a number for normal ones and
    q2 = 0.1, far fewer where a few entries are large. What travels: step, offset and levels.
    """

    unbiased: ClassVar[bool] = False
    q2: float
    """The part of |v|^2 that may be lost, at least 1e-6 and below 1."""

    def __post_init__(self) -> None:
        fits = finite(self.q2) and LEAST <= self.q2 < 1
        require(fits, f"ErrorBoundedQuantiser: q2 = {self.q2!r} must be at least {LEAST:g} and below 1")

    def contraction(self, d: int) -> float:
        return self.q2

    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, (c, d) = host(v), v.shape
        fine = np.isfinite(x).all(1)
        some = fine & x.any(1)
        dense = np.zeros_like(x)
        dense[~fine] = np.nan
        messages = [(_ZERO if ok else _NOT_FINITE).to_bytes(3, "little") for ok in fine]
        if some.any():
            q, dense[some] = quantise(x if some.all() else x[some], self.q2)
            for i, m, e, offset, level in zip(np.flatnonzero(some), *q, strict=True):
                head = _pack_step(int(m), int(e)).to_bytes(3, "little") + bytes([offset - LOWEST])
                messages[i] = head + _code(d).write(take_apart(level), self._width(d))
        length = np.array([len(message) for message in messages], np.int64)
        sent = np.zeros((c, length.max(initial=0)), np.uint8)
        for row, message in zip(sent, messages, strict=True):
            row[: len(message)] = np.frombuffer(message, np.uint8)
        parts = {"message": tensor(sent, v), "length": tensor(length, v)}
        return Packed(parts, tensor(dense, v), int(length.sum()), int(length.sum()))

    def encode(self, packed: Packed) -> list[bytes]:
        rows, lengths = host(packed.parts["message"]), host(packed.parts["length"])
        return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        dense = np.zeros((len(messages), d), torch.empty(0, dtype=dtype).numpy().dtype)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                step = int.from_bytes(message.take(3).tobytes(), "little")
                if step == _NOT_FINITE:
                    dense[i] = np.nan
                elif step != _ZERO:
                    m, e = _unpack_step(step, dense.dtype)
                    offset = int(message.take(1)[0]) + LOWEST
                    planes = _code(d).read(message, d, self._width(d))
                    level = put_together(planes, largest_level(d, self.q2))
                    q = Quantised(np.array([m]), np.array([e]), np.array([offset]), level[None])
                    dense[i] = values(q, dense.dtype)[0]
        return torch.from_numpy(dense)

    def _width(self, d: int) -> int:
        """Bits of the largest level that there can be."""
        return wire.width(largest_level(d, self.q2))


def _code(d: int) -> Any:
    """How planes are written; from about this length on the coders are as short, and faster."""
    return subset_code if d <= 2048 else plane_code


def _pack_step(m: int, e: int) -> int:
    """In three bytes, neither all 0 nor all 1."""
    return ((e + 4096) << 11) | (m - 2048)


def _unpack_step(code: int, dtype: np.dtype) -> tuple[int, int]:
    m, e, info = 2048 + (code & 2047), (code >> 11) - 4096, np.finfo(dtype)
    lowest = int(np.log2(float(info.smallest_subnormal))) - 11
    check(lowest <= e <= info.maxexp - 11, "the step is no number")
    return m, e
