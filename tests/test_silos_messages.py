"""Letters are read as they were written, or refused in one sentence, whatever bytes come."""

from __future__ import annotations

import random
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.compressors import QSGD, Identity, NaturalCompressor, TopK
from proxfed.engine.messages import leaves, nbytes
from proxfed.errors import ProxfedError, RunError
from proxfed.keyed_random import keys
from proxfed.silos.site.store import Store
from proxfed.silos.wire.message import DTYPES, LEAF, LONGEST_HEAD, MOST_LEAVES, ROW, Letter, pack, unpack
from proxfed.types import Message, Packed

from support.algorithm_settings import algorithm
from support.silos import Anew, both, toy_problem

D, CODECS = 7, (TopK(k=3), QSGD(4), NaturalCompressor(), Identity())


def tensor(seed: int, shape: tuple[int, ...], kind: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 100
    return x.to(DTYPES[kind]) if DTYPES[kind] is not torch.bool else x > 0


shapes = st.sampled_from([(), (1,), (D,), (1, D), (3, D), (2, 1), (0, D)])
plain = st.builds(tensor, st.integers(0, 99), shapes, st.integers(0, len(DTYPES) - 1))
forms = st.recursive(plain, lambda m: st.lists(m, min_size=0, max_size=3).map(tuple), max_leaves=6)


def equal(a: Message, b: Message) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(equal, a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@given(forms)
def test_messages_are_read_as_they_were_written(message: Message) -> None:
    form, body = pack(message, CODECS)
    assert equal(unpack(form, body, CODECS, D, 3), message)
    assert len(body) == nbytes(message)[1] + LEAF * len(leaves(message))


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("rows", [1, 3])
def test_compressed_ones_too(codec: Any, rows: int) -> None:
    packed = codec(tensor(1, (rows, D), 1), keys(0, "test", range(rows), 1))
    number = tensor(2, (rows, 1), 1)
    form, body = pack((packed, number), CODECS)
    x, y = unpack(form, body, CODECS, D, rows)
    assert torch.equal(x, packed.dense)
    assert torch.equal(y, number)
    assert len(body) == packed.best + number.nbytes + 2 * LEAF + rows * ROW
    if rows == 1:
        assert torch.equal(unpack(form, body, CODECS, D, 1, shared=True)[0], packed.dense[0])


def test_of_two_compressors_of_a_kind_it_is_read_by_the_one_that_packed_it() -> None:
    codecs = (TopK(k=2), TopK(k=3))
    x = tensor(1, (2, D), 1)
    for codec in codecs:
        packed = codec(x, keys(0, "test", range(2), 1))
        form, body = pack(packed, codecs)
        assert torch.equal(unpack(form, body, codecs, D, 2), packed.dense)


def test_who_packed_it_must_be_known() -> None:
    packed = TopK(k=2)(tensor(1, (1, D), 1), keys(0, "test", [0], 1))
    with pytest.raises(RunError, match="packed by a compressor that is none of the algorithm's fields"):
        pack(packed, (QSGD(4), NaturalCompressor()))


letters = st.builds(
    Letter,
    st.sampled_from(["round", "query", "answer", "\x00 <é>"]),
    st.sampled_from(["", *(sha256(bytes([k])).hexdigest()[:32] for k in range(5))]),
    st.integers(-1, 2**53 - 1),
    st.integers(-1, 9),
    st.dictionaries(
        st.text(max_size=4).filter(lambda k: k not in ("kind", "run", "round", "step")),
        st.one_of(st.integers(-9, 9), st.text(max_size=4), st.booleans(), st.none(), st.lists(st.integers(0, 9))),
        max_size=3,
    ),
    st.binary(max_size=40),
    st.integers(0, 2**64 - 1),
)


@given(letters)
def test_letters_are_read_as_they_were_written(letter: Letter) -> None:
    again = Letter.decode(letter.encode())
    assert again == letter
    assert again.digest == letter.digest


@given(letters, st.integers(0, 2**32), st.integers(0, 7))
def test_a_changed_bit_is_noticed(letter: Letter, place: int, bit: int) -> None:
    data = bytearray(letter.encode())
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(RunError):
        Letter.decode(bytes(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RunError):
        Letter.decode(data)


@given(st.binary(max_size=60))
def test_any_head_under_a_good_checksum_is_read_or_refused(head: bytes) -> None:
    told = struct.pack("<4sQIQ", b"PXS1", 1, len(head), 0) + head
    _accepted_only_as_written(told + sha256(told).digest())


@pytest.mark.parametrize(
    "head",
    [
        b"[" * 100_000,
        b'{"a":' * 5000,
        b'{"kind":"a","round":1e999,"run":"","step":0}',
        b'{"kind":"a","round":' + b"9" * 5000 + b',"run":"","step":0}',
        b'{"kind":"a","round":NaN,"run":"","step":0}',
        b'{"kind":"a","round":0,"run":"","step":0 }',
        b'{"kind":"a","kind":"b","round":0,"run":"","step":0}',
        b'{"a":1e400,"kind":"a","round":0,"run":"","step":0}',
        b'{"a":[-1e400],"kind":"a","round":0,"run":"","step":0}',
        b'{"a":' + b"9" * 400 + b',"kind":"a","round":0,"run":"","step":0}',
        b'{"kind":"a","round":0,"run":"' + b"a" * 70_000 + b'","step":0}',
        b'{"kind":"a","round":0,"run":"' + b"A" * 32 + b'","step":0}',
        b'{"kind":"a","round":0,"run":"' + b"a" * 31 + b'","step":0}',
        b'{"kind":"' + b"a" * 70_000 + b'","round":0,"run":"","step":0}',
    ],
    ids=range(14),
)
def test_heads_that_are_none(head: bytes) -> None:
    told = struct.pack("<4sQIQ", b"PXS1", 1, len(head), 0) + head
    with pytest.raises(RunError):
        Letter.decode(told + sha256(told).digest())


def test_lengths_are_not_believed() -> None:
    for head, body in ((LONGEST_HEAD + 1, 0), (2**32 - 1, 2**64 - 1), (0, 2**63)):
        with pytest.raises(RunError):
            Letter.decode(struct.pack("<4sQIQ", b"PXS1", 1, head, body) + bytes(100))
    huge = struct.pack("<BBBxII", 0, 1, 2, 2**32 - 1, 2**32 - 1)
    with pytest.raises(RunError, match=r"ends \d+ bytes early"):
        unpack(".", huge, CODECS, D, 1)
    with pytest.raises(RunError, match="rows of 4294967295 numbers came"):
        unpack(".", struct.pack("<BBBxII", 1, 1, 2, 1, 2**32 - 1), CODECS, D, 1)
    many = "(" + "." * (MOST_LEAVES + 1) + ")"
    with pytest.raises(RunError, match=f"a message of {MOST_LEAVES + 1} tensors"):
        unpack(many, b"", CODECS, D, 1)


# ---- mutations under a good checksum ---------------------------------------------------------------------------------


def _accepted_only_as_written(data: bytes) -> Letter | None:
    """A letter that is read is the one whose bytes these are; its message is refused, or no larger than it may be."""
    try:
        letter = Letter.decode(data)
    except RunError:
        return None
    assert letter.encode() == data
    form = letter.head.get("form")
    if isinstance(form, str):
        try:
            message = unpack(form, letter.body, CODECS, D, 3)
        except ProxfedError:
            return letter
        dense = sum(x.nbytes for x in leaves(message) if not isinstance(x, Packed))
        assert dense <= len(letter.body) + MOST_LEAVES * 3 * D * 8
    return letter


def _examples() -> list[bytes]:
    key = keys(0, "test", range(3), 1)
    packed = [C(tensor(1, (3, D), 1), key) for C in CODECS]
    messages = [*packed, tensor(3, (3, D), 0), (packed[0], (tensor(1, (3, 1), 1), packed[2]))]
    made = []
    for k, message in enumerate(messages):
        form, body = pack(message, CODECS)
        made.append(Letter("answer", "0" * 32, k, 1, {"form": form, "counts": [1, 2, 3, 4]}, body, 5).encode())
    return made


def _mutations(seed: int, count: int) -> None:
    chance, examples = random.Random(seed), _examples()
    for _ in range(count):
        data = bytearray(chance.choice(examples)[:-32])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data))
            match chance.randrange(5):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    data[place] ^= 1 << chance.randrange(8)
                case 2:
                    del data[place : place + chance.randrange(1, 9)]
                case 3:
                    data[place:place] = chance.randbytes(chance.randrange(1, 9))
                case 4:
                    data[place : place + 4] = chance.choice([b"\xff" * 4, b"\0" * 4, b"\1\0\0\0"])
            if len(data) < 16:
                data = bytearray(chance.choice(examples)[:-32])
        if chance.random() < 0.8 and len(data) >= 24:  # with lengths that fit, to get further
            head = min(int.from_bytes(data[12:16], "little"), len(data) - 24)
            data[12:24] = struct.pack("<IQ", head, len(data) - 24 - head)
        told = bytes(data)
        _accepted_only_as_written(told + sha256(told).digest())


def test_mutations_with_a_good_checksum_are_read_or_refused() -> None:
    _mutations(0, 5000)


@pytest.mark.slow
def test_a_million_mutations() -> None:
    _mutations(1, 1_000_000)


def test_a_holder_answers_whatever_comes_and_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    a, asked = algorithm("depositum"), list[bytes]()
    stacked, over_sites, carrier = both(a, toy_problem(a, small=True), tmp_path, clients=(3, 2))
    one = carrier.one
    carrier.one = lambda site, question: (asked.append(question), one(site, question))[1]  # type: ignore[method-assign, func-returns-value]
    for t in (1, 2):
        stacked.round(t)
        over_sites.round(t)
    chance, holder = random.Random(0), Anew.holder(carrier, "a")
    before = {t: slot.tensors for t, slot in Store(tmp_path / "a" / over_sites.job.digest).slots().items()}
    for _ in range(300):
        data = bytearray(chance.choice(asked)[:-32])
        data[chance.randrange(12, len(data))] ^= 1 << chance.randrange(8)
        told = bytes(data)
        letter = Letter.decode(holder.answer(told + sha256(told).digest()))
        assert letter.kind in ("answer", "damaged", "refused", "failed", "late", "gone", "unknown")
    assert Letter.decode(holder.answer(b"")).kind == "damaged"
    now = {t: slot.tensors for t, slot in Store(tmp_path / "a" / over_sites.job.digest).slots().items()}
    assert now.keys() == before.keys()
    for t, tensors in before.items():
        assert all(torch.equal(now[t][name], x) for name, x in tensors.items())
