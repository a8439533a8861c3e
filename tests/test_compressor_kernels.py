"""The compiled loops of compressors against those of NumPy: the same entries, numbers and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed import machine
from proxfed.compressors import QSGD, TopK, largest
from proxfed.compressors.coding import wire
from proxfed.compressors.coding.reader import Reader
from proxfed.errors import RunError

from support.compressor_cases import D, keys, seeds, vectors

pytest.importorskip("numba")
from proxfed.compressors.coding import kernels

WAYS = ("torch", "numba")


def both(read):
    """What is read, or the sentence of its refusal, without and with compiled loops."""
    said = []
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PROXFED_KERNELS", way)
            patch.setattr(wire, "MANY", 0)
            try:
                said.append(read())
            except RunError as e:
                said.append(str(e))
    return said


# ---- bits ------------------------------------------------------------------------------------------------------------


@given(
    r=st.integers(0, 40) | st.just(wire.FIXED),
    body=st.binary(max_size=60),
    count=st.integers(0, 40),
    width=st.integers(1, 40),
)
def test_any_bytes_are_read_as_the_same_numbers(r: int, body: bytes, count: int, width: int) -> None:
    def read() -> tuple[list[int], int]:
        reader = Reader(bytes([r]) + body)
        return wire.read(reader, count, width).tolist(), len(reader.rest)

    without, with_numba = both(read)
    assert without == with_numba


@given(seed=seeds, count=st.integers(1, 300), scale=st.floats(0.1, 1e6), width=st.integers(22, 40))
def test_numbers_are_written_and_read_alike(seed: int, count: int, scale: float, width: int) -> None:
    values = np.floor(np.random.default_rng(seed).exponential(scale, count)).clip(0, 2**22 - 1).astype(np.int64)

    def there_and_back() -> tuple[bytes, int, list[int]]:
        message = wire.write(values, width)
        size = int(wire.sizes(values, np.array([count]), width)[0])
        return message, size, wire.read(Reader(message), count, width).tolist()

    without, with_numba = both(there_and_back)
    assert without == with_numba
    assert with_numba[1:] == (len(with_numba[0]), values.tolist())


@pytest.mark.parametrize("C", [TopK(k=7), QSGD(4)], ids=str)
@given(seed=seeds, data=st.data())
def test_a_message_with_changed_bytes_is_read_or_refused_alike(C, seed: int, data: st.DataObject) -> None:
    message = bytearray(C.encode(C(vectors(seed, 1), keys(1, seed)))[0])
    place, byte = st.integers(0, len(message) - 1), st.integers(0, 255)
    for where, what in data.draw(st.lists(st.tuples(place, byte), max_size=3)):
        message[where] = what
    cut = bytes(message[: data.draw(st.just(len(message)) | st.integers(0, len(message)))])
    without, with_numba = both(lambda: C.decode([cut], D, torch.float64).numpy().tobytes())
    assert without == with_numba


def test_sums_of_clients_without_numbers() -> None:
    values, count = np.arange(10), np.array([0, 3, 0, 7, 0])
    for r in (0, 1, 2):
        without, with_numba = both(lambda r=r: wire._sums(values, count, r).tolist())
        assert without == with_numba == [0, sum(i >> r for i in range(3)), 0, sum(i >> r for i in range(3, 10)), 0]


# ---- the largest entries ---------------------------------------------------------------------------------------------


def awkward(seed: int, m: int, dtype: type) -> np.ndarray:
    """Few different numbers or many, of all sizes, with zeros of both signs, infinity and NaN."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(m) * 10.0 ** rng.integers(-30, 30, m) if seed % 3 else rng.integers(-2, 3, m) * -1.0
    v[rng.random(m) < 0.05] = rng.choice([np.inf, -np.inf, np.nan])
    return v.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(seed=seeds, m=st.integers(1, 2000), data=st.data())
def test_what_is_large_is_collected_and_the_largest_of_it_kept(dtype, seed: int, m: int, data: st.DataObject) -> None:
    v = awkward(seed, m, dtype)
    k = data.draw(st.integers(1, m))
    size, mask = largest._sizes(v), largest._mask(v)
    least = np.sort(size)[::-1][data.draw(st.integers(k - 1, m - 1))]
    index, found = np.empty(m + 8, np.int64), np.empty(m + 8, mask.dtype)
    count = kernels.collect(v.view(mask.dtype), mask, least, 100, index, found)
    expected = np.flatnonzero(size >= least)
    assert np.array_equal(index[:count], expected + 100)
    assert np.array_equal(found[:count], v.view(mask.dtype)[expected])
    kernels.keep_largest(found[:count], mask, least, k, index[:count])
    first = largest._select(size[None], k)[0]
    assert np.array_equal(index[:k], first + 100)
    assert np.array_equal(found[:k], v.view(mask.dtype)[first])


def test_there_may_be_no_room() -> None:
    word = np.arange(3 * kernels.CHUNK, dtype=np.uint32)
    index, found = np.empty(100, np.int64), np.empty(100, np.uint32)
    args = (word, largest._mask(np.zeros(1, np.float32)))
    assert kernels.collect(*args, np.uint32(len(word) - 50), 0, index, found) == 50
    assert kernels.collect(*args, np.uint32(len(word) - 200), 0, index, found) == -1


@pytest.mark.parametrize("way", WAYS)
def test_messages_of_long_vectors_are_the_same_bytes(monkeypatch, way: str) -> None:
    v = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3 * largest.LONG), dtype=np.float32))
    C = TopK(0.1)
    monkeypatch.setenv("PROXFED_KERNELS", way)
    packed = C(v, keys(2))
    messages = C.encode(packed)
    monkeypatch.setenv("PROXFED_KERNELS", WAYS[0])
    assert messages == C.encode(C(v, keys(2)))
    assert packed.best == sum(map(len, messages))
    monkeypatch.setenv("PROXFED_KERNELS", way)
    assert torch.equal(C.decode(messages, v.shape[1], v.dtype), packed.dense)
    assert machine.kernels().startswith(way)
