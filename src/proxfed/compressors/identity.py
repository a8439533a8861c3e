"""No compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from proxfed.compressors.coding import wire
from proxfed.compressors.coding.reader import reading
from proxfed.keyed_random import Key
from proxfed.types import Packed


@dataclass(frozen=True)
class Identity:
    """C(v) = v. q^2 = 0."""

    unbiased: ClassVar[bool] = True

    def contraction(self, d: int) -> float:
        return 0.0

    def __call__(self, v: Tensor, key: Key) -> Packed:
        return Packed({"value": v}, v, v.nbytes, v.nbytes, self)

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.rows(packed.parts["value"])

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        dense = torch.empty(len(messages), d, dtype=dtype)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                dense[i] = message.floats(d, dtype)
        return dense
