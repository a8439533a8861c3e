"""Keyed randomness: a draw is a function of (seed, purpose, client, round, draw), never of the order of execution.

A key is one 64-bit word per client. `fold` mixes another number into it; `words`, `uniforms`, `normals` and `integers`
read the splitmix64 stream that starts there (Steele, Lea, Flood 2014), for all clients at once. So a client draws the
same numbers whether it is alone in a process, stacked with a thousand others, or resumed half-way.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

__all__ = ["Ids", "Key", "fold", "generator", "integers", "keys", "normals", "uniforms", "words"]

Key = np.ndarray  # (c,) uint64, one word per client
Ids = Sequence[int] | np.ndarray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _S30, _S27, _S31, _S32, _S11 = (np.uint64(s) for s in (1, 30, 27, 31, 32, 11))


def _mix(z: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser: a bijection of 64-bit words in which every input bit moves every output bit."""
    z = (z ^ (z >> _S30)) * _A
    z = (z ^ (z >> _S27)) * _B
    return z ^ (z >> _S31)


def keys(seed: int, purpose: str, ids: Ids, t: int) -> Key:
    """One key per client for this purpose in round t."""
    # A range is converted directly: reading it element by element would cost more than everything else.
    who = np.arange(ids.start, ids.stop, dtype=np.uint64) if isinstance(ids, range) else np.asarray(ids, np.uint64)
    return fold(_mix(_start(seed, purpose) + _GOLDEN * (who + _ONE)), t)


@lru_cache(maxsize=64)
def _start(seed: int, purpose: str) -> np.ndarray:
    return fold(_mix(np.array([seed % 2**64], np.uint64)), zlib.crc32(purpose.encode()))


def fold(key: Key, number: int) -> Key:
    """A new key from a key and a number, for instance the index of a local step."""
    return _mix(key + _GOLDEN * np.array([number + 1], np.uint64))


def words(key: Key, count: int) -> np.ndarray:
    """(c, count) independent 64-bit words."""
    return _mix(key[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))


def uniforms(key: Key, count: int) -> np.ndarray:
    """(c, count) numbers, uniform on [0, 1), with 53 random bits."""
    return (words(key, count) >> _S11) * 2.0**-53


def normals(key: Key, count: int) -> np.ndarray:
    """(c, count) standard normal numbers (Box and Muller)."""
    u = uniforms(key, 2 * count)
    return np.sqrt(-2 * np.log1p(-u[:, :count])) * np.cos(2 * np.pi * u[:, count:])


def integers(key: Key, count: int, high: np.ndarray | int) -> np.ndarray:
    """(c, count) whole numbers, uniform on 0 .. high-1 for each client's own `high` < 2^32 (bias < 2^-32 high)."""
    bound = np.asarray(high, np.uint64)[..., None]
    return (((words(key, count) >> _S32) * bound) >> _S32).view(np.int64)


def generator(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    """An ordinary NumPy generator for one-off work, such as generating data or an initial point."""
    return np.random.Generator(np.random.Philox(int(keys(seed, purpose, [number], 0)[0])))
