"""Whether bfloat16 pays on this machine: a CPU without it computes with it all the same, many times more slowly."""

from __future__ import annotations

import time
import warnings
from functools import cache

import torch
from torch.nn.functional import conv2d


def warn_if_slow(device: str) -> None:
    """In one sentence, where float32 is faster; measured once a process, on the CPU alone."""
    times = slowdown() if torch.device(device).type == "cpu" else 0.0
    if times > 1:
        warnings.warn(
            f"bfloat16 = true: convolutions take {times:.1f} times as long in bfloat16 as in float32 on this machine; "
            "leave it out",
            stacklevel=3,
        )


@cache
def slowdown() -> float:
    """Seconds of a convolution there and back in bfloat16, in units of those in float32."""
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """The best of three, after one to warm up: other work on the machine can only make it longer."""
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
