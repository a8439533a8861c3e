"""A tuning that was interrupted, or shared out over processes, comes to the same end, and computes nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxfed import RunError, Study, Tuned, tune
from proxfed.engine.run import Run
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.tuning.space import log

from support.cli import proxfed as command
from support.resumed import rows
from support.small_experiment import Crash
from support.tuning import BUDGET, STEPS, convex, digits, told, trials

pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture(scope="module")
def study() -> Study:
    return convex()


@pytest.fixture(scope="module")
def whole(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune(study, {"*.eta": STEPS}, BUDGET, out=tmp_path_factory.mktemp("whole") / "tuning", progress=False)


def test_jobs_change_nothing(study: Study, tmp_path: Path) -> None:
    one, two = (
        tune(study, {"*.eta": STEPS}, 75, out=tmp_path / f"{jobs}", jobs=jobs, progress=False) for jobs in (1, 2)
    )
    assert told(one) == told(two)
    key = lambda row: (row["algorithm"], row["seed"], row["round"])
    assert sorted(rows(trials(one)), key=key) == sorted(rows(trials(two)), key=key)


@pytest.mark.parametrize("after", [30, 180])
def test_a_crash_after_any_round_is_forgotten(
    after: int, study: Study, whole: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no round is computed twice but the one that it happened in."""
    computed = 0
    real = Run.round

    def counted(run: Run, t: int) -> None:
        nonlocal computed
        computed += 1
        if computed == after:
            raise Crash
        real(run, t)

    monkeypatch.setattr(Run, "round", counted)
    how: dict[str, Any] = {"out": tmp_path / "tuning", "progress": False, "checkpoint_seconds": 0.0}
    with pytest.raises(Crash):
        tune(study, {"*.eta": STEPS}, BUDGET, **how)
    assert told(tune(study, {"*.eta": STEPS}, BUDGET, **how)) == told(whole)
    assert computed == 1 + sum(trial.spent for trial in whole.trials)
    before = computed
    assert told(tune(study, {"*.eta": STEPS}, BUDGET, **how)) == told(whole), "once more, from what is there"
    assert computed == before


def test_kill_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: the tuned file is the same to the byte."""
    file = digits(tmp_path / "digits.toml", rounds=30, seeds=[0], every=5)
    options = ["tune", str(file), "--over", "FedAvg.eta=log(1e-2,1)", "--over", "SCAFFOLD.eta=log(1e-2,1)"]
    options += ["--budget", "50", "--jobs", "1"]
    where = tmp_path / "killed"
    run = subprocess.Popen(
        [sys.executable, "-m", "proxfed", *options, "--checkpoint", "0", "--out", str(where)], stderr=subprocess.DEVNULL
    )
    folder = RunFolder(where / "trials" / "1")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder.exists() and len(folder.status()) > 3):
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert not (where / "tuned.toml").exists()
    assert command(capsys, *options, "--out", str(where), "--resume")[0] == 0
    assert command(capsys, *options, "--out", str(tmp_path / "whole"))[0] == 0
    assert (where / "tuned.toml").read_bytes() == (tmp_path / "whole" / "tuned.toml").read_bytes()
    assert rows(where / "trials" / "1") == rows(tmp_path / "whole" / "trials" / "1")


def test_ctrl_c_says_how_to_go_on(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Run.round

    def interrupt(run: Run, t: int) -> None:
        real(run, t)
        if t == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "round", interrupt)
    with pytest.raises(RunError, match="was stopped; the same call with the same settings resumes it"):
        tune(study, {"*.eta": STEPS}, BUDGET, out=tmp_path / "t", progress=False)


# ---- optuna ----------------------------------------------------------------------------------------------------------


def test_optuna_is_deterministic_resumable_and_costs_as_much(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    over = {
        "FedAvg.eta": log(1e-3, 10),
        "FedAvg.K": "1..6",
        "SCAFFOLD.eta": log(1e-3, 1),
        "SCAFFOLD.eta_g": "linear(0.5,1)",
    }
    how: dict[str, Any] = {"search": "optuna", "seed": 3, "rounds": 15, "progress": False}
    one = tune(study, over, 75, out=tmp_path / "one", **how)
    assert sum(t.spent for t in one.of("FedAvg")) == sum(t.spent for t in one.of("SCAFFOLD")) <= 75
    assert len(one.of("FedAvg")) == len(one.of("SCAFFOLD")) == 9
    assert len([*(tmp_path / "one" / "trials").iterdir()]) == 3
    computed, real = 0, Run.round

    def counted(run: Run, t: int) -> None:
        nonlocal computed
        computed += 1
        if computed == 80:
            raise Crash
        real(run, t)

    monkeypatch.setattr(Run, "round", counted)
    with pytest.raises(Crash):
        tune(study, over, 75, out=tmp_path / "two", checkpoint_seconds=0, **how)
    assert told(tune(study, over, 75, out=tmp_path / "two", checkpoint_seconds=0, **how)) == told(one)
    assert computed == 1 + sum(t.spent for t in one.trials)
    other = tune(study, over, 75, **{**how, "seed": 4})
    assert [t.values for t in other.trials] != [t.values for t in one.trials]
    assert tomllib.loads((tmp_path / "one" / "tuning.toml").read_text())["search"] == "optuna"
