"""A regulariser composed of others, each on a part of the vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import torch
from torch import Tensor

from proxfed.errors import nearest, require
from proxfed.types import Block, Regulariser


@dataclass(frozen=True)
class OnBlocks(Regulariser):
    """The sum of regularisers, each on one block of x; coordinates in no block are not penalised."""

    parts: tuple[tuple[Block, Regulariser], ...]
    """Pairs (block, regulariser) of blocks that do not overlap."""

    def __post_init__(self) -> None:
        require(len(self.parts) > 0, "OnBlocks: parts is empty; use Zero for no regularisation")
        parts = tuple(sorted(self.parts, key=lambda part: part[0].start))
        object.__setattr__(self, "parts", parts)
        for (one, _), (two, _) in pairwise(parts):
            require(one.stop <= two.start, f"OnBlocks: blocks {one.name!r} and {two.name!r} overlap")

    @classmethod
    def named(cls, blocks: Sequence[Block], parts: Mapping[str, Regulariser]) -> OnBlocks:
        """Regularisers for blocks chosen by name or pattern, such as {"*.weight": L1(0.1)}."""
        for pattern in parts:
            names = [block.name for block in blocks]
            matched = any(fnmatchcase(name, pattern) for name in names)
            require(matched, f"OnBlocks: no block is called {pattern!r}; {nearest(pattern, names)}")
        return cls(
            tuple((block, h) for pattern, h in parts.items() for block in blocks if fnmatchcase(block.name, pattern))
        )

    @property
    def weak_convexity(self) -> float:
        return max(h.weak_convexity for _, h in self.parts)

    @property
    def indicator(self) -> bool:
        return any(h.indicator for _, h in self.parts)

    @property
    def thresholds(self) -> bool:
        return any(h.thresholds for _, h in self.parts)

    def with_weight(self, weight: float) -> OnBlocks:
        """The same weight for every part that a weight can make zero; the others do not change."""
        return OnBlocks(tuple((block, h.with_weight(weight) if h.thresholds else h) for block, h in self.parts))

    def weight_max(self, g: Tensor) -> float:
        self._check_length(g)
        return max(h.weight_max(g[block.start : block.stop]) for block, h in self.parts if h.thresholds)

    def held_at_zero(self, d: int) -> OnBlocks:
        held = ((b, h.held_at_zero(b.stop - b.start) if h.thresholds else h) for b, h in self.parts)
        return OnBlocks(tuple(held))

    def value(self, x: Tensor) -> Tensor:
        self._check_length(x)
        return torch.stack([h.value(x[..., block.start : block.stop]) for block, h in self.parts]).sum(0)

    def prox(self, v: Tensor, step: float) -> Tensor:
        self._check_length(v)
        pieces, end = [], 0
        for block, h in self.parts:
            pieces += [v[..., end : block.start], h.prox(v[..., block.start : block.stop], step)]
            end = block.stop
        return torch.cat([*pieces, v[..., end:]], -1)

    def _check_length(self, x: Tensor) -> None:
        last, d = self.parts[-1][0], x.shape[-1]
        require(last.stop <= d, f"OnBlocks: block {last.name!r} ends at {last.stop}, beyond d = {d}")
