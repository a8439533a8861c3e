"""Secure aggregation: masks between sites cancel in the sum, so the coordinator reads only the sum.

    site i sends      y_i = round(2^b p_i m_i) + sum_{j in cohort} s_ij pad_ij    modulo 2^64
                      pad_ij = pad_ji from the keys of the pair (ChaCha20),  s_ij = +1 if i < j, -1 otherwise
    coordinator       2^-b sum_i y_i = sum_i p_i m_i, to n 2^-(b+1) in each number

A pad belongs to one run, round, cohort and broadcast. If a coordinator sends different broadcasts or cohorts to sites,
their pads do not cancel and it reads noise. A pad is used for one content only, because these determine a site's
answer.

The sum is exact modulo 2^64 and must not wrap: each site refuses numbers that do not fit 2^(63-b)/n.

Sums over rows may be large and must be exact: `hide_wide` sends two words for each number, its multiple of 2^COARSE
and its remainder, each under its own pad.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.silos.protection.keyring import Keyring

Words = NDArray[np.uint64]

FEWEST = 2
"""The minimum number of sites of a sum: a sum over one site would be its own."""


def largest(n: int, bits: int) -> float:
    """The bound on the numbers of n sites with which no sum overflows."""
    return 2.0 ** (63 - bits) / n - 2.0**-bits


def rounding(n: int, bits: int) -> float:
    """The largest error of a number in the sum of n sites, in addition to floating-point rounding."""
    return n * 2.0 ** -(bits + 1)


def to_words(values: NDArray[np.float64], n: int, bits: int) -> Words:
    """Fixed point with so many bits after the point, modulo 2^64."""
    most = float(np.abs(values).max(initial=0.0))
    if not most < largest(n, bits):
        raise RunError(
            f"secure_aggregation: {most:.3g} does not fit the range of {largest(n, bits):.3g} that {n} sites have with "
            f"fraction_bits = {bits}; fewer fraction_bits give more range, smaller steps smaller numbers"
        )  # for the site's own log: the coordinator only learns that the round failed
    return np.rint(values * 2.0**bits).astype(np.int64).view(np.uint64)


def to_values(words: Words, bits: int) -> NDArray[np.float64]:
    return words.view(np.int64).astype(np.float64) * 2.0**-bits


def stream(key: bytes, count: int) -> Words:
    """Pseudorandom words from a key (ChaCha20)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), "<u8")


def pads(keyring: Keyring, cohort: Sequence[str], t: int, broadcast: bytes, count: int) -> Words:
    """The sum of this site's pads with all others of the cohort, with their signs."""
    require(keyring.me in cohort, f"{keyring.me!r} is not among those of round {t}: {', '.join(cohort)}")
    require(len(set(cohort)) == len(cohort) >= FEWEST, f"round {t}: a sum of {len(cohort)} sites hides nothing")
    about = str(t).encode(), *(name.encode() for name in sorted(cohort)), hashlib.sha256(broadcast).digest()
    total = np.zeros(count, np.uint64)
    for other in cohort:
        if other != keyring.me:
            pad = stream(keyring.pair(other, b"mask", *about), count)
            total = total + pad if keyring.me < other else total - pad
    return total


def reveal(sent: Iterable[Words], bits: int) -> NDArray[np.float64]:
    """The sum of the messages of a whole cohort, as the coordinator reads it."""
    rows = list(sent)
    require(len({len(row) for row in rows}) == 1, "masked messages of one round have different lengths")
    return to_values(np.sum(rows, axis=0, dtype=np.uint64), bits)


COARSE = 10
"""Of a number in two words, the first counts multiples of 2^COARSE, the second has the remainder."""


def hide_wide(
    values: NDArray[np.float64], keyring: Keyring, cohort: Sequence[str], t: int, broadcast: bytes, bits: int
) -> Words:
    """(2, k): numbers up to 2^(63 + COARSE)/n, to 2^-(b+1)."""
    unit = 2.0**COARSE
    whole = np.rint(values / unit)
    n = len(cohort)
    words = np.concatenate([to_words(whole, n, 0), to_words(values - whole * unit, n, bits)])
    return (words + pads(keyring, cohort, t, broadcast, len(words))).reshape(2, -1)


def add_up_wide(rows: Sequence[Tensor], bits: int) -> Tensor:
    """(2, k) of every site of a cohort -> (k,) their sum, in double precision."""
    good = all(row.dtype == torch.int64 and row.ndim == 2 and len(row) == 2 for row in rows)
    if not good or len({row.shape for row in rows}) != 1:
        raise RunError("masked sums are two words for each number, and as many of every site")
    words: Words = np.sum(np.stack([row.numpy().view(np.uint64) for row in rows]), axis=0, dtype=np.uint64)
    return torch.from_numpy(to_values(words[0], 0) * 2.0**COARSE + to_values(words[1], bits))


def add_up(rows: Tensor, bits: int) -> Tensor:
    """(sites, k) masked numbers, of all sites of a cohort -> (k,) their sum, in double precision."""
    if rows.dtype != torch.int64:
        raise RunError(f"masked messages are whole numbers, not {rows.dtype}")
    return torch.from_numpy(reveal(list(rows.numpy().view(np.uint64)), bits))
