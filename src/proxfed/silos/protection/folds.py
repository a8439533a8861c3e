"""The folds of a site's rows: drawn by a secret of the site, the same in all jobs, and never as somebody else says.

Two sums over nearly the same rows differ by a row. So nobody but the site decides which rows a fold has, and it decides
once: by what is in a row, whatever its place in the table.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def folds(lines: np.ndarray, strata: np.ndarray, count: int, secret: bytes) -> np.ndarray:
    """(N,) of the first N rows (.., bytes): those of a stratum, in an order by the secret, go round the folds."""
    words = [int.from_bytes(blake2b(row.tobytes(), digest_size=8, key=secret).digest(), "little") for row in lines]
    order = np.lexsort((np.array(words[: len(strata)], np.uint64), strata))
    which = np.empty(len(strata), np.int64)
    which[order] = np.arange(len(strata)) % count
    return which
