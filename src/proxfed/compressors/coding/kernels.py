"""Loops over many entries or bits, compiled by numba, with the same results as the NumPy versions."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from proxfed.machine import compiled

CHUNK = 4096
"""Entries that are compared at a time: one byte each, which stay in the fastest cache."""

BINS = 4096
"""Intervals of the histogram of sizes."""

ONE, HIGHEST, LITTLE = np.uint64(1), np.uint64(1 << 63), sys.byteorder == "little"


@intrinsic
def _zeros_below(typing: Any, word: Any) -> Any:
    """The number of trailing zeros of a non-zero word."""
    zero_is_undefined = ir.Constant(ir.IntType(1), 1)
    return types.uint64(types.uint64), lambda context, builder, signature, a: builder.cttz(a[0], zero_is_undefined)


@intrinsic
def _zeros_above(typing: Any, word: Any) -> Any:
    """The number of leading zeros of a non-zero word."""
    zero_is_undefined = ir.Constant(ir.IntType(1), 1)
    return types.uint64(types.uint64), lambda context, builder, signature, a: builder.ctlz(a[0], zero_is_undefined)


# ---- the largest entries ---------------------------------------------------------------------------------------------


@compiled()
def collect(word, mask, least, start, place, found):
    """Positions, counted from `start`, at which masked words are at least `least`, and these words.

    Returns their number, or -1 if there is not enough room. They are rare: comparisons are vectorised, eight that
    failed are skipped at once, and the rest is stored without unpredictable branches.
    """
    large = np.zeros(CHUNK, np.uint8)
    eight, hit, n = large.view(np.uint64), np.empty(CHUNK // 8, np.int32), 0
    for first in range(0, len(word), CHUNK):
        part = word[first : first + CHUNK]
        for j in range(len(part)):
            large[j] = (part[j] & mask) >= least
        large[len(part) :] = 0
        hits = 0
        for w in range(CHUNK // 8):
            hit[hits] = w
            hits += eight[w] != 0
        if n + 8 * hits > len(place):
            return -1
        for h in range(hits):
            left = eight[hit[h]]
            while left:
                j = 8 * hit[h] + np.int64(_zeros_below(left) >> np.uint64(3))  # type: ignore[call-arg]
                place[n], found[n] = start + first + j, part[j]
                n += 1
                left &= left - ONE
    return n


@compiled()
def keep_largest(word, mask, least, k, place):
    """Move the k largest of words >= `least` to the front, in order; ties are broken by position.

    The k-th largest is found by counting: first in a histogram, then within its interval.
    """
    count, low, high, left = np.empty(BINS, np.int64), np.uint64(least), np.uint64(least), k
    for i in range(len(word)):
        high = max(high, np.uint64(word[i] & mask))
    while low < high:
        shift = np.uint64(0)
        while (high - low) >> shift >= np.uint64(BINS):
            shift += ONE
        count[:] = 0
        for i in range(len(word)):
            size = np.uint64(word[i] & mask)
            if low <= size and size <= high:
                count[(size - low) >> shift] += 1
        b = BINS - 1
        while count[b] < left:
            left -= count[b]
            b -= 1
        low += np.uint64(b) << shift
        high = min(high, low + ((ONE << shift) - ONE))
    n = 0
    for i in range(len(word)):
        size, w, p = np.uint64(word[i] & mask), word[i], place[i]
        equal = size == low
        word[n], place[n] = w, p
        n += (size > low) | (equal & (left > 0))
        left -= equal


@compiled()
def put(row, index, value):
    """row[index] = value, without bounds checks."""
    for i in range(len(index)):
        row[index[i]] = value[i]


# ---- numbers in bits, the highest first ------------------------------------------------------------------------------


def words(body):
    """Bytes as big-endian words of eight; a word of zeros is appended."""
    padded = np.zeros(8 * (len(body) // 8 + 2), np.uint8)
    padded[: len(body)] = body
    return padded.view(np.uint64).byteswap() if LITTLE else padded.view(np.uint64)


@compiled()
def unary(words, out):
    """Read unary numbers (zeros, then a one) until `out` is full or the words end: (their number, their bits)."""
    n, last = 0, -1
    for w in range(len(words)):
        left = words[w]
        while left:
            if n == len(out):
                return n, last + 1
            one = 64 * w + np.int64(_zeros_above(left))  # type: ignore[call-arg]
            out[n] = one - last - 1
            last = one
            n += 1
            left ^= HIGHEST >> np.uint64(one & 63)
    return n, last + 1


@compiled()
def append_bits(words, width, out):
    """Append `width` bits, 1 to 63, to each number."""
    drop = np.uint64(64 - width)
    for i in range(len(out)):
        w, bit = (i * width) >> 6, np.uint64((i * width) & 63)
        word = words[w] << bit | words[w + 1] >> ONE >> (np.uint64(63) - bit)
        out[i] = out[i] << width | np.int64(word >> drop)


@compiled()
def sums(values, count, r, out):
    """The sum of each client's numbers >= 0, each >> r; client i has the next count[i] numbers."""
    start, r = 0, np.uint64(r)
    for i in range(len(count)):
        total, own = np.uint64(0), values[start : start + count[i]]
        for j in range(len(own)):
            total += np.uint64(own[j]) >> r
        out[i] = total
        start += count[i]
