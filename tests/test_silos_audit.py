"""The audit file: what leaves is on the disk first, and what is done to the file afterwards is noticed."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import RunError
from proxfed.silos.protection.audit import Audit


def written(path: Path, n: int = 5) -> Audit:
    audit = Audit(path)
    for t in range(n):
        audit.write("coordinator", "round", f"message {t}".encode(), run="abc", t=t)
    return audit


def test_a_line_says_what_left(tmp_path: Path) -> None:
    lines, broken, last = written(tmp_path / "audit.jsonl", 3).read()
    assert broken == ""
    assert [line["line"] for line in lines] == [1, 2, 3]
    assert lines[2]["sha256"] == sha256(b"message 2").hexdigest()
    assert lines[2]["bytes"] == len(b"message 2")
    assert (lines[2]["to"], lines[2]["what"], lines[2]["t"]) == ("coordinator", "round", 2)
    assert json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])["chain"] == last


def test_the_file_is_private_and_only_grows(tmp_path: Path) -> None:
    audit = written(tmp_path / "audit.jsonl", 2)
    before = audit.path.read_bytes()
    audit.write("coordinator", "count", b"12")
    assert audit.path.read_bytes().startswith(before)
    assert audit.path.stat().st_mode & 0o077 == 0


def test_it_is_on_the_disk_before_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), real(fd)))
    written(tmp_path / "audit.jsonl", 1)
    assert (tmp_path / "audit.jsonl").stat().st_ino in synced


@given(line=st.integers(0, 4), what=st.sampled_from(["change", "remove", "swap", "insert", "rewrite"]))
def test_any_change_is_noticed(tmp_path_factory: pytest.TempPathFactory, line: int, what: str) -> None:
    audit = written(tmp_path_factory.mktemp("audit") / "audit.jsonl")
    lines = audit.path.read_text().splitlines()
    if what == "change":
        lines[line] = lines[line].replace('"bytes": 9', '"bytes": 8')
    elif what == "remove":
        del lines[line]
    elif what == "swap":
        other = (line + 1) % 5
        lines[line], lines[other] = lines[other], lines[line]
    elif what == "insert":
        lines.insert(line, lines[line])
    else:
        lines[line] = "nonsense"
    audit.path.write_text("\n".join(lines) + "\n")
    assert audit.read().broken != ""


def test_what_was_not_finished_did_not_leave_and_is_cut_off(tmp_path: Path) -> None:
    audit = written(tmp_path / "audit.jsonl", 2)
    with audit.path.open("ab") as f:
        f.write(b'{"line": 3, "at": "2026-')
    assert audit.read().broken == ""
    audit.write("coordinator", "round", b"next")
    lines, broken, _ = audit.read()
    assert broken == ""
    assert [line["line"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("names", [1, 1 << 12, 1 << 14, 1 << 16])
def test_a_line_of_any_length_is_read_back(tmp_path: Path, names: int) -> None:
    """A cohort of some thousand sites gives a line of more than 64 kB."""
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(2):
        audit.write("coordinator", "round", b"x", cohort=[f"site {k}" for k in range(names)])
        audit.write("coordinator", "round", b"y")
    with audit.path.open("ab") as f:
        f.write(b"x" * 100_000)  # torn
    assert audit.write("coordinator", "round", b"z")["line"] == 5
    assert audit.read().broken == ""


def test_words_of_others_are_cut(tmp_path: Path) -> None:
    line = Audit(tmp_path / "audit.jsonl").write("coordinator", "a" * 70_000, b"x", run="b" * 70_000)
    assert len(json.dumps(line)) < 1000
    assert Audit(tmp_path / "audit.jsonl").read().broken == ""


def test_a_crash_between_the_two_files_is_no_alarm(tmp_path: Path) -> None:
    audit = written(tmp_path / "audit.jsonl", 3)
    audit.last_number.write_text("2\n")
    assert audit.read().broken == ""
    audit.write("coordinator", "round", b"next")
    assert audit.read().broken == ""
    assert audit.last_number.read_text() == "4\n"


def test_several_writers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: Audit(tmp_path / "audit.jsonl").write("c", "round", bytes([k])), range(20)))
    lines, broken, _ = Audit(tmp_path / "audit.jsonl").read()
    assert broken == ""
    assert len(lines) == 20


def test_nothing_leaves_where_the_file_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing leaves"):
        Audit(tmp_path / "no" / "audit.jsonl").write("coordinator", "round", b"x")
    (tmp_path / "audit.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match="nothing leaves: the last line"):
        Audit(tmp_path / "audit.jsonl").write("coordinator", "round", b"x")
