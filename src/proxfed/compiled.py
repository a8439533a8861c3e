"""Loops that numba compiles, and whether it is there to do so.

They are taken where numba is installed (`pip install "proxfed[fast]"`); what they compute can be had without it, more
slowly. PROXFED_KERNELS=torch keeps numba out of it, PROXFED_KERNELS=numba insists that it is there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata
from typing import Any

from proxfed.errors import require


def compiled(fastmath: Any = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compiled once: kept beside its file, or in the user's cache directory, or, where neither can be written, not."""
    from numba import njit

    options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath}  # a check of divisors is in vectors' way

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # there is no place to keep it
            return njit(**options)(function)

    return compile_it


def kernels() -> str:
    """'numba' with its version, or 'torch': results of linear models differ in their last digits."""
    return f"numba {metadata.version('numba')}" if numba_is_used() else "torch"


def numba_is_used() -> bool:
    asked = os.environ.get("PROXFED_KERNELS", "")
    require(asked in ("", "numba", "torch"), f"PROXFED_KERNELS = {asked!r} is not one of 'numba', 'torch'")
    if asked == "torch":
        return False
    here = _numba_is_there()
    require(here or not asked, "PROXFED_KERNELS = 'numba', but it is not there: pip install \"proxfed[fast]\"")
    return here


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
