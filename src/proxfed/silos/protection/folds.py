"""The folds of a site's rows: drawn with a secret of the site, the same in all jobs, and never chosen by a job.

Two sums over nearly the same rows differ by a row. So only the site decides which rows a fold has, and it decides once:
by a row's content, independent of its place in the table, or by the unit that the row belongs to.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from proxfed.tables.folds import together


def folds(
    lines: np.ndarray, strata: np.ndarray, count: int, secret: bytes, units: np.ndarray | None = None
) -> np.ndarray:
    """(N,) folds of the first N rows (.., bytes): rows of a stratum, in a secret order, are dealt to the folds in turn;
    rows of a unit stay together."""
    if units is None:
        return _drawn([line.tobytes() for line in lines[: len(strata)]], strata, count, secret)
    return together(
        units, strata, lambda names, highest: _drawn([str(n).encode() for n in names], highest, count, secret)
    )


def _drawn(words: list[bytes], strata: np.ndarray, count: int, secret: bytes) -> np.ndarray:
    keys = [int.from_bytes(blake2b(word, digest_size=8, key=secret).digest(), "little") for word in words]
    which = np.empty(len(strata), np.int64)
    which[np.lexsort((np.array(keys, np.uint64), strata))] = np.arange(len(strata)) % count
    return which
