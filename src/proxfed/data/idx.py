"""The idx format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions, then the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from proxfed.data.directory import read_bytes
from proxfed.errors import require

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path, ndim: int) -> np.ndarray:
    """The array in an idx file (plain, .gz or .bz2) that must have `ndim` dimensions; a writable copy."""
    content = read_bytes(path)
    known = len(content) >= 4 and content[:2] == b"\0\0" and content[2] in TYPES
    require(known, f"{path}: is not an idx file")
    require(content[3] == ndim, f"{path}: has {content[3]} dimensions where {ndim} are expected")
    start, kind = 4 + 4 * ndim, np.dtype(TYPES[content[2]])
    require(len(content) >= start, f"{path}: ends inside its header")
    shape = tuple(np.frombuffer(content, ">u4", ndim, offset=4).tolist())
    promised, held = kind.itemsize * int(np.prod(shape, dtype=np.int64)), len(content) - start
    require(promised == held, f"{path}: holds {held} bytes of data where its header promises {promised}")
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))
