"""How often the clients of a graph algorithm exchange messages in one round: its calls of `mix`, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from proxfed.compressors import COMPRESSORS, Identity
from proxfed.engine.messages import dense
from proxfed.keyed_random import Ids
from proxfed.regularisers import Zero
from proxfed.types import Graph, Local, Message


@dataclass(frozen=True)
class _Nothing(Local):
    """f = 0 for two clients: enough to see what a step calls."""

    t: int = 1
    ids: Ids = range(2)
    seed: int = 0

    def full_grad(self, x: Tensor) -> Tensor:
        return torch.zeros(2, x.shape[-1], dtype=x.dtype)

    def value(self, x: Tensor) -> Tensor:
        return torch.zeros(2, dtype=x.dtype)


def exchanges(algorithm: Graph) -> int:
    """By a dry step, without compressors: some insist on a number of coordinates, and none changes the exchanges."""
    kinds = tuple(COMPRESSORS.values())
    plain = {f.name: Identity() for f in fields(algorithm) if isinstance(getattr(algorithm, f.name), kinds)}  # type: ignore[arg-type]
    bare = replace(algorithm, **plain)  # type: ignore[type-var]
    count = 0

    def mix(message: Message) -> Tensor:
        nonlocal count
        count += 1
        return dense(message)

    start = bare.init(torch.zeros(4, dtype=torch.float64), _Nothing(), Zero(), mix)
    count = 0
    bare.step(bare.local(start, _Nothing(), Zero()), _Nothing(), Zero(), mix)
    return count
