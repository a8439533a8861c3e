"""`proxfed watch`: what a run under way, or a deployment, is doing; and the log, -q and -v."""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from proxfed import FedAvg, Moment, Stop, compare
from proxfed.cli import watch as command
from proxfed.cli.main import _flags_first
from proxfed.harness.under_way import WAITING, look
from proxfed.report.columns import RunStatus
from proxfed.report.terminal import quiet
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.wire.carrier import Direct

from support.cli import proxfed
from support.csv_sites import experiment, files, holders
from support.toy_problems import problem

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    """The logger is the process's."""
    log = logging.getLogger("proxfed")
    before = log.level, log.handlers
    yield
    log.level, log.handlers = before


class Gate:
    """Lets a run begin, and go on when it is told."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, moment: Moment) -> Stop | None:
        if moment.round == 3:
            self.reached.set()
            assert self.open.wait(60)
        return None


def run_to_the_gate(out: Path) -> tuple[Gate, threading.Thread]:
    gate = Gate()
    algorithms = {"a [b]": FedAvg(0.3, 2), "wild": FedAvg(1e12, 2)}
    work = threading.Thread(target=lambda: compare(problem(), algorithms, 6, out=out, hooks=[gate], **QUIET))
    work.start()
    assert gate.reached.wait(60)
    return gate, work


def test_a_view_of_a_run_under_way(tmp_path: Path) -> None:
    gate, work = run_to_the_gate(tmp_path / "run")
    try:
        first, second = look(tmp_path / "run").tasks
        assert (first.name, first.status, first.round, first.rounds) == ("a [b], seed 0", RunStatus.RUNNING, 3, 6)
        assert first.row is not None
        assert first.row["round"] == 3
        assert (second.status, second.round, second.row) == (None, 0, None)
        assert look(tmp_path / "run").under_way
    finally:
        gate.open.set()
        work.join()
    view = look(tmp_path / "run")
    assert view.done
    assert [task.status for task in view.tasks] == [RunStatus.FINISHED, RunStatus.DIVERGED]


def test_watch_prints_lines_and_ends_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate, work = run_to_the_gate(tmp_path / "run")
    page = tmp_path / "page.html"
    timer = threading.Timer(1.0, gate.open.set)
    timer.start()
    code, out, _ = proxfed(capsys, "watch", str(tmp_path / "run"), "--every", "0.1", "--page", str(page))
    work.join()
    timer.join()
    assert code == 0
    assert re.search(r"^a \[b\], seed 0: running, round 3 of 6  objective", out, re.MULTILINE)
    assert re.search(r"^a \[b\], seed 0: finished, round 6 of 6", out, re.MULTILINE)
    assert re.search(r"^wild, seed 0: diverged, round \d of 6  diverged: the model has norm", out, re.MULTILINE)
    text = page.read_text()
    assert 'http-equiv="refresh"' not in text  # the last one stays as it is
    assert "1 finished, 1 diverged" in text


def test_the_page_of_a_run_under_way_refreshes_itself(tmp_path: Path) -> None:
    gate, work = run_to_the_gate(tmp_path / "run")
    try:
        command._write(look(tmp_path / "run"), tmp_path / "page.html", 2.0)
    finally:
        gate.open.set()
        work.join()
    text = (tmp_path / "page.html").read_text()
    assert '<meta http-equiv="refresh" content="2">' in text
    assert "1 running, 1 waiting" in text


def test_watch_ends_where_no_process_works_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(moment: Moment) -> None:
        if moment.round == 2:
            raise KeyboardInterrupt

    compare(problem(), {"a": FedAvg(0.3, 2)}, 6, out=tmp_path / "run", hooks=[interrupt], **QUIET)
    monkeypatch.setattr(command, "IDLE", 0.2)
    code, out, _ = proxfed(capsys, "watch", str(tmp_path / "run"), "--every", "0.1")
    assert code == 1
    assert "a, seed 0: stopped, round 2 of 6" in out
    assert "no process works on it" in out


def test_watch_of_cases_and_of_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare({"x": problem(), "y": problem()}, {"a": FedAvg(0.3, 2)}, 2, out=tmp_path / "run", **QUIET)
    code, out, _ = proxfed(capsys, "watch", str(tmp_path / "run"))
    assert code == 0
    assert "x: a, seed 0: finished" in out
    assert "y: a, seed 0: finished" in out
    (tmp_path / "none").mkdir()
    code, _, err = proxfed(capsys, "watch", str(tmp_path / "none"))
    assert code == 2
    assert "is not a run folder" in err


class Slow(Direct):
    """One of its sites takes its time in round 2; like a desk it knows which ones have not answered."""

    waiting: tuple[str, ...] = ()

    def ask(self, questions: Any, deadline: float | None = None) -> dict[str, bytes]:
        if b'"round": 2' in next(iter(questions.values())) or b'"round":2' in next(iter(questions.values())):
            self.waiting = ("south",)
            time.sleep(1.5)
        answers = super().ask(questions, deadline)
        self.waiting = ()
        return answers


def test_the_coordinator_records_the_sites_that_it_waits_for(tmp_path: Path) -> None:
    files(tmp_path / "data")
    carrier, seen = Slow(holders(tmp_path / "data", tmp_path / "disk").holders), []
    over, out = threading.Event(), tmp_path / "out"

    def peek() -> None:
        while not over.wait(0.05):
            if (out / WAITING).exists() and (waits := look(out).waiting):
                seen.append(waits)

    looking = threading.Thread(target=peek)
    looking.start()
    deploy(experiment(rounds=2, algorithms=[{"name": "fedavg", "eta": 0.1, "K": 1}]), carrier, out, progress=False)
    over.set()
    looking.join()
    assert seen
    assert {site for waits in seen for site in waits} == {"south"}
    assert not (out / WAITING).exists()


# ---- the log --------------------------------------------------------------------------------------------------------


def test_the_library_logs_and_configures_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    before = [*logging.getLogger("proxfed").handlers]
    with caplog.at_level(logging.DEBUG, logger="proxfed"):
        compare(problem(), {"a": FedAvg(0.3, 2)}, 2, out=tmp_path / "run", **QUIET)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("proxfed")]
    assert said[0] == "a, seed 0: begins"
    assert said[-1].startswith("a, seed 0: finished in round 2")
    assert logging.getLogger("proxfed").handlers == before


def test_quiet_and_verbose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "demo", "-c", "rounds=2", "--only", "FedAvg", "--jobs", "1"]
    code, out, err = proxfed(capsys, *asked, "--out", str(tmp_path / "a"), "-q")
    assert (code, err) == (0, "")
    assert "FedAvg" in out
    assert quiet()
    code, _, err = proxfed(capsys, "-v", *asked, "--out", str(tmp_path / "b"))
    assert code == 0
    assert re.search(r"proxfed.harness.execute: FedAvg, seed 0: begins", err)
    code, _, err = proxfed(capsys, *asked, "-q", "-v")
    assert code == 2
    assert "-q and -v exclude each other" in err
    code, _, err = proxfed(capsys, "run", "demoo", "-q")  # errors are always said
    assert code == 2
    assert "there is no experiment 'demoo'" in err


def test_flags_stand_anywhere_but_behind_two_dashes() -> None:
    assert _flags_first(["run", "x", "-q", "--", "-v"]) == ["-q", "run", "x", "--", "-v"]
    assert _flags_first(["-vv", "run"]) == ["-vv", "run"]
