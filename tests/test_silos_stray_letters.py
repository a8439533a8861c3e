"""Letters that no coordinator of ours writes: each is answered and written down, and leaves the site as it was."""

from __future__ import annotations

import json
import os
import struct
from hashlib import sha256
from pathlib import Path

import pytest

from proxfed.silos.wire.message import Letter, canonical

from support.guarded_sites import FEDAVG, Sites, after, site


def _sealed(head: bytes) -> bytes:
    told = struct.pack("<4sQIQ", b"PXS1", 1, len(head), 0) + head
    return told + sha256(told).digest()


@pytest.mark.parametrize(
    "head",
    [
        canonical({"kind": "round", "run": "a" * 70_000, "round": 0, "step": 0}),
        canonical({"kind": "a" * 70_000, "run": "", "round": 0, "step": 0}),
        b'{"a":1e400,"kind":"round","round":0,"run":"","step":0}',
        b'{"a":' + b"[" * 3000 + b"]" * 3000 + b',"kind":"round","round":0,"run":"","step":0}',
    ],
    ids=["run", "kind", "infinity", "deep"],
)
def test_no_letter_silences_a_site(head: bytes, tmp_path: Path) -> None:
    """It is answered and written down, and the site answers others, also when it is started again."""
    sites = Sites(tmp_path)
    for holder in sites.holders.values():
        assert Letter.decode(holder.answer(_sealed(head))).kind in ("damaged", "failed")
    trail = site(tmp_path, "lyon").audit.read()
    assert trail.broken == ""
    assert len(trail.lines) == 1
    assert len(json.dumps(trail.lines)) < 2000
    after(sites.coordinator(FEDAVG), 1)
    sites.start()
    after(sites.coordinator(FEDAVG), 1)


def test_a_life_that_is_none_does_not_lock_the_coordinator_out(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    c = sites.coordinator(FEDAVG)
    c.round(1)
    question = next(question for name, question, _ in reversed(sites.seen) if name == "lyon")
    letter = Letter.decode(question)
    for life in (2**63, 2**64 - 1):
        stray = Letter("round", letter.run, 2, 0, letter.head | {"after": 1}, letter.body, life)
        refused = Letter.decode(sites.holders["lyon"].answer(stray.encode()))
        assert refused.kind == "refused"
        assert (
            refused.head["why"] == f"life = {life} is no life of a coordinator: the last one that was heard here is 1"
        )
    c.round(2)


def test_what_a_site_keeps_is_for_its_user_only(tmp_path: Path) -> None:
    """States of clients are gradients of few rows."""
    before = os.umask(0o022)
    try:
        after(Sites(tmp_path).coordinator(FEDAVG), 1)
    finally:
        os.umask(before)
    assert (tmp_path / "lyon" / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "lyon" / "audit.jsonl").stat().st_mode & 0o777 == 0o600
