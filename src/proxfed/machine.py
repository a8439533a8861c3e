"""The resources of this process: threads, one per core; loops compiled by numba; the device; and all versions.

In a thread of the pool, torch uses a single thread. torch's operations release the interpreter lock, so the threads run
in parallel. Each thread does its part of the work from beginning to end; splitting every single operation over the
cores would make the threads wait for each other thousands of times a round.

Compiled loops are used if numba is installed (`pip install "proxfed[fast]"`); otherwise the same is computed by torch,
more slowly. PROXFED_KERNELS=torch disables numba, PROXFED_KERNELS=numba requires it.
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
    """The versions and hardware on which results depend beside the configuration."""
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
    """The processor's model name: another processor may add sums in another order."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# ---- devices --------------------------------------------------------------------------------------------------------


def device_here(name: str, dtype: torch.dtype) -> str:
    """The device that a name means in this process, for numbers of this dtype; refused if it is not available.

    'auto' is the first of cuda, mps and cpu that is available and supports the dtype.
    """
    require(isinstance(name, str), f"device = {name!r} must be a name such as 'cpu', 'cuda', 'mps' or 'auto'")
    if name == "auto":
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return next((device for device, is_there in there.items() if is_there and _has(device, dtype)), "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as e:  # torch's ways of saying that a name is wrong or a driver missing
        raise InputError(f"device = {name!r} is not available: {str(e).splitlines()[0]}") from e
    short = str(dtype).removeprefix("torch.")
    require(_has(name, dtype), f"device = {name!r} has no {short}: use dtype = 'float32' or device = 'cpu'")
    return name


def with_double(device: str) -> str:
    """The device, or the CPU if it has no float64."""
    return device if _has(device, torch.float64) else "cpu"


def _has(device: str, dtype: torch.dtype) -> bool:
    """Whether the device supports this dtype: MPS has no float64."""
    try:
        torch.empty(0, dtype=dtype, device=device)
    except TypeError:
        return False
    return True


def take_gpu() -> None:
    """From now on 'cuda' means this rank's own GPU, as long as the machine has enough GPUs.

    The rank's number on this machine is set by torchrun and --ranks (LOCAL_RANK), or srun (SLURM_LOCALID).
    """
    said = (os.environ.get(name, "") for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    here = next((int(text) for text in said if text.isascii() and text.isdigit()), 0)
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(here % torch.cuda.device_count())


# ---- threads --------------------------------------------------------------------------------------------------------


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Within this context torch uses `count` threads; None: unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_count() -> int:
    """The number of threads that may run in parallel: torch's setting, or one inside a thread of the pool."""
    return torch.get_num_threads()


def idle_seconds(stat: str = "/proc/stat") -> float | None:
    """The idle time of all cores together since the machine started, in seconds; None if unknown."""
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
    """The results of the calls, at most one per thread; the k-th call always runs in the k-th thread. The first thread
    is the caller's, which would otherwise only wait."""
    if len(calls) < 2:
        return [call() for call in calls]
    threads = thread_count()
    torch.set_num_threads(1)  # for MKL in all threads, for other libraries in this one
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
    """work(part) in every thread, with an equal part of the items each."""
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
    """Compile once; the result is cached beside the source or in the user's cache directory, if one is writable."""
    from numba import njit

    _listen()
    options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath}  # checking divisors prevents vectorisation

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no directory for the cache is writable
            return njit(**options)(function)

    return compile_it


_told_of_compiling: list[Callable[[], None]] = []


@contextmanager
def told_of_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Within this context `tell` is called once, as soon as a loop is compiled; not if it is loaded from the cache."""
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
    require(not missing, "PROXFED_KERNELS = 'numba', but numba is not installed: pip install \"proxfed[fast]\"")
    return asked == "numba"


@cache
def _numba_is_there() -> bool:
    try:
        import_module("numba")
    except ModuleNotFoundError:
        return False
    except ImportError as e:  # such as for a NumPy that it does not know
        warnings.warn(f"numba cannot be used; torch computes the same, more slowly: {e}", stacklevel=2)
        return False
    return True
