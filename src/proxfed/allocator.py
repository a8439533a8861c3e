"""Keep freed memory in the process.

glibc gives large freed blocks back to the system at once and takes them again, page fault by page fault, at the next
temporary; on arrays of a few MB that costs as much as the arithmetic. Raising its thresholds keeps them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP = 1 << 30


@cache
def keep_memory() -> bool:
    """Ask the allocator to keep up to 1 GiB; does nothing where there is no glibc. True if it took the setting."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_M_MMAP_THRESHOLD, _KEEP), (_M_TRIM_THRESHOLD, _KEEP), (_M_TOP_PAD, 1 << 26))
    return all(mallopt(name, value) == 1 for name, value in settings)
