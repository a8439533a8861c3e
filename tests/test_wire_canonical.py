"""Numbers are written in one way only: what is read is what would have been written, to the byte, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.compressors import QSGD, NaturalCompressor
from proxfed.compressors.coding import plane_code, wire
from proxfed.compressors.coding.planes import put_together, take_apart
from proxfed.compressors.coding.reader import Reader
from proxfed.errors import RunError

from support.compressor_cases import Urns, dtypes, keys, seeds, vectors


def read(message: bytes, how) -> tuple[np.ndarray, bytes] | None:
    """(what it says, the bytes that said it), or None if it is refused."""
    reader = Reader(message)
    try:
        found = how(reader)
    except RunError:
        return None
    return found, message[: len(message) - len(reader.rest)]


ANY = st.binary(min_size=1, max_size=24)
NUMBERS = st.lists(st.integers(0, 63) | st.integers(0, 3), max_size=12)


@given(message=ANY, count=st.integers(0, 9), width=st.integers(1, 9))
def test_whole_numbers_from_any_bytes(message: bytes, count: int, width: int) -> None:
    if found := read(message, lambda reader: wire.read(reader, count, width)):
        assert wire.write(found[0], width) == found[1]


@given(numbers=NUMBERS, header=st.sampled_from([0, 1, 2, 3, wire.FIXED]))
def test_whole_numbers_in_every_code(numbers: list[int], header: int) -> None:
    """The same numbers in each code that there is: only one of them is read."""
    values = np.array(numbers, np.int64)
    body = wire.pack(values, 6)
    if header != wire.FIXED:
        body = wire._unary(values >> header) + wire.pack(values & ((1 << header) - 1), header)
    message = bytes([header]) + body
    found = read(message, lambda reader: wire.read(reader, len(values), 6))
    assert (found is not None) == (message == wire.write(values, 6))


@given(message=ANY, d=st.integers(1, 12), largest=st.sampled_from([1, 3, 4, 200]), form=st.sampled_from([0, 1]))
def test_signed_numbers_from_any_bytes(message: bytes, d: int, largest: int, form: int) -> None:
    if found := read(bytes([form]) + message, lambda reader: wire.read_signed(reader, d, largest)):
        assert wire.write_signed(found[0], largest) == found[1]


@given(levels=st.lists(st.integers(-4, 4) | st.just(0), min_size=1, max_size=40))
def test_signed_numbers_in_both_forms(levels: list[int]) -> None:
    values = np.array(levels)
    index, bits = np.flatnonzero(values), wire.width(4)
    kept = values[index]
    where = wire.write(wire.gaps(index, np.array([len(index)]), len(values)), wire.width(len(values) - 1))
    sparse = len(index).to_bytes(4, "little") + where + wire.pack_flags(kept < 0) + wire.write(np.abs(kept) - 1, bits)
    full = wire.pack((values < 0) * (1 << bits) + np.abs(values), 1 + bits)
    for message in (b"\0" + full, b"\1" + sparse):
        found = read(message, lambda reader: wire.read_signed(reader, len(values), 4))
        assert (found is not None) == (message == wire.write_signed(values, 4))


def test_a_zero_has_no_sign() -> None:
    with pytest.raises(RunError, match="a level is 0 and has a sign"):
        wire.read_signed(Reader(b"\0" + wire.pack(np.array([4 + 0, 1]), 3)), 2, 3)


@pytest.mark.parametrize(("code", "d"), [(Urns, 9), (Urns, 40), (plane_code, 40), (plane_code, 300)])
@given(data=st.data(), seed=seeds)
def test_planes_with_a_changed_byte(code, d: int, data: st.DataObject, seed: int) -> None:
    draw = np.random.default_rng(seed)
    level = np.rint(draw.standard_cauchy(d) * draw.choice([0.5, 1, 4])).clip(-200, 200).astype(np.int64)
    level[0] = level[0] or 1
    message = bytearray(code.write(take_apart(level), 8))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(message), lambda reader: put_together(code.read(reader, d, 8), 255))
    if found is not None:
        assert code.write(take_apart(found[0]), 8) == found[1]


@dtypes
@given(seed=seeds)
def test_norms_and_exponents_that_nobody_would_have_sent(dtype: torch.dtype, seed: int) -> None:
    q, natural = QSGD(4), NaturalCompressor()
    size = dtype.itemsize
    sent = q.encode(q(vectors(seed, 1).to(dtype) + 1, keys(1, seed)))[0]
    levels = np.frombuffer(sent, np.uint8)[size:].tobytes()
    if wire.read_signed(Reader(levels), 24, 4).any():
        with pytest.raises(RunError, match="a norm is 0, but not the levels below it"):
            q.decode([bytes(size) + levels], 24, dtype)
    powers = np.full(24, 3)
    message = bytes(3) + np.int16(100).tobytes() + wire.write(powers, {4: 8, 8: 11}[size])
    with pytest.raises(RunError, match="the largest exponent is not there"):
        natural.decode([message], 24, dtype)
