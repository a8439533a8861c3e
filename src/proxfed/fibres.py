"""A graph step of many clients, a cacheful at a time.

The equations of a step are written for all clients at once, with `mix` as an ordinary call in their middle. Here the
step runs block by block: each block goes on until it calls `mix`, waits there while the others catch up, and continues
with its mixed rows. Temporaries are then as large as a block, not as the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from proxfed.types import Message, Mix, Packed

Step = Callable[[Mix], Any]


def in_blocks(steps: Sequence[Step], mix: Mix) -> Iterator[Any]:
    """The results of steps that meet at their calls of `mix`, in order; all of them call it equally often."""
    hub = getcurrent()
    meet: Mix = hub.switch  # hands its argument to the hub and returns what the hub sends back
    fibres = [greenlet(lambda step=step: step(meet)) for step in steps]
    arrived = (fibre.switch() for fibre in fibres)
    while True:
        first = next(arrived)
        if fibres[0].dead:
            yield first
            yield from arrived
            return
        message, rows = _together(first, arrived, len(fibres))
        mixed = mix(message)
        del message
        arrived = (fibre.switch(mixed[part]) for fibre, part in zip(fibres, rows, strict=True))


def _together(first: Message, rest: Iterator[Message], count: int) -> tuple[Message, list[slice]]:
    """The messages of all blocks as one, and where each block's rows are in it."""
    parts: list[Tensor] = []
    rows: list[slice] = []
    nbytes = best = 0
    for message in (first, *(next(rest) for _ in range(count - 1))):
        part = message.dense if isinstance(message, Packed) else message
        start = rows[-1].stop if rows else 0
        rows.append(slice(start, start + len(part)))
        parts.append(part)
        if isinstance(message, Packed):
            nbytes, best = nbytes + message.nbytes, best + message.best
    whole = torch.cat(parts)
    return (Packed({}, whole, nbytes, best) if isinstance(first, Packed) else whole), rows
