"""A run that was interrupted anywhere and resumed is bit for bit the run that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError, RunError
from proxfed.files import locked, slots, writing
from proxfed.harness.folder.checkpoint import TaskFolder
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.report.columns import DONE

from support.resumed import rows, same, status, under_way
from support.small_experiment import Crash, execute, small, write

pytestmark = pytest.mark.usefixtures("forked")

WILD = [
    {"name": "fedavg", "label": "wild star", "eta": 1e6, "K": 3},
    {"name": "depositum", "label": "wild graph", "alpha": 1e6, "T0": 3},
    {"name": "depositum", "alpha": 0.3, "T0": 3},
]
"""The first two diverge in a few rounds."""


@pytest.fixture(scope="module")
def table() -> dict:
    return small(rounds=4, seeds=[3], every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, table: dict) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert execute(path, table)
    return path


def test_the_whole_run_has_every_row(whole: Path, table: dict) -> None:
    labels = {row["algorithm"] for row in rows(whole)}
    assert len(labels) == len(table["algorithms"])
    assert len(rows(whole)) == 3 * len(labels)  # rounds 0, 2, 4
    assert all(s["status"] == "finished" for s in RunFolder(whole).status())


@pytest.mark.parametrize("after", [1, 2, 4, 5, 6, 11, 17, 23, 28, 33, 39, 40])
def test_a_crash_after_any_round_is_forgotten(after: int, whole: Path, table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=after)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


def test_repeated_crashes_change_nothing(whole: Path, table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=3)
    for _ in range(2):
        with pytest.raises(Crash):
            execute(tmp_path / "run", table, crash_after=7, resume=True)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


def test_a_run_that_was_asked_to_stop_goes_on(whole: Path, table: dict, tmp_path: Path) -> None:
    assert not execute(tmp_path / "run", table, stop_after=12)
    assert "stopped" in {s["status"] for s in RunFolder(tmp_path / "run").status()}
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


@pytest.mark.parametrize("how", ["stop_after", "crash_after"])
def test_what_diverges_does_so_wherever_it_is_interrupted(how: str, tmp_path: Path) -> None:
    """Also in the very round that shows it, and if that is the last one."""
    long = small(rounds=20, seeds=[3], algorithms=WILD, reference=False)
    assert execute(tmp_path / "long", long)
    ends = {s["algorithm"]: s["round"] for s in RunFolder(tmp_path / "long").status() if s["status"] == "diverged"}
    assert list(ends) == ["wild star", "wild graph"]
    assert max(ends.values()) < 20
    short = long | {"algorithms": [a | {"rounds": ends.get(a["label"], 4)} for a in WILD[:2]]}
    for table in (long, short):
        assert execute(tmp_path / "whole", table)
        for after in range(1, sum(ends.values()) + 4):
            try:
                done = execute(tmp_path / "run", table, **{how: after})
            except Crash:
                done = False
            assert done or execute(tmp_path / "run", table, resume=True)
            same(tmp_path / "run", tmp_path / "whole")
            assert status(tmp_path / "run") == status(tmp_path / "whole")


def test_ranks_diverge_together(tmp_path: Path) -> None:
    table = small(rounds=20, seeds=[3], algorithms=WILD)
    file = write(tmp_path / "wild.toml", table)
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run"), "--ranks", "2"]
    subprocess.run([*command, "--checkpoint", "0"], capture_output=True, timeout=300, check=False)
    execute(tmp_path / "whole", table)
    ends = [
        [(s["algorithm"], s["status"], s["round"]) for s in RunFolder(path).status()]
        for path in (tmp_path / "run", tmp_path / "whole")
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("write", ["write_model", "_append_rows", "_write", "clear"])
@pytest.mark.parametrize("pair", range(len(WILD)))
def test_a_write_that_fails_at_an_end_is_made_up_for(
    pair: int, write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the status is true: what has come to its end has its rows and its model."""
    table = small(rounds=4, seeds=[3], algorithms=WILD, reference=False)
    assert execute(tmp_path / "whole", table)
    owner = TaskFolder if write == "clear" else RunFolder
    real, finish, finished = getattr(owner, write), RunFolder.finish, []

    def failing(self: Any, *args: Any, **more: Any) -> Any:
        if len(finished) > pair:
            if write == "_append_rows":  # half of it gets there
                real(self, args[0][: len(args[0]) // 2])
            raise Crash
        return real(self, *args, **more)

    def finishing(self: RunFolder, *args: Any) -> None:
        finished.append(args)
        finish(self, *args)

    def check() -> None:
        folder = RunFolder(tmp_path / "run")
        for s in folder.status():
            if s["status"] in DONE:
                assert f"{s['algorithm']}/{s['seed']}" in folder.models()[0]
                assert s["round"] == [r["round"] for r in folder.rows() if r["algorithm"] == s["algorithm"]][-1]

    with monkeypatch.context() as patch:
        patch.setattr(owner, write, failing)
        patch.setattr(RunFolder, "finish", finishing)
        with pytest.raises(Crash):
            execute(tmp_path / "run", table)
    check()
    if pair < len(WILD) - 1 or write != "clear":
        with pytest.raises(Crash):
            execute(tmp_path / "run", table, resume=True, crash_after=1)
        check()
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", tmp_path / "whole")
    assert status(tmp_path / "run") == status(tmp_path / "whole")


def test_a_half_written_row_is_cut_off(whole: Path, table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=13)
    for file in (tmp_path / "run" / "rows.csv", under_way(tmp_path / "run").path / "rows.csv"):
        with file.open("a") as f:
            f.write("small,fedav")
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


@pytest.mark.parametrize("damage", [b"", b"half a file"])
def test_a_damaged_slot_leaves_the_other(damage: bytes, whole: Path, table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=13)
    slots = sorted(under_way(tmp_path / "run").path.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
    assert len(slots) == 2
    slots[-1].write_bytes(damage)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


def test_tensors_of_the_newest_slot_alone_are_read(
    table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the other one if they cannot be, and none to know which tasks are done."""
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=14)
    real, read, broken = slots.read_tensors, [], []

    def read_tensors(path: Path, keys: list[str], only: Any = None) -> Any:
        if only is None:
            read.append(path)
            if path in broken:
                raise OSError(5, "Input/output error")
        return real(path, keys, only)

    monkeypatch.setattr(slots, "read_tensors", read_tensors)
    assert sum(s["status"] in DONE for s in status(tmp_path / "run")) == 2
    assert read == []
    newest = under_way(tmp_path / "run").load()
    assert len(read) == 1
    broken += read
    older = under_way(tmp_path / "run").load()
    assert older.round == newest.round - 1
    assert older.tensors.keys() == newest.tensors.keys() != set()
    broken += read
    with pytest.raises(InputError, match="no readable checkpoint"):
        under_way(tmp_path / "run").load()


def test_no_slot_is_readable_in_the_first_task(table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=4)
    for slot in under_way(tmp_path / "run").path.glob("*.safetensors"):
        slot.write_bytes(b"half a file")
    before = rows(tmp_path / "run")
    with pytest.raises(InputError, match="no readable checkpoint"):
        execute(tmp_path / "run", table, resume=True)
    assert rows(tmp_path / "run") == before != []


def test_after_resuming_the_newest_slot_stays_until_the_other_is_written(table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=13)
    folder = under_way(tmp_path / "run")
    newest = folder.load()
    folder.save(newest.round - 1, newest.counters, newest.tensors)  # the older slot
    assert under_way(tmp_path / "run").load().round == newest.round


def test_rows_shorter_than_the_checkpoint_are_refused(table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=13)
    (under_way(tmp_path / "run").path / "rows.csv").write_bytes(b"")
    with pytest.raises(InputError, match="is shorter than when the checkpoint was written"):
        execute(tmp_path / "run", table, resume=True)


def test_wall_seconds_go_on(table: dict, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=4)
    assert execute(tmp_path / "run", table, resume=True)
    found = RunFolder(tmp_path / "run").rows()
    seconds = [row["wall_seconds"] for row in found if row["algorithm"] == found[0]["algorithm"]]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(seconds)


def test_a_task_that_another_process_has_is_left_to_it(whole: Path, table: dict, tmp_path: Path) -> None:
    """Resumed, the others are run; and nobody may replace the run meanwhile."""
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=13)
    with locked(under_way(tmp_path / "run").path, wait=False) as mine:
        assert mine
        assert not execute(tmp_path / "run", table, resume=True)
        assert [s["status"] for s in status(tmp_path / "run")].count("running") == 1
        before = rows(tmp_path / "run")
        with pytest.raises(InputError, match="another process is writing"):
            execute(tmp_path / "run", table)
        assert rows(tmp_path / "run") == before
    assert execute(tmp_path / "run", table, resume=True)
    by_task = lambda row: (row["algorithm"], row["seed"], row["round"])
    assert sorted(rows(tmp_path / "run"), key=by_task) == sorted(rows(whole), key=by_task)


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up in the middle of a run; when there is room again, the run goes on."""
    path = tmp_path / "run"
    real, written = TaskFolder.append, 0

    def append(self: TaskFolder, row: dict) -> None:
        nonlocal written
        written += 1
        if written == 8:
            with writing(self.path):
                raise OSError(28, "No space left on device")
        real(self, row)

    monkeypatch.setattr(TaskFolder, "append", append)
    with pytest.raises(RunError, match=r"cannot write to .*No space left on device.*--resume"):
        execute(path, table)
    monkeypatch.undo()
    assert execute(path, table, resume=True)
    execute(tmp_path / "other", table)
    same(path, tmp_path / "other")


def written(path: Path) -> int:
    """Rows that are there, of all tasks."""
    total = 0
    for file in path.glob("**/rows.csv"):
        with suppress(FileNotFoundError):  # a task may have come to its end meanwhile
            total += file.read_bytes().count(b"\n")
    return total


def test_a_killed_process_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    """A real process, really killed in the middle of its work, twice."""
    table = small(
        rounds=400, seeds=[0], algorithms=[a for a in small()["algorithms"] if a["name"] in ("fedcef", "depositum")]
    )
    file = write(tmp_path / "small.toml", table)
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run"), "--checkpoint", "0"]

    def killed(*more: str, rows: int) -> None:
        process = subprocess.Popen([*command, *more], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and written(tmp_path / "run") <= rows:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL

    killed(rows=150)
    killed("--resume", rows=700)
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    execute(tmp_path / "whole", table)
    same(tmp_path / "run", tmp_path / "whole")


def test_ctrl_c_stops_after_the_round(tmp_path: Path) -> None:
    """Ctrl-C ends the round, says how to resume and exits with 130."""
    file = write(tmp_path / "small.toml", small(rounds=100_000, seeds=[0]))
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"})
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and written(tmp_path / "run") <= 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"to resume: proxfed run {file} --out {tmp_path / 'run'} --resume" in said
    assert "Traceback" not in said
    finished = [row["round"] for row in RunFolder(tmp_path / "run").rows()]
    assert finished == list(np.arange(len(finished)))
    assert under_way(tmp_path / "run").load().round == finished[-1]
