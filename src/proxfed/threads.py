"""Work over the cores: a crew of Python threads, one per core, each with one thread of torch's own.

torch's operations let go of the interpreter lock, so the threads run side by side. A hand has its own piece of work
from the beginning to the end, where splitting every single operation over the cores would make them wait for each other
thousands of times a round.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

WORTH = 1 << 15
"""Numbers to work on, from which on the crew gains more than it costs to wake it."""


def hands() -> int:
    """How many can work side by side: torch's threads; one, for a member of the crew at work."""
    return torch.get_num_threads()


def shares(pieces: Sequence[Piece], count: int) -> list[Sequence[Piece]]:
    """Neighbouring pieces for each of `count` hands, as evenly as it goes; nobody gets nothing."""
    count, m = min(count, len(pieces)), len(pieces)
    return [pieces[k * m // count : (k + 1) * m // count] for k in range(count)]


def side_by_side(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """What each of the works gives; the k-th is always done by the k-th hand. There are no more than `hands()`."""
    cores = hands()
    if len(works) == 1:
        return [works[0]()]
    torch.set_num_threads(1)  # of MKL in all threads, of the others in this one
    try:
        going = [hand.submit(work) for hand, work in zip(_crew(cores), works, strict=False)]
        wait(going)
    finally:
        torch.set_num_threads(cores)
    return [each.result() for each in going]


def share_out(work: Callable[[Piece], object], pieces: Sequence[Piece]) -> None:
    """work(piece) for every piece, over the crew."""

    def several(share: Sequence[Piece]) -> None:
        for piece in share:
            work(piece)

    side_by_side([partial(several, share) for share in shares(pieces, hands())])


@cache
def _crew(cores: int) -> list[ThreadPoolExecutor]:
    return [ThreadPoolExecutor(1, f"proxfed-{k}", torch.set_num_threads, (1,)) for k in range(cores)]


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_crew.cache_clear)  # threads do not survive a fork
