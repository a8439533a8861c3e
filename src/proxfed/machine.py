"""What this process computes with: threads, one per core; loops that numba compiles; a device; and all their versions.

A thread of the pool has one thread of torch's own. torch's operations release the interpreter lock, so the threads run
in parallel. Each has its own part of the work from the beginning to the end, where splitting every single operation
over the cores would make them wait for each other thousands of times a round.

Compiled loops are taken where numba is installed (`pip install "proxfed[fast]"`); what they compute can be had without
it, more slowly. PROXFED_KERNELS=torch keeps numba out of it, PROXFED_KERNELS=numba insists that it is there.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from proxfed.errors import InputError, require

Item = TypeVar("Item")
Result = TypeVar("Result")


def versions() -> dict[str, Any]:
    """What the numbers depend on beside the configuration."""
    from proxfed import __version__

    return {
        "proxfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "kernels": kernels(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.system(),
    }


def _processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Which one it is: sums are added up in another order on another one."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# ---- devices --------------------------------------------------------------------------------------------------------


def device_here(name: str, dtype: torch.dtype) -> str:
    """The device that a name means in this process, for numbers of this dtype; refused if it is not there.

    'auto' is the first of cuda, mps and cpu that is there and has such numbers.
    """
    require(isinstance(name, str), f"device = {name!r} must be a name such as 'cpu', 'cuda', 'mps' or 'auto'")
    if name == "auto":
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return next((device for device, is_there in there.items() if is_there and _has(device, dtype)), "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as e:  # torch's ways of saying that a name is wrong or a driver missing
        raise InputError(f"device = {name!r} is not there: {str(e).splitlines()[0]}") from e
    short = str(dtype).removeprefix("torch.")
    require(_has(name, dtype), f"device = {name!r} has no {short}: use dtype = 'float32' or device = 'cpu'")
    return name


def with_double(device: str) -> str:
    """The device, or the CPU if it has no float64."""
    return device if _has(device, torch.float64) else "cpu"


def _has(device: str, dtype: torch.dtype) -> bool:
    """The device has numbers of this dtype: MPS has no float64."""
    try:
        torch.empty(0, dtype=dtype, device=device)
    except TypeError:
        return False
    return True


def take_gpu() -> None:
    """From now on 'cuda' is a GPU of this rank's own, as long as the machine has enough of them.

    Which of the ranks on this machine it is say torchrun and --ranks (LOCAL_RANK), or srun (SLURM_LOCALID).
    """
    said = (os.environ.get(name, "") for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    here = next((int(text) for text in said if text.isascii() and text.isdigit()), 0)
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(here % torch.cuda.device_count())


# ---- threads --------------------------------------------------------------------------------------------------------


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Meanwhile torch has so many threads; None: as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_count() -> int:
    """How many threads may run in parallel: as many as torch has, and one inside a thread of the pool."""
    return torch.get_num_threads()


def idle_seconds(stat: str = "/proc/stat") -> float | None:
    """Seconds that the cores of this machine have been idle since it started, all together; None if unknown."""
    try:
        with open(stat) as f:
            words = f.readline().split()
        return (float(words[4]) + float(words[5])) / os.sysconf("SC_CLK_TCK")  # the second number: waiting for a disk
    except (OSError, ValueError, IndexError):
        return None


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


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


# ---- compiled loops -------------------------------------------------------------------------------------------------


def compiled(fastmath: Any = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compiled once: kept beside its file, or in the user's cache directory, or, where neither can be written, not."""
    from numba import njit

    _listen()
    options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath}  # a check of divisors is in vectors' way

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # there is no place to keep it
            return njit(**options)(function)

    return compile_it


_told_of_compiling: list[Callable[[], None]] = []


@contextmanager
def told_of_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Meanwhile `tell` is called as soon as a loop is compiled, once; not where it is found compiled."""
    _told_of_compiling.append(tell)
    try:
        yield
    finally:
        if tell in _told_of_compiling:
            _told_of_compiling.remove(tell)


@cache
def _listen() -> None:
    from numba.core import event

    class Compiling(event.Listener):
        def on_start(self, _: Any) -> None:
            while _told_of_compiling:
                _told_of_compiling.pop()()

        def on_end(self, _: Any) -> None:
            pass

    event.register("numba:compile", Compiling())  # type: ignore[no-untyped-call]


def kernels() -> str:
    """'numba' with its version, or 'torch': results of linear models differ in their last digits."""
    return f"numba {metadata.version('numba')}" if numba_is_used() else "torch"


def numba_is_used() -> bool:
    asked = os.environ.get("PROXFED_KERNELS", "")
    if not asked:
        return _numba_is_there()
    require(asked in ("numba", "torch"), f"PROXFED_KERNELS = {asked!r} is not one of 'numba', 'torch'")
    missing = asked == "numba" and not _numba_is_there()
    require(not missing, "PROXFED_KERNELS = 'numba', but it is not there: pip install \"proxfed[fast]\"")
    return asked == "numba"


@cache
def _numba_is_there() -> bool:
    try:
        import_module("numba")
    except ModuleNotFoundError:
        return False
    except ImportError as e:  # such as for a NumPy that it does not know
        warnings.warn(f"numba cannot be used, what it would compile goes the slower way: {e}", stacklevel=2)
        return False
    return True
