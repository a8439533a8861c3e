"""An entropy coder for bytes: an asymmetric numeral system (rANS), with many interleaved coders.

A coder is one whole number x in 2^16 .. 2^32 - 1 (Duda 2013). A symbol of frequency f in 2^15 is written as the new x =
(x // f) 2^15 + x % f + (the cumulative frequency); if x would overflow, 16 bits of x are sent first. Reading is the
inverse. Coder j of L has the symbols j, j + L, j + 2L, ..., so that NumPy runs all L at once (Giesen 2014). All
arithmetic is in whole numbers: the same bits everywhere.

A coder may start at any x, so two bytes of the payload serve as its start. This lowers its overhead from three bytes to
about one.
"""

from __future__ import annotations

import numpy as np

from proxfed.compressors.coding.reader import Bytes, check

PRECISION = 15
"""Frequencies add up to 2^15."""

_U = np.uint32
_START = _U(2**16)


def write(symbols: Bytes, kinds: np.ndarray, tables: np.ndarray, payload: bytes) -> bytes:
    """Symbol i with the frequencies tables[kinds[i]], by a coder for every two bytes of the payload.

    tables: (kinds, 256), whole numbers >= 1 with the sum 2^15.
    """
    x, words, lanes = _START + np.frombuffer(payload, "<u2").astype(_U), [], len(payload) // 2
    before = np.cumsum(tables, axis=1) - tables
    at = kinds * 256 + symbols
    f, start = (_in_steps(table.ravel()[at], lanes, sure) for table, sure in ((tables, 2**PRECISION), (before, 0)))
    rest = _U(2**PRECISION) - f
    for f_t, start_t, rest_t in zip(f[::-1], start[::-1], rest[::-1], strict=True):
        over = (x >> _U(32 - PRECISION)) >= f_t
        words.append(x[over].astype("<u2"))
        x >>= over.astype(_U) << _U(4)
        x += x // f_t * rest_t + start_t
    return x.astype("<u4").tobytes() + b"".join(word.tobytes() for word in words[::-1])


def read(message: Bytes, kinds: np.ndarray, tables: np.ndarray, lanes: int) -> tuple[Bytes, bytes]:
    """(as many symbols as there are kinds, the payload), from exactly these bytes."""
    check(len(message) >= 4 * lanes and len(message) % 2 == 0, "the coders are cut off")
    x = message[: 4 * lanes].view("<u4").astype(_U)
    words = message[4 * lanes :].view("<u2").astype(_U)
    symbol, f, rank = _slots(tables)
    out, base, used = np.empty(len(kinds), np.uint8), kinds.astype(np.int64) << PRECISION, 0
    for start in range(0, len(kinds), lanes):
        slot = base[start : start + lanes] + (x[: len(kinds) - start] & _U(2**PRECISION - 1))
        symbol.take(slot, out=out[start : start + lanes], mode="clip")
        y = (x[: len(slot)] >> _U(PRECISION)) * f[slot] + rank[slot]
        low = np.flatnonzero(y < _START)
        more = words[used : used + len(low)]
        check(len(more) == len(low), "it ends early")
        y[low] = (y[low] << _U(16)) | more
        x[: len(slot)] = y
        used += len(low)
    check(used == len(words) and int(x.max()) < 2**17, "the coders do not end where they could have begun")
    return out, (x - _START).astype("<u2").tobytes()


def _in_steps(values: np.ndarray, lanes: int, sure: int) -> np.ndarray:
    """One row per step; the last one is padded with a value that does not change a coder."""
    steps = -(-len(values) // lanes)
    out = np.full(steps * lanes, sure, _U)
    out[: len(values)] = values
    return out.reshape(steps, lanes)


def _slots(tables: np.ndarray) -> tuple[Bytes, np.ndarray, np.ndarray]:
    """For every x mod 2^15 of every kind: the symbol, its frequency, and x's rank among its slots."""
    f = tables.ravel()
    before = np.cumsum(f) - f
    symbol = np.repeat(np.arange(len(f)), f)
    return (symbol % 256).astype(np.uint8), f[symbol].astype(_U), (np.arange(len(symbol)) - before[symbol]).astype(_U)
