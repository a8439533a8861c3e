"""What a regulariser checks of its arguments."""

from __future__ import annotations

import math

from proxfed.errors import InputError


def check_step(h: object, step: float, below: float = math.inf, bound: str = "infinity") -> None:
    """0 <= step < below, which the message calls `bound`."""
    if not 0 <= step < below:
        limit = bound if below == math.inf else f"{bound} = {below!r}"
        raise InputError(f"{type(h).__name__}: step = {step!r} must be >= 0 and < {limit}")
