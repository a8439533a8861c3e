"""Append-only logs: what is appended is read back up to any point, a torn end does not count, and damage is seen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import RunError
from proxfed.files import Blocks, Lines, Log

FRAMINGS = [Blocks(), Lines(b",", digits=16), Lines(b', "chain": "', b'"}')]
framings = pytest.mark.parametrize("framing", FRAMINGS, ids=["blocks", "csv", "json"])
payloads = st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")), max_size=8)


def written(path: Path, framing: Lines | Blocks, payloads: list[bytes], name: str = "mine") -> Log:
    log = Log(path, name, framing)
    log.append([[data[:3], data[3:]] for data in payloads])
    return log


def contents(log: Log, data: bytes) -> list[bytes]:
    return [data[frame.start : frame.stop] for frame in log.whole(data)]


@framings
@given(payloads=payloads, cut=st.floats(0, 1))
def test_all_up_to_a_torn_end_is_read_back(tmp_path_factory, framing, payloads, cut):
    path = tmp_path_factory.mktemp("log") / "log"
    log = written(path, framing, payloads)
    data = path.read_bytes() if payloads else b""
    assert contents(log, data) == payloads
    assert log.end.size == len(data)
    ends = [log.begin, *(frame.end for frame in log.frames(data))]
    for k, end in enumerate(ends):
        assert len(log.whole(data, end)) == k
    torn = data[: int(cut * len(data))]
    whole = [end for end in ends if end.size <= len(torn)]
    assert contents(log, torn) == payloads[: len(whole) - 1]
    log.end = whole[-1]
    path.write_bytes(torn)
    log.append([[b"next"]])
    assert contents(log, path.read_bytes()) == [*payloads[: len(whole) - 1], b"next"]


@framings
@given(payloads=payloads.filter(len), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(tmp_path_factory, framing, payloads, where, bit):
    path = tmp_path_factory.mktemp("log") / "log"
    log = written(path, framing, payloads)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    with pytest.raises(ValueError, match="log"):
        log.whole(bytes(data), log.end)


@framings
def test_records_of_another_log_do_not_fit(tmp_path, framing):
    mine, other = (
        written(tmp_path / "a", framing, [b"1", b"2"]),
        written(tmp_path / "b", framing, [b"1", b"2"], "other"),
    )
    assert mine.end.size == other.end.size
    with pytest.raises(ValueError, match=r"(line|record) 1,? is damaged, or does not belong there"):
        mine.whole(other.path.read_bytes())


@framings
def test_a_log_that_has_become_shorter_is_not_appended_to(tmp_path, framing):
    log = written(tmp_path / "log", framing, [b"1", b"2"])
    log.path.write_bytes(log.path.read_bytes()[:-1])
    with pytest.raises(RunError, match="cut short"):
        log.append([[b"3"]])


@given(payloads=payloads, length=st.integers(0, 300), torn=st.integers(0, 300))
def test_the_last_line_is_found_whatever_its_length(tmp_path_factory, payloads, length, torn):
    path = tmp_path_factory.mktemp("log") / "log"
    log = written(path, FRAMINGS[1], [*payloads, bytes(length)])
    data = path.read_bytes() + b"x" * torn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxfed.files.log.STEP", 7)
        assert FRAMINGS[1].last(io.BytesIO(data)) == (bytes(length), log.end)
        assert FRAMINGS[1].last(io.BytesIO(b"x" * torn)) is None
