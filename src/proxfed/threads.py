"""Work over the cores: a pool of Python threads, one per core, each with one thread of torch's own.

torch's operations release the interpreter lock, so the threads run in parallel. Each has its own part of the work
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

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count() -> int:
    """How many threads may run in parallel: as many as torch has, and one inside a thread of the pool."""
    return torch.get_num_threads()


def split_evenly(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """At most `count` runs of neighbouring items, of nearly the same length, none of them empty."""
    count, m = min(count, len(items)), len(items)
    return [items[k * m // count : (k + 1) * m // count] for k in range(count)]


def run_parallel(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of the calls; the k-th call always runs in the k-th thread, of which the first is the caller's own:
    who waits might as well work. At most one call per thread."""
    if len(calls) < 2:
        return [call() for call in calls]
    threads = thread_count()
    torch.set_num_threads(1)  # of MKL in all threads, of the others in this one
    try:
        others = [thread.submit(call) for thread, call in zip(_pool(threads)[: len(calls) - 1], calls[1:], strict=True)]
        try:
            first = calls[0]()
        finally:
            wait(others)
    finally:
        torch.set_num_threads(threads)
    return [first, *(each.result() for each in others)]


def over_threads(work: Callable[[Sequence[Item]], Result], items: Sequence[Item]) -> list[Result]:
    """work(part) in every thread, of an even part of the items each."""
    return run_parallel([partial(work, part) for part in split_evenly(items, thread_count())])


def map_parallel(work: Callable[[Item], object], items: Sequence[Item]) -> None:
    """work(item) for every item, over the threads."""

    def several(part: Sequence[Item]) -> None:
        for item in part:
            work(item)

    over_threads(several, items)


@cache
def _pool(threads: int) -> list[ThreadPoolExecutor]:
    """All threads but the caller's."""
    return [ThreadPoolExecutor(1, f"proxfed-{k}", torch.set_num_threads, (1,)) for k in range(1, threads)]


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
