"""Compressors: v (c, d) -> Packed. Rows are clients, and each is compressed as if it were alone.

`contraction(d)` is the q^2 of E|C(v) - v|^2 <= q^2 |v|^2, whatever it is: below 1 the compressor is contractive and may
be used with error feedback. An unbiased one, E C(v) = v, has q^2 = omega(d), often far above 1; C / (1 + omega) is
contractive, with q^2 = omega / (1 + omega). RandK, QSGD and Natural come in both forms.

Numbers travel in the dtype of v, float32 or float64. What is random is a function of the key, and sums over a row are
taken in one fixed order: the bits of a row depend neither on the rows beside it nor on the number of threads (but for
LowRank, whose factors come from LAPACK).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from proxfed import draws, wire
from proxfed.draws import Key
from proxfed.errors import at_least_one, require
from proxfed.types import Packed


@dataclass(frozen=True)
class Identity:
    """C(v) = v. q^2 = 0."""

    unbiased: ClassVar[bool] = True

    def contraction(self, d: int) -> float:
        return 0.0

    def __call__(self, v: Tensor, key: Key) -> Packed:
        return Packed({"value": v}, v, nbytes=v.nbytes, best=v.nbytes)

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.rows(packed.parts["value"])

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        return torch.stack([wire.read_floats(wire.buffer(m), d, dtype)[0] for m in messages])


@dataclass(frozen=True)
class TopK:
    """Keeps the k entries that are largest in magnitude; among equal ones those with the smallest index.

    q^2 = 1 - k/d, reached when all |v_j| are equal. The papers count 4 bytes for an index and one number for its value.

    fraction   the part of the entries that is kept, in (0, 1]: k = max(1, floor(fraction * d))
    k          or their number
    """

    unbiased: ClassVar[bool] = False
    fraction: float | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        _check_kept(self)

    def contraction(self, d: int) -> float:
        return 1 - _kept(self, d) / d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, (c, d), k = _host(v), v.shape, _kept(self, v.shape[1])
        flat, count = _largest(x, k), np.full(c, k)
        value, dense = _keep(x, flat)
        best = wire.sizes(wire.gaps(flat.ravel(), count, d), count, wire.width(d - 1)) + k * v.itemsize
        parts = {"index": _tensor((flat % d).astype(np.int32), v), "value": _tensor(value, v)}
        return Packed(parts, _tensor(dense, v), c * k * (4 + v.itemsize), int(best.sum()))

    def encode(self, packed: Packed) -> list[bytes]:
        index, d = _host(packed.parts["index"]), packed.dense.shape[1]
        gaps = (wire.gaps(row, np.array([len(row)]), d) for row in index)
        return wire.join([wire.write(row, wire.width(d - 1)) for row in gaps], wire.rows(packed.parts["value"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        dense, k = torch.zeros(len(messages), d, dtype=dtype), _kept(self, d)
        for row, message in zip(dense, messages, strict=True):
            gaps, rest = wire.read(wire.buffer(message), k, wire.width(d - 1))
            row[torch.from_numpy(wire.indices(gaps))] = wire.read_floats(rest, k, dtype)[0]
        return dense


@dataclass(frozen=True)
class RandK:
    """Keeps k entries chosen at random: q^2 = 1 - k/d. Unbiased: times d/k, omega = d/k - 1.

    The choice is a function of the key, so a message is the key (8 bytes) and k numbers.

    fraction   the part of the entries that is kept, in (0, 1]: k = max(1, floor(fraction * d))
    k          or their number
    unbiased   multiply by d/k
    """

    fraction: float | None = None
    k: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        _check_kept(self)

    def omega(self, d: int) -> float:
        return d / _kept(self, d) - 1

    def contraction(self, d: int) -> float:
        return self.omega(d) if self.unbiased else 1 - _kept(self, d) / d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        (c, d), k = v.shape, _kept(self, v.shape[1])
        flat = _subset(key, k, d) + d * np.arange(c)[:, None]
        value, dense = _keep(_host(v), flat, d / k if self.unbiased else 1.0)
        parts = {"seed": _tensor(key.copy().view(np.int64)[:, None], v), "value": _tensor(value, v)}
        nbytes = key.nbytes + value.nbytes
        return Packed(parts, _tensor(dense, v), nbytes, best=nbytes)

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(wire.rows(packed.parts["seed"]), wire.rows(packed.parts["value"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        k, parts = _kept(self, d), [wire.take(wire.buffer(m), 8) for m in messages]
        key = np.concatenate([seed for seed, _ in parts]).view(np.uint64)
        value = torch.stack([wire.read_floats(rest, k, dtype)[0] for _, rest in parts])
        return torch.zeros(len(messages), d, dtype=dtype).scatter_(1, torch.from_numpy(_subset(key, k, d)), value)


@dataclass(frozen=True)
class ScaledSign:
    """(|v|_1 / d) sign(v), where sign(0) = 1: a bit for each entry and one number.

    |C(v) - v|^2 = |v|^2 - |v|_1^2 / d, so q^2 = 1 - 1/d, reached when all but one entry are 0.
    """

    unbiased: ClassVar[bool] = False

    def contraction(self, d: int) -> float:
        return 1 - 1 / d

    @np.errstate(over="ignore")
    def __call__(self, v: Tensor, key: Key) -> Packed:
        x, d = _host(v), v.shape[1]
        partial = [np.abs(x[:, columns]).sum(1) for columns in _columns(d)]
        scale = np.stack(partial, 1).sum(1, keepdims=True) / d
        negative = x < 0
        parts = {"scale": _tensor(scale, v), "negative": _tensor(np.packbits(negative, axis=1), v)}
        nbytes = sum(part.nbytes for part in parts.values())
        return Packed(parts, _tensor(self._dense(scale, negative), v), nbytes, best=nbytes)

    def _dense(self, scale: np.ndarray, negative: np.ndarray) -> np.ndarray:
        dense = np.empty(negative.shape, scale.dtype)
        for columns in _columns(negative.shape[1]):
            dense[:, columns] = np.where(negative[:, columns], -scale, scale)
        return dense

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(wire.rows(packed.parts["scale"]), wire.rows(packed.parts["negative"]))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        parts = [wire.read_floats(wire.buffer(m), 1, dtype) for m in messages]
        scale = torch.stack([number for number, _ in parts])
        negative = np.stack([wire.unpack_flags(bits, d)[0] for _, bits in parts])
        return torch.from_numpy(self._dense(scale.numpy(), negative))


@dataclass(frozen=True)
class QSGD:
    """|v| sign(v_j) xi_j / s, where xi_j is s |v_j| / |v|, rounded up or down at random (Alistarh et al. 2017).

    Unbiased with omega = min(B / s^2, sqrt(B) / s), where B is the number of entries that share a norm. What travels:
    the norms, and sign and level of each entry, or only of those whose level is not 0.

    levels        s
    bucket        B; by default all d entries share one norm
    contractive   divide by 1 + omega
    """

    levels: int
    bucket: int | None = None
    contractive: bool = False

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
        x, s, (c, d) = _host(v), self.levels, v.shape
        norm = _norms(x, self._bucket(d))
        divisor = np.where(norm == 0, 1, norm)
        level = np.empty(x.shape, np.int16)
        for columns in _columns(d):
            ratio = np.abs(x[:, columns]) / divisor[:, self._bucket_of(columns, d)]
            xi = np.fmin(ratio * s, s)  # at most s anyway, but for NaN, which has no level
            low = np.floor(xi)
            low += _uniforms(key, columns) < xi - low
            level[:, columns] = np.copysign(low, x[:, columns])
        parts = {"norm": _tensor(norm, v), "level": _tensor(level, v)}
        nbytes = norm.nbytes + c * wire.whole_bytes(d * (1 + wire.width(s)))
        best = norm.nbytes + wire.signed_sizes(level, s).sum()
        return Packed(parts, _tensor(self._dense(norm, level), v), nbytes, int(best))

    def _bucket_of(self, columns: slice, d: int) -> np.ndarray:
        return np.arange(columns.start, columns.stop) // self._bucket(d)

    @np.errstate(all="ignore")
    def _dense(self, norm: np.ndarray, level: np.ndarray) -> np.ndarray:
        d = level.shape[1]
        unit = norm / (self.levels * self._divisor(d))
        dense = np.empty(level.shape, norm.dtype)
        for columns in _columns(d):
            np.multiply(level[:, columns], unit[:, self._bucket_of(columns, d)], out=dense[:, columns])
        return dense

    def encode(self, packed: Packed) -> list[bytes]:
        levels = [wire.write_signed(row, self.levels) for row in _host(packed.parts["level"])]
        return wire.join(wire.rows(packed.parts["norm"]), levels)

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        buckets = math.ceil(d / self._bucket(d))
        parts = [wire.read_floats(wire.buffer(m), buckets, dtype) for m in messages]
        level = np.stack([wire.read_signed(rest, d, self.levels)[0] for _, rest in parts])
        norm = torch.stack([numbers for numbers, _ in parts])
        return torch.from_numpy(self._dense(norm.numpy(), level.astype(np.int16)))


@dataclass(frozen=True)
class Natural:
    """Each entry becomes one of the two powers of 2 around it, at random, unbiased: omega = 1/8 (Horvath et al. 2019).

    An entry travels as its sign and exponent: 9 bits in float32, 12 in float64. The smallest power is that of the
    smallest normal number; what is below becomes 0 or that. Beyond the largest power everything is rounded down.

    contractive   divide by 1 + omega
    """

    contractive: bool = False

    @property
    def unbiased(self) -> bool:
        return not self.contractive

    def omega(self, d: int) -> float:
        return 1 / 8

    def contraction(self, d: int) -> float:
        return 1 / 9 if self.contractive else 1 / 8

    def __call__(self, v: Tensor, key: Key) -> Packed:
        (c, d), (word, mantissa, exponent) = v.shape, _FORMATS[v.dtype]
        x = _host(v)
        bits, negative = x.view(word), np.signbit(x)
        power = np.empty(bits.shape, np.int16)
        for columns in _columns(d):
            chance = (bits[:, columns] & word(2**mantissa - 1)) * 2.0**-mantissa
            down = (bits[:, columns] >> word(mantissa)) & word(2**exponent - 1)
            power[:, columns] = down + ((_uniforms(key, columns) < chance) & (down < 2**exponent - 2))
        _, below = _below_top(power)
        best = wire.sizes(below.ravel(), np.full(c, d), exponent) + wire.whole_bytes(d) + 2
        nbytes = c * wire.whole_bytes(d * (1 + exponent))
        parts = {"power": _tensor(power, v), "negative": _tensor(negative, v)}
        return Packed(parts, self._dense(power, negative, v.dtype).to(v.device), nbytes, int(best.sum()))

    def _dense(self, power: np.ndarray, negative: np.ndarray, dtype: torch.dtype) -> Tensor:
        word, mantissa, exponent = _FORMATS[dtype]
        bits = np.empty(power.shape, word)
        for columns in _columns(power.shape[1]):
            sign = negative[:, columns].astype(word) << word(mantissa + exponent)
            bits[:, columns] = sign | power[:, columns].astype(word) << word(mantissa)
        dense = torch.from_numpy(bits.view(np.int8)).view(dtype)
        return dense.mul_(8 / 9) if self.contractive else dense

    def encode(self, packed: Packed) -> list[bytes]:
        top, below = _below_top(_host(packed.parts["power"]))
        exponent = _FORMATS[packed.dense.dtype][2]
        signs = [wire.pack_flags(row) for row in _host(packed.parts["negative"])]
        return wire.join(signs, [row.tobytes() for row in top], [wire.write(row, exponent) for row in below])

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        power, negative = np.empty((len(messages), d), np.int16), np.empty((len(messages), d), bool)
        for i, message in enumerate(messages):
            negative[i], rest = wire.unpack_flags(wire.buffer(message), d)
            top, rest = wire.take(rest, 2)
            power[i] = top.view(np.int16) - wire.read(rest, d, _FORMATS[dtype][2])[0]
        return self._dense(power, negative, dtype)


@dataclass(frozen=True)
class LowRank:
    """v as a matrix M of this shape, projected on rank r: q^2 = 1 - r / min(shape).

    The best approximation comes from the singular value decomposition. `power` takes one power iteration instead, as
    PowerSGD does, from a fresh Gaussian matrix G with r columns: P = orth(M G), C(M) = P P'M. It obeys the same q^2 in
    expectation: the rows of M span at most min(shape) dimensions, G picks r of them at random, and P P' keeps at least
    the part of M that lies there. Where the factors would be no shorter than M, M itself travels, and q^2 = 0.

    rank    r
    shape   (a, b) with a * b = d
    power   one keyed power iteration in place of the decomposition
    """

    unbiased: ClassVar[bool] = False
    rank: int
    shape: tuple[int, int]
    power: bool = False

    def __post_init__(self) -> None:
        at_least_one(self, "rank")
        sides = list(self.shape) if isinstance(self.shape, (tuple, list)) else []
        whole = all(isinstance(side, int) and side >= 1 for side in sides)
        require(whole and len(sides) == 2, f"LowRank: shape = {self.shape!r} must be two whole numbers >= 1")

    def contraction(self, d: int) -> float:
        return 0.0 if self._exact(d) else 1 - self.rank / min(self.shape)

    def _exact(self, d: int) -> bool:
        a, b = self.shape
        require(a * b == d, f"LowRank: shape = {self.shape!r} has {a * b} entries, but the vectors have d = {d}")
        return self.rank * (a + b) >= d

    def __call__(self, v: Tensor, key: Key) -> Packed:
        if self._exact(v.shape[1]):
            return Identity()(v, key)
        M = v.reshape(-1, *self.shape)
        left, right = (part.contiguous() for part in (self._power(M, key) if self.power else self._svd(M)))
        nbytes = left.nbytes + right.nbytes
        return Packed({"left": left, "right": right}, _outer(left, right), nbytes, best=nbytes)

    def _svd(self, M: Tensor) -> tuple[Tensor, Tensor]:
        broken = ~M.isfinite().all(2).all(
            1
        )  # LAPACK refuses these; NaN comes out instead, as from any other compressor
        U, S, Vh = torch.linalg.svd(M.masked_fill(broken[:, None, None], 0), full_matrices=False)
        S = S.masked_fill(broken[:, None], torch.nan)
        return U[:, :, : self.rank] * S[:, None, : self.rank], Vh[:, : self.rank].mT

    def _power(self, M: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        G = _normals(key, M.shape[2] * self.rank).reshape(len(M), -1, self.rank)
        P = torch.linalg.qr(M @ G.to(M)).Q
        return P, M.mT @ P

    def encode(self, packed: Packed) -> list[bytes]:
        return wire.join(*map(wire.rows, packed.parts.values()))

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        if self._exact(d):
            return Identity().decode(messages, d, dtype)
        (a, b), r = self.shape, self.rank
        both = torch.stack([wire.read_floats(wire.buffer(m), (a + b) * r, dtype)[0] for m in messages])
        return _outer(both[:, : a * r].reshape(-1, a, r), both[:, a * r :].reshape(-1, b, r))


COMPRESSORS: dict[str, type] = {
    "identity": Identity,
    "top_k": TopK,
    "rand_k": RandK,
    "scaled_sign": ScaledSign,
    "qsgd": QSGD,
    "natural": Natural,
    "low_rank": LowRank,
}

_FORMATS: dict[torch.dtype, Any] = {torch.float32: (np.uint32, 23, 8), torch.float64: (np.uint64, 52, 11)}
"""The word that a number fits in, and how many bits of it are mantissa and exponent."""

_BLOCK = 2**13  # columns; part of what a key means, as `_uniforms` counts in blocks


def _host(x: Tensor) -> np.ndarray:
    """Its numbers in a NumPy array: a view, where x is in the memory of the CPU."""
    return x.detach().cpu().contiguous().numpy()


def _tensor(x: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(x).to(like.device)


def _check_kept(owner: Any) -> None:
    name, fraction, k = type(owner).__name__, owner.fraction, owner.k
    require((fraction is None) != (k is None), f"{name}: fraction = {fraction!r}, k = {k!r}; exactly one must be given")
    if k is not None:
        at_least_one(owner, "k")
    else:
        number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        require(number and 0 < fraction <= 1, f"{name}: fraction = {fraction!r} must be a number in (0, 1]")


def _kept(owner: Any, d: int) -> int:
    """How many of d entries a TopK or RandK keeps."""
    k = max(1, math.floor(owner.fraction * d)) if owner.k is None else owner.k
    require(k <= d, f"{type(owner).__name__}: k = {k} must be at most the number of entries, d = {d}")
    return k


def _largest(v: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest magnitudes of each row are, of equal ones the first: positions in v, ascending, (c, k).

    Without its sign bit a float is a whole number in the same order, on which NumPy selects several times faster than
    torch.topk, and in which even NaN has a place (above infinity).
    """
    (c, d), word = v.shape, np.dtype(f"u{v.itemsize}")
    size = v.view(word) & word.type(2 ** (8 * v.itemsize - 1) - 1)
    least = np.partition(size, d - k, axis=1)[:, d - k]
    flat = np.flatnonzero(size >= least[:, None])
    if len(flat) > c * k:  # more than k in some row are as large as its k-th: keep the first of those that equal it
        row = flat // d
        tie = size.ravel()[flat] == least[row]
        ties, found = np.bincount(row[tie], minlength=c), np.bincount(row, minlength=c)
        rank = np.cumsum(tie) - (np.cumsum(ties) - ties)[row]
        flat = flat[~tie | (rank <= (k - found + ties)[row])]
    return flat.reshape(c, k)


@np.errstate(over="ignore")
def _keep(v: np.ndarray, flat: np.ndarray, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at these positions, times a factor, and v with nothing but them."""
    value, dense = v.ravel()[flat], np.zeros_like(v)
    value *= factor
    dense.ravel()[flat] = value
    return value, dense


def _subset(key: Key, k: int, d: int) -> np.ndarray:
    """k different ones of 0..d-1 for each client, every choice equally likely: (c, k).

    They are the first k different numbers in a stream of uniform ones; for k > d/2 it is those left out that are drawn.
    """
    c = len(key)
    if 2 * k > d:
        mask = np.ones((c, d), bool)
        np.put_along_axis(mask, _subset(key, d - k, d), False, axis=1)
        return np.nonzero(mask)[1].reshape(c, k)
    count = k + k * k // d + 4  # nearly always enough: about k^2 / 2d of them have been there before
    while True:
        number = (draws.uniforms(key, count) * d).astype(np.int64)
        tagged = np.sort((number << 32) | np.arange(count), axis=1)  # by number, then by place in the stream
        fresh = np.empty(number.shape, bool)
        np.put_along_axis(fresh, tagged & (2**32 - 1), np.diff(tagged >> 32, prepend=-1) > 0, axis=1)
        seen = np.cumsum(fresh, axis=1)
        if (seen[:, -1] >= k).all():
            return number[fresh & (seen <= k)].reshape(c, k)
        count *= 2


def _columns(d: int) -> Iterator[slice]:
    """The columns in blocks: what is computed entry by entry then has its temporaries in cache."""
    return (slice(start, min(start + _BLOCK, d)) for start in range(0, d, _BLOCK))


def _uniforms(key: Key, columns: slice) -> np.ndarray:
    """Uniform numbers in [0, 1), one for each client and column."""
    return draws.uniforms(draws.fold(key, columns.start // _BLOCK), columns.stop - columns.start)


def _normals(key: Key, count: int) -> Tensor:
    """(c, count) standard normal numbers (Box and Muller)."""
    u = draws.uniforms(key, 2 * count)
    return torch.from_numpy(np.sqrt(-2 * np.log1p(-u[:, :count])) * np.cos(2 * np.pi * u[:, count:]))


def _norms(x: np.ndarray, B: int) -> np.ndarray:
    """|.|_2 of every B entries of a row (the last may be fewer), (c, ceil(d/B))."""
    whole = x.shape[1] // B * B
    parts = [x[:, :whole].reshape(len(x), -1, B), x[:, None, whole:]]
    norms = []
    for part in parts[: 2 if whole < x.shape[1] else 1]:
        largest = np.maximum(part.max(-1), -part.min(-1))
        scaled = part / np.where(largest == 0, 1, largest)[..., None]  # so that squares neither overflow nor vanish
        norms.append(largest * np.sqrt(np.square(scaled, out=scaled).sum(-1)))
    return np.concatenate(norms, axis=1)


def _below_top(power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest exponent of each row, (c, 1), and how far each exponent is below it, (c, d)."""
    top = power.max(1, keepdims=True)
    return top, top - power


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """left @ right' of each client, flat, (c, d): term by term, because the bits of a matrix product depend on the
    machine and on the number of clients, and sender and receiver must agree."""
    terms = (a[:, :, None] * b[:, None, :] for a, b in zip(left.unbind(2), right.unbind(2), strict=True))
    return reduce(torch.add, terms).flatten(1)
