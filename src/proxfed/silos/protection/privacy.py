"""Differential privacy at the holder: the noise of engine/noise.py, from a generator that only this site can run.

The noise is a stream of ChaCha20 under a secret of the site, for this run, round and question: nobody else can compute
it, and a repeated question gets the same answer, so that it cannot be averaged away. It is the only part of a run that
does not follow from its seed.

The guarantee is for all rows of the holder together, and so for each of them. If a site has several clients, every
client's message counts. Names, classes and counts are not covered. Measures are not revealed in such a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def gaussian(secret: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal numbers from a stream of ChaCha20, by Box and Muller."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    half = (count + 1) // 2
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor().update(bytes(16 * half))
    u, v = ((np.frombuffer(stream, "<u8") >> 11) + 1).astype(np.float64).reshape(2, half) * 2.0**-53
    radius = np.sqrt(-2 * np.log(u))
    return np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])[:count]


def noises(lines: Iterable[Mapping[str, Any]]) -> Counter[float]:
    """The number of noisy client messages that left, by noise, from the lines of an audit file; repeated bytes reveal
    nothing new and are not counted."""
    found = {line["sha256"]: (float(line["noise"]), int(line.get("messages", 1))) for line in lines if "noise" in line}
    total: Counter[float] = Counter()
    for noise, messages in found.values():
        total[noise] += messages
    return total
