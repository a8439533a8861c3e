"""Compressors with what the papers count for them, and vectors of all shapes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from proxfed import keyed_random
from proxfed.compressors import (
    QSGD,
    ByteBudgetQuantiser,
    ErrorBoundedQuantiser,
    Identity,
    LowRank,
    NaturalCompressor,
    RandK,
    ScaledSign,
    TopK,
)
from proxfed.compressors.coding import urn_code
from proxfed.compressors.coding.planes import Planes
from proxfed.compressors.coding.reader import Reader
from proxfed.types import Compressor

D = 24
FEDCEF_D = 4_460_106  # entries of the largest network in the FedCEF paper


class Case(NamedTuple):
    """A compressor of vectors with D entries, and the bytes that the papers count for a float32 vector; None: what is
    written."""

    compressor: Compressor
    paper: int | None
    random: bool = False


CASES = {
    "identity": [Case(Identity(), 4 * D)],
    "top_k": [Case(TopK(0.25), 8 * 6), Case(TopK(fraction=0.01), 8), Case(TopK(k=5), 8 * 5), Case(TopK(k=D), 8 * D)],
    "rand_k": [
        Case(RandK(0.25), 4 * 6 + 8, random=True),
        Case(RandK(k=18), 4 * 18 + 8, random=True),
        Case(RandK(k=D), 4 * D + 8),
        Case(RandK(0.25, unbiased=True), 4 * 6 + 8, random=True),
        Case(RandK(k=1, unbiased=True), 4 + 8, random=True),
    ],
    "scaled_sign": [Case(ScaledSign(), 4 + D // 8)],
    "qsgd": [
        Case(QSGD(1), 4 + 2 * D // 8, random=True),
        Case(QSGD(4, bucket=5), 4 * 5 + 4 * D // 8, random=True),
        Case(QSGD(255, bucket=8), 4 * 3 + 9 * D // 8, random=True),
        Case(QSGD(3, contractive=True), 4 + 3 * D // 8, random=True),
    ],
    "natural": [
        Case(NaturalCompressor(), 9 * D // 8, random=True),
        Case(NaturalCompressor(contractive=True), 9 * D // 8, random=True),
    ],
    "low_rank": [
        Case(LowRank(1, (4, 6)), 4 * 10),
        Case(LowRank(2, (6, 4)), 4 * 20),
        Case(LowRank(1, (4, 6), power=True), 4 * 10, random=True),
        Case(LowRank(2, (6, 4), power=True), 4 * 20, random=True),
        Case(LowRank(4, (6, 4)), 4 * D),
        Case(LowRank(9, (1, 24), power=True), 4 * D),
    ],
    "byte_budget": [Case(ByteBudgetQuantiser(nbytes), None) for nbytes in (40, 70, 1000)],
    "error_bounded": [Case(ErrorBoundedQuantiser(q2), None) for q2 in (0.1, 0.5, 0.95, 1e-3, 1e-6)],
}
EVERY = [case for cases in CASES.values() for case in cases]
RANDOM = [case.compressor for case in EVERY if case.random]
FIXED = [case.compressor for case in EVERY if not case.random]
UNBIASED = [C for C in RANDOM if C.unbiased]

ANY_LENGTH = [Identity(), TopK(0.3), TopK(1.0), RandK(0.3), RandK(0.7, unbiased=True), ScaledSign()]
ANY_LENGTH += [
    QSGD(1),
    QSGD(7, bucket=3),
    QSGD(300, contractive=True),
    NaturalCompressor(),
    NaturalCompressor(contractive=True),
    ErrorBoundedQuantiser(0.1),
    ErrorBoundedQuantiser(0.6),
    ErrorBoundedQuantiser(1e-6),
    ByteBudgetQuantiser(200),
]

seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def every(compressors: list[Compressor]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("C", compressors, ids=repr)


def keys(count: int, seed: int = 0) -> keyed_random.Key:
    return keyed_random.keys(seed, "test", range(count), 0)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(keyed_random.generator(seed, "test").standard_normal(shape)).to(dtype)


def vectors(seed: int, c: int, d: int = D) -> Tensor:
    """Rows of different shapes: normal, heavy-tailed, mostly zero, flat, of very different sizes."""
    g = normal(seed, 5, d)
    rows = [g[0], g[1] ** 5, g[2] * (g[2] > 1.2), g[3].sign(), 10 ** (8 * g[4])]
    return torch.stack([rows[(seed + i) % 5] for i in range(c)])


def same_bits(a: Tensor, b: Tensor) -> bool:
    word = {torch.float32: torch.int32, torch.float64: torch.int64}[a.dtype]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(word), b.contiguous().view(word))


def square(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


class Urns:
    """The code of short messages, for levels alone."""

    @staticmethod
    def write(planes: Planes, width: int) -> bytes:
        to = urn_code.Writer()
        urn_code.write(to, planes, width)
        return to.message()

    @staticmethod
    def read(message: Reader, d: int, width: int) -> Planes:
        return urn_code.read(urn_code.Digits(message, 10**6), d, width)
