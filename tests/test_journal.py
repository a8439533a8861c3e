"""Journals of clients' states: the last row of a client counts, up to where the reader says, and damage is seen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.files import Log
from proxfed.harness.folder import journal
from proxfed.harness.folder.journal import MET, Journal

NAME = "fedavg, seed 0, of run 1234"
PIECES = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=6).map(sorted), max_size=8)


def piece(ids: list[int], k: int) -> dict[str, torch.Tensor]:
    """Rows that say whose they are, and in which piece they were written."""
    who = torch.tensor(ids, dtype=torch.int64)
    x = who[:, None] + 100 * k + torch.zeros(len(ids), 3, dtype=torch.float64)
    more = {"clients.h": x[:, :1].to(torch.bfloat16), "clients.nothing": x[:, :0].float()}
    return {MET: who, "clients.x": x, "clients.k": (who + k).to(torch.uint8)} | more


def expected(pieces: list[list[int]]) -> dict[int, int]:
    """Which piece was the last of each client."""
    return {i: k for k, ids in enumerate(pieces) for i in ids}


def check(rows: dict[str, torch.Tensor], pieces: list[list[int]]) -> None:
    last = expected(pieces)
    assert rows[MET].tolist() == sorted(last)
    if last:
        whole = piece(sorted(last), 0)
        k = torch.tensor([last[i] for i in sorted(last)])
        assert torch.equal(rows["clients.x"], whole["clients.x"] + 100 * k[:, None])
        assert torch.equal(rows["clients.k"], (whole["clients.k"] + k).to(torch.uint8))
        assert torch.equal(rows["clients.nothing"], whole["clients.nothing"])
        assert torch.equal(rows["clients.h"], rows["clients.x"][:, :1].to(torch.bfloat16))


@given(pieces=PIECES)
def test_the_last_row_of_each_client_is_read_at_every_point_and_survives_a_copy(tmp_path_factory, pieces):
    place = tmp_path_factory.mktemp("journal")
    written, ends = Journal(place / "0.journal", NAME), []
    for k, ids in enumerate(pieces):
        written.append([piece(ids, k)])
        ends.append(written.end)
    for k in range(len(pieces), 0, -1):  # each cuts off what came after
        back = Journal(place / "0.journal", NAME, ends[k - 1])
        check(back.read(), pieces[:k])
        copied = back.copied_to(place / f"{k}.journal")
        check(Journal(copied.path, NAME, copied.end).read(), pieces[:k])
        assert copied.end.size <= back.end.size


@given(pieces=PIECES.filter(lambda pieces: any(pieces)), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(tmp_path_factory, pieces, where, bit):
    place = tmp_path_factory.mktemp("journal") / "0.journal"
    written = Journal(place, NAME)
    written.append(piece(ids, k) for k, ids in enumerate(pieces))
    damaged = bytearray(place.read_bytes())
    damaged[int(where * len(damaged))] ^= 1 << bit
    place.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"record|is not what it was"):
        Journal(place, NAME, written.end).read()


def records(data: bytes, name: str) -> list[bytes]:
    frames = list(Log(Path(), name).frames(data))
    ends = [0, *(frame.end.size for frame in frames)]
    return [data[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("what", ["swap", "drop", "repeat", "foreign record", "foreign journal", "older journal"])
@given(pieces=st.lists(st.just([1, 2, 3]), min_size=3, max_size=6), k=st.integers(0, 9))
def test_records_that_are_moved_left_out_repeated_or_of_another_run_are_seen(tmp_path_factory, what, pieces, k):
    """All records have the same size and are whole, and so has the file."""
    place = tmp_path_factory.mktemp("journal")
    mine, other = Journal(place / "0.journal", NAME), Journal(place / "1.journal", "fedavg, seed 0, of run 5678")
    for n, ids in enumerate(pieces):
        mine.append([piece(ids, n)])
        other.append([piece(ids, n if what == "foreign journal" else n + 1)])
    here, there = records(mine.path.read_bytes(), NAME), records(other.path.read_bytes(), other.name)
    assert len({*map(len, here)}) == 1
    k %= len(here) - 1
    if what == "swap":
        here[k], here[k + 1] = here[k + 1], here[k]
    elif what == "drop":
        here = [*here[:k], *here[k + 1 :], here[k]]
    elif what == "repeat":
        here[k + 1] = here[k]
    elif what == "foreign record":
        here[k] = there[k]
    elif what == "foreign journal":
        here = there
    else:
        here = [*here[:-1], here[0]]
    mine.path.write_bytes(b"".join(here))
    with pytest.raises(ValueError, match="does not belong there"):
        Journal(mine.path, NAME, mine.end).read()


def test_a_journal_that_is_whole_but_not_the_one_that_the_checkpoint_knows_is_seen(tmp_path):
    """Of the same task, from before it was begun anew: every record fits the one before it."""
    one, other = Journal(tmp_path / "0.journal", NAME), Journal(tmp_path / "1.journal", NAME)
    one.append([piece([1, 2], 0)])
    other.append([piece([1, 2], 1)])
    other.path.replace(one.path)
    with pytest.raises(ValueError, match="is not what it was when the checkpoint was written"):
        Journal(one.path, NAME, one.end).read()


def test_a_file_that_is_too_short_is_refused_and_one_that_is_too_long_is_cut(tmp_path):
    place = tmp_path / "0.journal"
    written = Journal(place, NAME)
    written.append([piece([1, 2], 0)])
    written.append([piece([2, 3], 1)])
    whole = place.read_bytes()
    place.write_bytes(whole + b"half a record")
    again = Journal(place, NAME, written.end)
    check(again.read(), [[1, 2], [2, 3]])
    again.append([])
    assert place.read_bytes() == whole
    place.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="shorter"):
        Journal(place, NAME, written.end).read()


def test_it_is_wasteful_when_more_than_half_is_out_of_date(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SLACK", 0)
    ids = list(range(200))
    written = Journal(tmp_path / "0.journal", NAME)
    written.append([piece(ids, 0)])
    assert not written.wasteful
    for k in (1, 2):
        written.append([piece(ids, k)])
    assert written.wasteful
    copied = written.copied_to(tmp_path / "1.journal")
    assert not copied.wasteful
    assert copied.end.size < written.end.size / 2
    check(copied.read(), [ids] * 3)
    opened = Journal(written.path, NAME, written.end)
    opened.read()
    assert opened.wasteful


def test_what_it_writes_follows_what_changed(tmp_path):
    written = Journal(tmp_path / "0.journal", NAME)
    written.append([piece(list(range(1000)), 0)])
    before = written.end.size
    written.append([piece([7], 1)])
    assert written.end.size - before < before / 100
    assert np.array_equal(written.read()[MET], np.arange(1000))
