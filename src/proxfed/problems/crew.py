"""Work on many clients over the cores: one Python thread per core, each with one thread of torch's own.

torch's operations let go of the interpreter lock, so the threads run side by side; on gradients of small networks that
is faster than splitting every single operation over the cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")


def share_out(work: Callable[[Piece], object], pieces: Sequence[Piece]) -> None:
    """work(piece) for every piece. What is left after the last full round of threads has all cores to itself."""
    cores = torch.get_num_threads()
    together = len(pieces) - len(pieces) % cores if cores > 1 else 0
    if together:
        torch.set_num_threads(1)  # of MKL in all threads, of the others in this one
        try:
            for _ in _pool(cores).map(work, pieces[:together]):
                pass
        finally:
            torch.set_num_threads(cores)
    for piece in pieces[together:]:
        work(piece)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "proxfed", initializer=torch.set_num_threads, initargs=(1,))


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
