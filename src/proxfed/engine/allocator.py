"""Process-wide settings that make a stand-alone program faster; not meant for a library inside another program.

glibc returns large freed blocks to the system at once and maps them again, page fault by page fault, for the next
temporary; on arrays of a few MB that costs as much as the arithmetic. Raising its thresholds keeps them. Larger blocks
are still returned at once, and all threads share one heap, so that unused matrices of all clients are not kept.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from proxfed.engine import tuning

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


@cache
def tune_process() -> bool:
    """Ask the allocator to keep freed blocks of up to 32 MiB. True if it accepted; without glibc this does nothing.

    The command line does this by itself. In Python you call it yourself: it affects all threads of the process and
    cannot be undone. (If other programs share the cores, also set OMP_WAIT_POLICY=passive before torch is imported, so
    that waiting threads sleep instead of spinning.)
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    keep = dict.fromkeys((_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD), tuning.KEEP)
    settings = (keep | {_M_ARENA_MAX: 1}).items()
    return all(mallopt(name, value) == 1 for name, value in settings)
