"""Whether bfloat16 is faster on this machine: a CPU without hardware support emulates it, many times slower."""

from __future__ import annotations

import time
import warnings
from functools import cache

import torch
from torch.nn.functional import conv2d


def warn_if_slow(device: str) -> None:
    """Warn if float32 is faster; measured once per process, on the CPU only."""
    times = slowdown() if torch.device(device).type == "cpu" else 0.0
    if times > 1:
        warnings.warn(
            f"bfloat16 = true: convolutions take {times:.1f} times as long in bfloat16 as in float32 on this machine; "
            "leave it out",
            stacklevel=3,
        )


@cache
def slowdown() -> float:
    """Time of a convolution, forward and backward, in bfloat16 divided by its time in float32."""
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """The best of three runs after a warm-up run, since other load can only make a run longer."""
    A = torch.ones(16, 16, 14, 14, dtype=dtype).contiguous(memory_format=torch.channels_last)
    W = torch.ones(32, 16, 5, 5, dtype=dtype, requires_grad=True)
    best = float("inf")
    for turn in range(4):
        start = time.perf_counter()
        with torch.enable_grad():
            torch.autograd.grad(conv2d(A, W).sum(), W)
        if turn:
            best = min(best, time.perf_counter() - start)
    return best
