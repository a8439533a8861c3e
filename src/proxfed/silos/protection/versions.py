"""The tables with which jobs were begun, as digests of their rows under a secret of the site.

Two jobs over tables that differ in one row reveal the effect of that row. So the table of a job must either equal each
earlier one or differ from it in enough rows.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np

from proxfed.errors import RunError
from proxfed.files import replace

DIGEST = np.dtype("<u8")


def digests(rows: np.ndarray, secret: bytes) -> np.ndarray:
    """(N,) sorted digests of the rows (N, bytes)."""
    data = np.ascontiguousarray(rows)
    found = b"".join(blake2b(row.tobytes(), digest_size=DIGEST.itemsize, key=secret).digest() for row in data)
    return np.sort(np.frombuffer(found, DIGEST))


def apart(one: np.ndarray, other: np.ndarray) -> int:
    """The number of rows that are in one table only, counted with multiplicity."""
    (a, m), (b, n) = (np.unique(table, return_counts=True) for table in (one, other))
    both = np.union1d(a, b)
    counts = np.zeros((2, len(both)), np.int64)
    counts[0, np.searchsorted(both, a)], counts[1, np.searchsorted(both, b)] = m, n
    return int(np.abs(counts[0] - counts[1]).sum())


def too_near(folder: Path, table: np.ndarray, fewest: int) -> bool:
    """Whether an earlier table of this folder differs, but in too few rows; if not, stores this one."""
    name = blake2b(table.tobytes(), digest_size=16).hexdigest()
    earlier = sorted(folder.glob("*.rows")) if folder.is_dir() else []
    if any(path.stem == name for path in earlier):
        return False
    if any(apart(np.frombuffer(path.read_bytes(), DIGEST), table) < fewest for path in earlier):
        return True
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RunError(f"cannot write to {folder}: {e.strerror}") from e
    replace(folder / f"{name}.rows", table.tobytes())
    return False
