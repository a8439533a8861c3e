"""Compressors that keep all entries with few bits each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors.arrays import column_blocks, host, tensor, uniforms
from proxfed.compressors.coding import wire
from proxfed.compressors.coding.reader import check, reading
from proxfed.errors import at_least_one, require
from proxfed.keyed_random import Key
from proxfed.types import Packed

_FORMATS: dict[torch.dtype, Any] = {torch.float32: (np.uint32, 23, 8), torch.float64: (np.uint64, 52, 11)}
"""For each dtype: its word, and the numbers of mantissa and exponent bits."""


@dataclass(frozen=True)
class ScaledSign:
    """(|v|_1 / d) sign(v), with sign(0) = 1: one bit per entry and one number.

    |C(v) - v|^2 = |v|^2 - |v|_1^2 / d, so q^2 = 1 - 1/d, attained when all but one entry are 0.
    """

    unbiased: ClassVar[bool] = False

    def contraction(self, d: int) -> float:
        return 1 - 1 / d

    @np.errstate(over="ignore")
    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, d = host(v), v.shape[1]
        partial = [np.abs(x[:, columns]).sum(1) for columns in column_blocks(d)]
        scale = np.stack(partial, 1).sum(1, keepdims=True) / d
        negative = x < 0
        parts = {"scale": tensor(scale, v), "negative": tensor(np.packbits(negative, axis=1), v)}
        nbytes = sum(part.nbytes for part in parts.values())
        return Packed(parts, tensor(self._dense(scale, negative), v), nbytes, nbytes, self)

    def _dense(self, scale: np.ndarray, negative: np.ndarray) -> np.ndarray:
        dense = np.empty(negative.shape, scale.dtype)
        for columns in column_blocks(negative.shape[1]):
            dense[:, columns] = np.where(negative[:, columns], -scale, scale)
        return dense

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(wire.rows(packed.parts["scale"]), wire.rows(packed.parts["negative"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        scale, negative = torch.empty(len(messages), 1, dtype=dtype), np.empty((len(messages), d), bool)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                scale[i], negative[i] = message.sizes(1, dtype), wire.unpack_flags(message, d)
        return torch.from_numpy(self._dense(scale.numpy(), negative))


@dataclass(frozen=True)
class QSGD:
    """|v| sign(v_j) xi_j / s, where xi_j is s |v_j| / |v|, rounded up or down at random (Alistarh et al. 2017).

    Unbiased with omega = min(B / s^2, sqrt(B) / s), where B is the number of entries that share a norm. Messages have
    the norms, and the sign and level of each entry, or only of entries whose level is not 0.
    """

    levels: int
    """s: the number of steps per norm."""
    bucket: int | None = None
    """B; None: all d entries share one norm."""
    contractive: bool = False
    """Whether to divide by 1 + omega, which makes it contractive."""

    def __post_init__(self) -> None:
        at_least_one(self, "levels")
        require(self.levels < 2**15, f"QSGD: levels = {self.levels} must be below {2**15}")
        if self.bucket is not None:
            at_least_one(self, "bucket")

    @property
    def unbiased(self) -> bool:
        return not self.contractive

    def omega(self, d: int) -> float:
        B, s = self._bucket(d), self.levels
        return min(B / s**2, math.sqrt(B) / s)

    def contraction(self, d: int) -> float:
        return self.omega(d) / self._divisor(d)

    def _bucket(self, d: int) -> int:
        return min(self.bucket or d, d)

    def _divisor(self, d: int) -> float:
        return 1 + self.omega(d) if self.contractive else 1.0

    @np.errstate(all="ignore")
    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, s, (c, d) = host(v), self.levels, v.shape
        norm = _norms(x, self._bucket(d))
        divisor = np.where(norm == 0, 1, norm)
        level = np.empty(x.shape, np.int16)
        for columns in column_blocks(d):
            ratio = np.abs(x[:, columns]) / divisor[:, self._bucket_of(columns, d)]
            xi = np.fmin(ratio * s, s)  # at most s anyway, but for NaN, which has no level
            low = np.floor(xi)
            low += uniforms(key, columns) < xi - low
            level[:, columns] = np.copysign(low, x[:, columns])
        parts = {"norm": tensor(norm, v), "level": tensor(level, v)}
        nbytes = norm.nbytes + c * wire.whole_bytes(d * (1 + wire.width(s)))
        best = norm.nbytes + wire.signed_sizes(level, s).sum()
        return Packed(parts, tensor(self._dense(norm, level), v), nbytes, int(best), self)

    def _bucket_of(self, columns: slice, d: int) -> np.ndarray:
        return np.arange(columns.start, columns.stop) // self._bucket(d)

    @np.errstate(all="ignore")
    def _dense(self, norm: np.ndarray, level: np.ndarray) -> np.ndarray:
        d = level.shape[1]
        unit = norm / (self.levels * self._divisor(d))
        dense = np.empty(level.shape, norm.dtype)
        for columns in column_blocks(d):
            np.multiply(level[:, columns], unit[:, self._bucket_of(columns, d)], out=dense[:, columns])
        return dense

    def encode(self, packed: Packed) -> list[bytes]:
        levels = [wire.write_signed(row, self.levels) for row in host(packed.parts["level"])]
        return wire.join(wire.rows(packed.parts["norm"]), levels)

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        c, buckets = len(messages), math.ceil(d / self._bucket(d))
        norm, level = torch.empty(c, buckets, dtype=dtype), np.empty((c, d), np.int16)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                norm[i], level[i] = message.sizes(buckets, dtype), wire.read_signed(message, d, self.levels)
                nothing = (norm[i] == 0).numpy()[np.arange(d) // self._bucket(d)]
                check(not level[i][nothing].any(), "a norm is 0, but not the levels below it")
        return torch.from_numpy(self._dense(norm.numpy(), level))


@dataclass(frozen=True)
class NaturalCompressor:
    """Each entry becomes one of the two powers of 2 around it, at random, unbiased: omega = 1/8 (Horvath et al. 2019).

    An entry is sent as its sign and exponent: 9 bits in float32, 12 in float64. The smallest power is the smallest
    normal number; smaller magnitudes become 0 or that. Magnitudes above the largest power are rounded down.
    """

    contractive: bool = False
    """Whether to divide by 1 + omega, which makes it contractive."""

    @property
    def unbiased(self) -> bool:
        return not self.contractive

    def omega(self, d: int) -> float:
        return 1 / 8

    def contraction(self, d: int) -> float:
        return 1 / 9 if self.contractive else 1 / 8

    def __call__(self, v: Tensor, key: Key) -> Packed:
        (c, d), (word, mantissa, exponent) = v.shape, _FORMATS[v.dtype]
        x = host(v)
        bits, negative = x.view(word), np.signbit(x)
        power = np.empty(bits.shape, np.int16)
        for columns in column_blocks(d):
            chance = (bits[:, columns] & word(2**mantissa - 1)) * 2.0**-mantissa
            down = (bits[:, columns] >> word(mantissa)) & word(2**exponent - 1)
            power[:, columns] = down + ((uniforms(key, columns) < chance) & (down < 2**exponent - 2))
        _, below = _below_top(power)
        best = wire.sizes(below.ravel(), np.full(c, d), exponent) + wire.whole_bytes(d) + 2
        nbytes = c * wire.whole_bytes(d * (1 + exponent))
        parts = {"power": tensor(power, v), "negative": tensor(negative, v)}
        return Packed(parts, self._dense(power, negative, v.dtype).to(v.device), nbytes, int(best.sum()), self)

    def _dense(self, power: np.ndarray, negative: np.ndarray, dtype: torch.dtype) -> Tensor:
        word, mantissa, exponent = _FORMATS[dtype]
        bits = np.empty(power.shape, word)
        for columns in column_blocks(power.shape[1]):
            sign = negative[:, columns].astype(word) << word(mantissa + exponent)
            bits[:, columns] = sign | power[:, columns].astype(word) << word(mantissa)
        dense = torch.from_numpy(bits.view(np.int8)).view(dtype)
        return dense.mul_(8 / 9) if self.contractive else dense

    def encode(self, packed: Packed) -> list[bytes]:
        top, below = _below_top(host(packed.parts["power"]))
        exponent = _FORMATS[packed.dense.dtype][2]
        signs = [wire.pack_flags(row) for row in host(packed.parts["negative"])]
        return wire.join(signs, [row.tobytes() for row in top], [wire.write(row, exponent) for row in below])

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        (_, _, exponent), shape = _FORMATS[dtype], (len(messages), d)
        power, negative = np.empty(shape, np.int16), np.empty(shape, bool)
        for i, sent in enumerate(messages):
            with reading(i, sent) as message:
                negative[i] = wire.unpack_flags(message, d)
                top = int(message.take(2).view(np.int16)[0])
                below = wire.read(message, d, exponent)
                check(below.max() <= top < 2**exponent, f"an exponent is not in 0..{2**exponent - 1}")
                check(below.min() == 0, "the largest exponent is not there")
                power[i] = top - below
        return self._dense(power, negative, dtype)


def _norms(x: np.ndarray, B: int) -> np.ndarray:
    """|.|_2 of each block of B entries of a row (the last may be shorter), (c, ceil(d/B))."""
    whole = x.shape[1] // B * B
    parts = [x[:, :whole].reshape(len(x), whole // B, B), x[:, None, whole:]]
    norms = []
    for part in parts[: 2 if whole < x.shape[1] else 1]:
        largest = np.maximum(part.max(-1), -part.min(-1))
        scaled = part / np.where(largest == 0, 1, largest)[..., None]  # so that squares neither overflow nor vanish
        norms.append(largest * np.sqrt(np.square(scaled, out=scaled).sum(-1)))
    return np.concatenate(norms, axis=1)


def _below_top(power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the largest exponent of each row, (c, 1); its distance to each exponent, (c, d))."""
    top = power.max(1, keepdims=True)
    return top, top - power
