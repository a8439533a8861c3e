"""Any bytes are decoded to a vector that the compressor could have sent, or refused in one sentence."""

from __future__ import annotations

import re
import tracemalloc
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
from proxfed.compressors.coding import quantised_message, wire
from proxfed.compressors.coding.planes import put_together
from proxfed.compressors.coding.reader import Reader
from proxfed.compressors.step_search import largest_level
from proxfed.errors import RunError
from proxfed.types import Compressor, SparseCompressor

from support.compressor_cases import EVERY, D, dtypes, every, keys, seeds, vectors

ALL = [case.compressor for case in EVERY]
SENTENCE = re.compile(r"message of client 1: (it|a|an|the|\d+) [^\n]+[^.\n]")


def sent(C: Compressor, seed: int, dtype: torch.dtype) -> bytes:
    """The message of one client."""
    return C.encode(C(vectors(seed, 1).to(dtype), keys(1, seed)))[0]


@cache
def good(C: Compressor, dtype: torch.dtype) -> bytes:
    return C.encode(C(torch.ones(1, D, dtype=dtype), keys(1)))[0]


def refused(C: Compressor, message: bytes, dtype: torch.dtype) -> bool:
    """Whether it is refused, as the second of two, in a sentence that says so; else what it says is checked."""
    try:
        dense = C.decode([good(C, dtype), message], D, dtype)[1]
    except RunError as e:
        sentence = str(e)
    else:
        sentence = ""
    if sentence:
        assert SENTENCE.fullmatch(sentence)
        return True
    assert (dense.shape, dense.dtype) == ((D,), dtype)
    could_be_sent(C, dense)
    return False


def could_be_sent(C: Compressor, dense: torch.Tensor) -> None:
    """What holds for every vector that this compressor sends."""
    size = dense.abs()
    match C:
        case TopK() | RandK():
            assert np.count_nonzero(dense) <= round((1 - TopK(C.fraction, C.k).contraction(D)) * D)
        case ScaledSign():
            assert (size == size[0]).all() or dense.isnan().all()
        case QSGD() if dense.isfinite().all():
            size = size * C.levels * C._divisor(D)
            assert len(np.unique(size)) <= (C.levels + 1) * -(-D // C._bucket(D))
        case NaturalCompressor(contractive=False) if dense.isfinite().all():
            assert torch.isin(torch.frexp(size).mantissa, torch.tensor([0, 0.5], dtype=size.dtype)).all()


@every(ALL)
@dtypes
@given(message=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(C, dtype, message):
    refused(C, message, dtype)


@every(ALL)
@dtypes
@given(seed=seeds, data=st.data())
def test_a_message_with_changed_bytes_is_read_or_refused(C, dtype, seed, data):
    message = bytearray(sent(C, seed, dtype))
    head = st.integers(0, min(12, len(message) - 1))  # where the headers are, as often as anywhere else
    place = head | st.integers(0, len(message) - 1)
    for where, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=3)):
        message[where] = byte
    refused(C, bytes(message), dtype)


@every([C for C in ALL if not isinstance(C, ErrorBoundedQuantiser | ByteBudgetQuantiser)])
@dtypes
@given(seed=seeds, data=st.data(), more=st.binary(min_size=1, max_size=20))
def test_a_message_that_is_cut_or_extended_is_refused(C, dtype, seed, data, more):
    message = sent(C, seed, dtype)
    assert not refused(C, message, dtype)
    assert refused(C, message[: data.draw(st.integers(0, len(message) - 1))], dtype)
    assert refused(C, message + more, dtype)


@given(d=st.integers(1, 40), q2=st.sampled_from([0.5, 0.1, 1e-6]), body=st.binary(max_size=40))
def test_a_short_quantised_message_is_the_only_one_of_its_row(d, q2, body):
    """A cut one may be the message of another row: the code wastes nothing. Frames say how long messages are."""
    width = wire.width(largest_level(d, q2))
    try:
        *head, planes = quantised_message._read_short(Reader(body), d, width)
        level = put_together(planes, largest_level(d, q2))
    except RunError:
        return
    assert quantised_message._short(*head, level, width) == body


@every(ALL)
@dtypes
@given(seed=seeds, other=st.sampled_from(ALL), single=st.booleans())
def test_a_message_of_another_compressor_is_read_or_refused(C, dtype, seed, other, single):
    refused(C, sent(other, seed, torch.float32 if single else torch.float64), dtype)


FIXED, ONE = b"\xff", np.float32(1).tobytes()


@pytest.mark.parametrize(
    ("C", "d", "message", "says"),
    [
        (Identity(), 2, 2 * ONE + b"\0", "it has 1 bytes too many"),
        (Identity(), 2, ONE, "it ends 4 bytes early"),
        (LowRank(1, (4, 6)), D, 9 * ONE, "it ends 4 bytes early"),
        (TopK(k=1), D, b"", "it ends 1 bytes early"),
        (TopK(k=1), D, FIXED + bytes([24 << 3]) + ONE, "an index is not below 24"),
        (TopK(k=2), D, FIXED + bytes([0b10111_000, 0b00_000000]) + 2 * ONE, "an index is not below 24"),
        (TopK(k=1), D, FIXED + bytes([0b00001_001]) + ONE, "the bits that fill up a byte are not 0"),
        (TopK(k=1), D, bytes([5]) + b"\x80\0" + ONE, "5 is no header of numbers with 5 bits"),
        (TopK(k=1), D, bytes([200]) + b"\x80\0" + ONE, "200 is no header of numbers with 5 bits"),
        (TopK(k=9), D, b"\0" + bytes(5) + b"\xff" + 9 * ONE, "it has 8 of 9 numbers"),
        (TopK(k=9), D, bytes([4]) + b"\x3f\xe0" + bytes(5) + 9 * ONE, "a number has more than 5 bits"),
        (RandK(k=1), D, bytes(7), "it ends 1 bytes early"),
        (ScaledSign(), D, np.float32(-1).tobytes() + bytes(3), "a norm is negative"),
        (QSGD(4), 2, ONE + b"\2", "2 is no header of signed numbers"),
        (QSGD(4), 2, ONE + b"\0" + bytes([0b0101_0000]), "a level is above 4"),
        (QSGD(4), D, ONE + b"\1" + bytes([25, 0, 0, 0]), "it announces 25 of 24 numbers"),
        (QSGD(4), D, ONE + b"\1" + bytes([255, 255, 255, 255]), "it announces 4294967295 of 24 numbers"),
        (QSGD(4), D, ONE + b"\1" + bytes([1, 0, 0, 0]) + FIXED + b"\0\0" + FIXED + b"\x80", "a level is above 4"),
        (NaturalCompressor(), 1, b"\0" + b"\0\1" + FIXED + b"\0", "an exponent is not in 0..255"),
        (NaturalCompressor(), 1, b"\0" + b"\x07\0" + FIXED + b"\x08", "an exponent is not in 0..255"),
        (NaturalCompressor(), 1, b"\0" + b"\xff\xff" + FIXED + b"\0", "an exponent is not in 0..255"),
    ],
)
def test_what_is_wrong_is_said(C, d, message, says):
    with pytest.raises(RunError, match=f"^message of client 0: {re.escape(says)}$"):
        C.decode([message], d, torch.float32)


@every([TopK(k=3), QSGD(4), NaturalCompressor(), Identity()])
def test_a_message_much_too_long_is_refused_without_unpacking_it(C, monkeypatch):
    """Bits are unpacked for as many numbers as there can be, not for all that was sent."""
    unpacked = []
    whole = np.unpackbits
    monkeypatch.setattr(np, "unpackbits", lambda a, **more: unpacked.append(len(a)) or whole(a, **more))
    assert refused(C, b"\0" * 1_000_000, torch.float32)
    assert sum(unpacked) < 1000


@every(ALL)
@dtypes
def test_no_messages_make_no_rows(C, dtype):
    assert C.decode([], D, dtype).shape == (0, D)
    if isinstance(C, SparseCompressor):
        index, value = C.entries([], D, dtype)
        assert (index.shape, index.dtype) == (value.shape, torch.int64)
        assert (len(value), value.dtype) == (0, dtype)


@pytest.mark.slow
@every(ALL)
@dtypes
def test_a_million_damaged_messages_are_read_or_refused(C, dtype):
    """In all cases together: cut, extended, with bytes changed, moved or made up; no other error ever comes out."""
    rng = np.random.default_rng(list(repr((C, dtype)).encode()))
    whole = [sent(C, seed, dtype) for seed in range(20)]
    outcomes = [refused(C, _damaged(rng, whole), dtype) for _ in range(-(-1_000_000 // (2 * len(ALL))))]
    assert any(outcomes)


def _damaged(rng: np.random.Generator, whole: list[bytes]) -> bytes:
    message = bytearray(whole[rng.integers(len(whole))])
    for _ in range(rng.integers(1, 4)):
        at, way = int(rng.integers(len(message) + 1)), rng.integers(6)
        match int(way):
            case 0:
                message = message[:at]
            case 1:
                message[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 2:
                message[at : at + 8] = rng.bytes(8)
            case 3:
                message[at : at + 1] = bytes([rng.choice([0, 1, 127, 128, 254, 255])])
            case 4:
                message = message[at:] + message[:at]
            case 5:
                message = bytearray(rng.bytes(int(rng.integers(0, 64)))) if rng.random() < 0.2 else message[::-1]
    return bytes(message)


@every(ALL)
@dtypes
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x80\1\x55"], ids=repr)
def test_memory_is_bounded_by_the_message_and_the_vector(C, dtype, fill):
    """Whatever lengths and counts a message announces: some hundred bytes for each byte and each number at most."""
    for size in (30, 3000, 100_000):
        message = (fill * size)[:size]
        tracemalloc.start()
        refused(C, message, dtype)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000 + 100 * (D + size)
