"""A quantiser that is told how much it may lose, and finds the fewest bits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors import wire
from proxfed.compressors.arrays import host, tensor
from proxfed.compressors.message import check, reading
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
        finite_rows = np.isfinite(x).all(1)
        some = finite_rows & (x != 0).any(1)
        q = quantise(x[some], self.q2)
        dense = np.where(finite_rows[:, None], x.dtype.type(0), x.dtype.type(np.nan)) + np.zeros_like(x)
        dense[some] = values(q, x.dtype)
        step, offset, level = (
            np.where(finite_rows, _ZERO, _NOT_FINITE),
            np.zeros(c, np.uint8),
            np.zeros((c, d), np.int32),
        )
        step[some], offset[some], level[some] = _pack_step(q.m, q.e), q.offset - LOWEST, q.level
        parts = {"step": tensor(step, v), "offset": tensor(offset, v), "level": tensor(level, v)}
        best = int((3 + some * (1 + wire.signed_sizes(level, largest_level(d, self.q2)))).sum())
        return Packed(parts, tensor(dense, v), best, best)

    def encode(self, packed: Packed) -> list[bytes]:
        step, offset, level = (host(packed.parts[name]) for name in ("step", "offset", "level"))
        largest = largest_level(level.shape[1], self.q2)
        messages = [int(number).to_bytes(3, "little") for number in step]
        for i in np.flatnonzero((step != _ZERO) & (step != _NOT_FINITE)):
            messages[i] += bytes([offset[i]]) + wire.write_signed(level[i], largest)
        return messages

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        dense = np.zeros((len(messages), d), torch.empty(0, dtype=dtype).numpy().dtype)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                step = int.from_bytes(message.take(3).tobytes(), "little")
                if step in (_ZERO, _NOT_FINITE):
                    dense[i] = 0 if step == _ZERO else np.nan
                    continue
                m, e = _unpack_step(step, dense.dtype)
                offset = int(message.take(1)[0]) + LOWEST
                level = wire.read_signed(message, d, largest_level(d, self.q2))
                check(bool(level.any()), "a level is missing that is not 0")
                dense[i] = values(
                    Quantised(np.array([m]), np.array([e]), np.array([offset]), level[None]), dense.dtype
                )[0]
        return torch.from_numpy(dense)


def _pack_step(m: np.ndarray, e: np.ndarray) -> np.ndarray:
    return ((e + 4096) << 11) | (m - 2048)


def _unpack_step(code: int, dtype: np.dtype) -> tuple[int, int]:
    m, e, info = 2048 + (code & 2047), (code >> 11) - 4096, np.finfo(dtype)
    lowest = int(np.log2(float(info.smallest_subnormal))) - 11
    check(lowest <= e <= info.maxexp - 11, "the step is no number")
    return m, e
