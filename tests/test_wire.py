"""Compressed messages on the wire: read back bit for bit, and every byte is counted."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxfed import keyed_random
from proxfed.compressors import QSGD, Identity, LowRank, NaturalCompressor, RandK, ScaledSign, TopK
from proxfed.compressors.coding import wire
from proxfed.compressors.coding.reader import Reader
from proxfed.engine import tuning
from proxfed.engine.messages import decoded_sum
from proxfed.types import Compressor

from support.compressor_cases import (
    ANY_LENGTH,
    CASES,
    EVERY,
    FEDCEF_D,
    D,
    dtypes,
    every,
    keys,
    normal,
    same_bits,
    seeds,
    vectors,
)


def check_wire(C: Compressor, v: Tensor, key: keyed_random.Key) -> None:
    packed = C(v, key)
    messages = C.encode(packed)
    assert len(messages) == len(v)
    assert packed.best == sum(map(len, messages))
    assert packed.dense.dtype == v.dtype
    assert packed.dense.shape == v.shape
    assert all(len(part) == len(v) for part in packed.parts.values())
    assert same_bits(C.decode(messages, v.shape[1], v.dtype), packed.dense)
    alone = [C.decode([m], v.shape[1], v.dtype) for m in messages]
    assert not messages or same_bits(torch.cat(alone), packed.dense)


@every([case.compressor for case in EVERY])
@dtypes
@given(seed=seeds, c=st.integers(1, 4))
def test_a_message_is_read_back_bit_for_bit(C, dtype, seed, c):
    check_wire(C, vectors(seed, c).to(dtype), keys(c, seed))


@every([case.compressor for case in EVERY])
@dtypes
@pytest.mark.parametrize("block", [1, 5 * D], ids="block={}".format)
def test_messages_are_added_up_as_their_rows_would_be(C, dtype, block, monkeypatch):
    """Whether rows are written out or entries added, and however many at a time."""
    monkeypatch.setattr(tuning, "BLOCK", block)
    packed, w = C(vectors(3, 12).to(dtype), keys(12)), torch.linspace(-1, 2, 12, dtype=dtype)
    total, rows = decoded_sum(packed.compressor.encode(packed), w, packed), w[:, None] * packed.dense
    assert (total.dtype, total.shape) == (dtype, (D,))
    assert ((total - rows.sum(0)).abs() <= 12 * torch.finfo(dtype).eps * rows.abs().sum(0)).all()


@every([TopK(k=7), RandK(k=7)])
def test_few_entries_are_added_up_without_their_rows(C):
    d = 1_000_000
    packed = C(normal(0, 8, d, dtype=torch.float32), keys(8))
    messages = C.encode(packed)
    tracemalloc.start()
    try:
        total = decoded_sum(messages, torch.ones(8), packed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert torch.allclose(total, packed.dense.sum(0), rtol=1e-6, atol=0)
    assert peak < 1.1 * 4 * d  # the sum itself


@every([case.compressor for case in EVERY])
def test_no_rows_make_no_messages(C):
    """As in a process none of whose clients takes part."""
    check_wire(C, torch.zeros(0, D), keys(0))


@every(ANY_LENGTH)
@dtypes
@given(data=st.data())
def test_unusual_numbers_are_read_back_bit_for_bit(C, dtype, data):
    """Any length, -0.0, subnormal numbers, and numbers at the end of the range."""
    tiny = torch.finfo(dtype).tiny
    width = torch.finfo(dtype).bits
    number = st.floats(width=width, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, tiny / 8, 1.0])
    c, d = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 33))
    v = torch.tensor(data.draw(st.lists(number, min_size=c * d, max_size=c * d)), dtype=dtype).reshape(c, d)
    check_wire(C, v, keys(c, data.draw(seeds)))


@every([*ANY_LENGTH, LowRank(20, (103, 197)), LowRank(20, (103, 197), power=True)])
def test_long_vectors_are_read_back_bit_for_bit(C):
    check_wire(C, normal(0, 3, 103 * 197, dtype=torch.float32), keys(3))


@pytest.mark.parametrize("name", sorted(CASES))
def test_bytes_are_counted_as_in_the_papers(name):
    for C, paper, _ in CASES[name]:
        packed = C(normal(0, 3, D, dtype=torch.float32), keys(3))
        assert packed.nbytes == (packed.best if paper is None else 3 * paper)


def test_double_numbers_count_double():
    v, key = normal(0, 1, D), keys(1)
    sizes = {
        TopK(k=5): 12 * 5,
        RandK(k=5): 8 * 5 + 8,
        ScaledSign(): 8 + 3,
        QSGD(4, 5): 8 * 5 + 12,
        NaturalCompressor(): 36,
    }
    assert {C: C(v, key).nbytes for C in sizes} == sizes


@pytest.mark.parametrize(
    "index", [range(40), range(960, 1000), range(0, 1000, 25), [0], [999], [0, 999], range(1000), [3, 4, 5, 700]]
)
def test_an_index_set_takes_the_shortest_encoding(index):
    """No longer than four bytes each, than log2(d) bits each, than a bitmap; one byte says which."""
    d, k = 1000, len(index)
    v = torch.zeros(1, d)
    v[0, list(index)] = 1.0
    known = [4 * k, math.ceil(k * math.ceil(math.log2(d)) / 8), math.ceil(d / 8)]
    assert TopK(k=k)(v, keys(1)).best - 4 * k <= 1 + min(known)


@pytest.mark.parametrize(("fraction", "shortest"), [(0.01, 223_607), (0.1, 2.049e6)])
def test_gaps_reach_the_size_that_theory_gives(fraction, shortest):
    """Random positions: within half a percent of the length of a Golomb-Rice code of geometric gaps."""
    v = normal(0, 1, FEDCEF_D, dtype=torch.float32)
    packed = TopK(fraction)(v, keys(1))
    assert packed.best == pytest.approx(shortest, rel=5e-3)


def test_traffic_of_the_fedcef_paper():
    """10 clients, 400 rounds: 72.79 GB with the top 1 % up and everything down, 142.72 GB with everything both ways."""
    v = normal(0, 1, FEDCEF_D, dtype=torch.float32)
    dense, top = Identity()(v, keys(1)).nbytes, TopK(0.01)(v, keys(1)).nbytes
    assert top == 356_808
    assert round(10 * 400 * (top + dense) / 1e9, 2) == 72.79
    assert round(10 * 400 * (dense + dense) / 1e9, 2) == 142.72


@every([QSGD(1), QSGD(4), NaturalCompressor()])
def test_the_best_encoding_saves_bytes(C):
    """Most levels of a long vector are 0, and exponents of normal numbers are close to each other."""
    packed = C(normal(0, 2, 10_000, dtype=torch.float32), keys(2))
    assert packed.best < 0.6 * packed.nbytes


def test_nothing_costs_next_to_nothing():
    assert QSGD(4)(torch.zeros(1, 10_000), keys(1)).best < 20


@given(rows=st.lists(st.lists(st.integers(0, 5000), max_size=30), min_size=1, max_size=4), large=st.booleans())
def test_whole_numbers_are_read_back(rows, large):
    """Each client's numbers, alone or none at all; what follows them is left over."""
    rows = [[n * (400_000 if large else 1) for n in row] for row in rows]
    width = wire.width(2**31 - 1)
    count = np.array([len(row) for row in rows])
    sizes = wire.sizes(np.array([n for row in rows for n in row], np.int64), count, width)
    for row, size in zip(rows, sizes, strict=True):
        message = wire.write(np.array(row, np.int64), width)
        assert len(message) == size
        reader = Reader(message + b"rest")
        assert wire.read(reader, len(row), width).tolist() == row
        assert reader.rest.tobytes() == b"rest"


@every([case.compressor for case in EVERY])
@dtypes
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan], ids=str)
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_what_a_diverging_run_sends_is_read(C, dtype, value, everywhere):
    """Over processes it must arrive, so that the run can say that it diverges: bit for bit, but for the bits of NaN."""
    v = normal(0, 2, D, dtype=dtype)
    v[0, slice(None) if everywhere else 3] = value
    packed = C(v, keys(2))
    read = C.decode(C.encode(packed), D, dtype)
    assert torch.equal(read.nan_to_num(7.0), packed.dense.nan_to_num(7.0))
