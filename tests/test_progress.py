"""Progress looks the same whatever takes long: runs, fits, downloads."""

from __future__ import annotations

import sys

import pytest

from proxfed.machine import compiled
from proxfed.report import progress
from proxfed.report.progress import Progress, Step, showing, watching


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with watching() as watch, showing() as show:
        for t, now[0] in ((0, 1.0), (28, 29.0), (60, 61.0)):
            watch(Progress(0, 2, "FedAvg", 0, t, 100, {"objective": 0.25, "nonzeros": 3.0}))
        show(Step("a.gz", 0, 4_000_000, "bytes"))
        now[0] += 60
        show(Step("a.gz", 3_000_000, 4_000_000, "bytes"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1/2 FedAvg, seed 0: 60 of 100 rounds  1 rounds/s  objective 0.25"
    assert lines[-1].startswith("a.gz: ")
    assert "MB" in lines[-1]


def test_a_terminal_has_a_bar_for_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with showing() as show:
        show(Step("clinics \x1b[31m", 3, None, "rounds"))
        show(Step("folds", 2, 5, said="loss 0.5"))
    said = capsys.readouterr().err
    assert "3 rounds" in said
    assert "2 of 5" in said
    assert "loss 0.5" in said
    assert "clinics ?" in said


def test_nothing_is_shown_where_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(False) as show:
        show(Step("a", 1, 2))
    assert capsys.readouterr().err == ""


def test_a_terminal_is_told_once_that_loops_are_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = pytest.importorskip("numba")
    compiled()(lambda x: x)  # from now on this process listens
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with showing():
        for loop in (lambda x: x + 1, lambda x: x + 2):
            assert numba.njit(loop)(1) > 1
    said = capsys.readouterr().err
    assert " ".join(said.split()).count(progress.COMPILING) == 1
    with showing():
        pass
    assert "compiling" not in capsys.readouterr().err
