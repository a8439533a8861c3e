"""The largest step of a quantiser with a dead zone whose error stays within a fraction of |v|^2, for each row.

    l_j = floor(|v_j| / s + 0.4)        C(v)_j = sign(v_j) (l_j + o) s  where l_j > 0, else 0

Sizes are in units of a power of two near the largest entry of the row, so that squares neither overflow nor underflow.
The step is searched on a sample of the columns, then corrected on a larger sample and on all columns.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np

from proxfed.compressors.arrays import column_blocks

ROUNDING = 0.4
"""|v| / s + 0.4 is rounded down: entries below 0.6 s become 0."""

PARTS = 256
"""Offsets are whole numbers of 256ths of a step."""
LOWEST = -102
"""The smallest of 256 offsets, which cover the possible mean remainders: from -0.4 to 0.6 of a step."""

MANTISSA = 12
"""The maximum number of bits of a step."""

SHORT = 1024
"""Rows up to this length use fewer bits for step and offset, which saves more than it loses, and another code."""

LEAST = 1e-6
"""The smallest allowed relative squared error, close to the precision of float32."""

_SAMPLES = (2**12, 2**16)
_CLOSE = 0.99  # of the allowed error: the step could be 0.6 % larger and save a hundredth of a bit


class Quantised(NamedTuple):
    """Rows of numbers sign(l) (|l| + offset / 256) m 2^e, 0 where l is 0."""

    m: np.ndarray  # (c,) in 2^11 .. 2^12 - 1
    e: np.ndarray  # (c,)
    offset: np.ndarray  # (c,)
    level: np.ndarray  # (c, d): l


def largest_level(d: int, q2: float) -> int:
    """A bound for any vector: no entry is above |v|, and no step below 0.44 of the one that always suffices."""
    return int((1 - ROUNDING) / 0.44 * sqrt(d / q2)) + 1


def step_bits(d: int) -> int:
    """A step that is too short by a factor of 1 - 2^-k costs about d 2^-k bits of levels."""
    return d.bit_length() if d <= SHORT else MANTISSA


def offset_unit(d: int) -> int:
    """The unit of offsets, in 256ths of a step; the loss grows with its square."""
    return 1 << max(0, 7 - step_bits(d) // 2) if d <= SHORT else 1


def quantise(x: np.ndarray, q2: float | np.ndarray) -> tuple[Quantised, np.ndarray]:
    """(rows quantised, rows as decoded); rows must be finite and not zero, q2 is for all of them or for each."""
    a, unit = sizes(x)
    square = _square(a)
    allowed = q2 * (1 - 1e-6) * square  # with a margin for rounding
    certain = np.sqrt(q2 * square / x.shape[1]) / (1 - ROUNDING)  # no entry is more than 0.6 s off
    s = _largest_step(a, allowed, certain)
    tiny = np.ldexp(float(np.finfo(x.dtype).smallest_subnormal), -unit)
    while True:
        q, dense = with_step(x, a, unit, s)
        fits = lost(x, dense, unit) <= allowed
        if fits.all():
            return q, dense
        # subnormal numbers are rounded once more on decoding; a shorter step compensates
        s = np.where(fits, s, np.maximum(0.9 * s, tiny))


def sizes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(|x| / 2^unit, unit), where the largest of a row is at least 1/2 and below 1."""
    unit = np.frexp(np.maximum(x.max(1), -x.min(1)))[1]
    a = np.ldexp(x, -unit[:, None])
    return np.abs(a, out=a), unit


def with_step(x: np.ndarray, a: np.ndarray, unit: np.ndarray, s: np.ndarray) -> tuple[Quantised, np.ndarray]:
    """(rows x quantised with the next steps below s, rows as decoded); a: sizes in their units."""
    m, e, s = _on_grid(s, step_bits(x.shape[1]))
    q = Quantised(m, e + unit, _error(a, s)[1], _levels(x, a, s))
    return q, values(q, x.dtype)


def lost(x: np.ndarray, dense: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """|dense - x|^2 of each row, in squared units."""
    return _square(x, dense, -unit)


def values(q: Quantised, dtype: np.dtype) -> np.ndarray:
    """The rows. All but the last step is in whole numbers, so the bits are the same on every machine."""
    dense = np.empty(q.level.shape, dtype)
    for i, (m, e, offset, level) in enumerate(zip(*q, strict=True)):
        top = max(int(level.max()), -int(level.min()))
        whole = (PARTS * np.arange(1, top + 1) + offset) * m
        with np.errstate(over="ignore", under="ignore"):
            size = np.ldexp(whole.astype(np.float64), e - PARTS.bit_length() + 1)
            size = np.minimum(size, float(np.finfo(dtype).max)).astype(dtype)
        table = np.concatenate([-size[::-1], np.zeros(1, dtype), size])
        for columns in column_blocks(len(level)):
            table.take(level[columns] + top, out=dense[i, columns], mode="clip")
    return dense


def _square(x: np.ndarray, y: np.ndarray | None = None, power: np.ndarray | None = None) -> np.ndarray:
    """|x|^2 of each row, or |2^power (x - y)|^2."""
    total = np.zeros(len(x))
    for columns in column_blocks(x.shape[1]):
        r = x[:, columns].astype(np.float64)
        if y is not None and power is not None:
            r = np.ldexp(r - y[:, columns], power[:, None])
        total += np.einsum("ij,ij->i", r, r)
    return total


def _on_grid(s: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(m, e, m 2^e): the next step below with this many bits, m from 2^11 to 2^12 - 1."""
    f, e = np.frexp(s)
    m = np.floor(np.ldexp(f, bits)).astype(np.int64) << MANTISSA - bits
    return m, e - MANTISSA, np.ldexp(m.astype(np.float64), e - MANTISSA)


def _largest_step(a: np.ndarray, allowed: np.ndarray, certain: np.ndarray) -> np.ndarray:
    d = a.shape[1]
    strides = [-(-d // sample) for sample in _SAMPLES if sample < d]
    step, *more = [*strides, 1]
    sample = np.ascontiguousarray(a[:, ::step])
    s = _bisect(sample, allowed * (sample.shape[1] / d), certain)
    for step in more:
        sample = np.ascontiguousarray(a[:, ::step])
        part = allowed * (sample.shape[1] / d)
        s = np.array([_correct(*row) for row in zip(sample, part, s, certain, strict=True)])
    return s


def _bisect(a: np.ndarray, allowed: np.ndarray, certain: np.ndarray) -> np.ndarray:
    low, high = np.log2(certain), np.full(len(a), np.log2(1 / (1 - ROUNDING)))
    for _ in range(16):
        middle = (low + high) / 2
        fits = _error(a, np.exp2(middle))[0] <= allowed
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.exp2(low)


def _correct(a: np.ndarray, allowed: float, s: float, certain: float) -> float:
    """For one row: errors grow roughly as a power of the step, so two of them give the next guess."""
    low, high, power, before = certain, 1 / (1 - ROUNDING), 1.5, (0.0, 0.0)
    for _ in range(20):
        ratio = float(_error(a[None], np.array([s]))[0][0]) / allowed
        low, high = (s, high) if ratio <= 1 else (low, s)
        if _CLOSE <= ratio <= 1 or high < 1.001 * low:
            break
        if before[0] not in (0.0, s) and ratio > 0 and before[1] > 0:
            power = min(max(log(ratio / before[1]) / log(s / before[0]), 0.5), 3.0)
        before = s, ratio
        s *= ((1 + _CLOSE) / 2 / max(ratio, 1e-3)) ** (1 / power)
        if not low < s < high:
            s = sqrt(low * high)
    return low


def _error(a: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(|C(v) - v|^2, offset) of each row."""
    sums = np.zeros((3, len(a)))
    inverse = (1 / s).astype(a.dtype)[:, None]
    for columns in column_blocks(a.shape[1]):
        r = a[:, columns] * inverse
        level = np.floor(r + a.dtype.type(ROUNDING))
        r -= level
        kept = np.minimum(level, 1, out=level)
        sums += np.einsum("ij,ij->i", r, r), np.einsum("ij,ij->i", r, kept), kept.sum(1)
    square, total, count = sums
    unit = offset_unit(a.shape[1])
    offset = np.rint((PARTS * total / np.maximum(count, 1) - LOWEST) / unit).clip(0, PARTS // unit - 1) * unit + LOWEST
    o = offset / PARTS
    return s**2 * (square - 2 * o * total + count * o**2), offset.astype(np.int64)


def _levels(x: np.ndarray, a: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The levels, with the signs of x; a: sizes."""
    level, inverse = np.empty(a.shape, np.int32), (1 / s).astype(a.dtype)[:, None]
    for columns in column_blocks(a.shape[1]):
        size = np.floor(a[:, columns] * inverse + a.dtype.type(ROUNDING))
        level[:, columns] = np.copysign(size, x[:, columns])
    return level
