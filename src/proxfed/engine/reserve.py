"""Memory that is reserved for all clients but only used for the rows that are written.

The system allocates a page when it is first touched. A large table of which only the first rows are used costs just
these rows, and it grows without being moved. On disk it is a sparse file in the folder for temporary files (TMPDIR).
The file is unlinked at once, so the system deletes it when the process ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

from proxfed.errors import RunError

_NO_RESERVE = 0x4000 if sys.platform.startswith("linux") else 0
"""MAP_NORESERVE, a name that Python has from 3.13 on: the system need not be able to back all of it."""


def reserved(shape: tuple[int, ...], dtype: torch.dtype, on_disk: bool = False) -> Tensor:
    """Zeros of this shape, in memory or in a file."""
    size = prod(shape) * dtype.itemsize
    if size == 0:
        return torch.zeros(shape, dtype=dtype)
    where = f"in {tempfile.gettempdir()}" if on_disk else "in memory"
    try:
        buffer = _file(size) if on_disk else _pages(size)
    except OSError as e:
        raise RunError(f"no room {where} for the state of the clients, {size:,} bytes if all take part: {e}") from e
    return torch.frombuffer(buffer, dtype=dtype, count=prod(shape)).view(shape)


def _pages(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # not every system has huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # rows are filled in order: fewer page faults
    return pages


def _file(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)
