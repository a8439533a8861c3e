"""Settings of the whole process that make it faster: for a program of its own, not for a library inside another.

glibc gives large freed blocks back to the system at once and takes them again, page fault by page fault, at the next
temporary; on arrays of a few MB that costs as much as the arithmetic. Raising its thresholds keeps them. What is larger
still goes back at once, and all threads share one heap: matrices of all clients must not stay when nobody needs them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from proxfed.engine import tuning

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


@cache
def tune_process() -> bool:
    """Ask the allocator to keep up to 32 MiB; does nothing where there is no glibc. True if it took the setting.

    The command line does this by itself. In Python it is yours to call: it holds for all threads of the process, and it
    cannot be undone. (Set OMP_WAIT_POLICY=passive as well, before torch is imported, where other work shares the
    cores: threads that wait for each other should sleep then, not spin.)
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
