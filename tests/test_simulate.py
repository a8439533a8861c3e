"""Simulated seconds of runs: the same live as after, in the report and from the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from proxfed.errors import InputError, RunError
from proxfed.harness import finished
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.report.columns import ROW
from proxfed.simulate import Timing, profiles

from support.cli import proxfed, refused
from support.clock_rows import DEVICE
from support.small_experiment import Crash, execute, small


def simulate(run: Path, timing: Timing, out: Path, force: bool = False) -> RunFolder:
    return RunFolder(finished.simulate(Results.read(run), timing, out, force).folder)


def simulate_in_place(run: Path, timing: Timing) -> None:
    finished.simulate_in_place(Results.read(run), timing)


def seconds(folder: RunFolder, timing: Timing) -> list[float]:
    return [row["sim_seconds"] for row in finished.with_seconds(Results.read(folder), timing).rows]


def column(path: Path) -> list[float]:
    return [row["sim_seconds"] for row in RunFolder(path).rows()]


WIFI = {"profile": "fednag_wifi"}
KEPT = ("fedavg", "fednag", "depositum, one peer", "dfedadmm")


def few(**changes: Any) -> dict:
    """Partial participation, a round without anybody, and two graphs that change."""
    table = small(rounds=5, seeds=[0, 3], reference=False, **{"every": 2} | changes)
    return table | {"algorithms": [a for a in table["algorithms"] if a.get("label", a["name"]) in KEPT]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    execute(path, few())
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "run"
    execute(path, few(time=WIFI))
    return path


def test_live_and_after_are_the_same_to_the_bit(plain: Path, live: Path, tmp_path: Path) -> None:
    assert set(column(plain)) == {None}
    after = simulate(plain, Timing.read(WIFI), tmp_path / "after")
    assert column(after.path) == column(live)
    assert after.config() == RunFolder(live).config()
    ended = [r["sim_seconds"] for r in RunFolder(live).rows() if r["round"] == 5]
    assert min(ended) > 0
    assert set(ended[::2]).isdisjoint(ended[1::2])  # the seeds
    same = [
        [{k: v for k, v in r.items() if k not in ("sim_seconds", "wall_seconds")} for r in RunFolder(p).rows()]
        for p in (live, after.path)
    ]
    assert same[0] == same[1]
    assert (after.path / "rows.csv").read_text().split("\n")[0].startswith(",".join(ROW))


def test_the_run_folder_has_all_that_is_needed(live: Path) -> None:
    folder = RunFolder(live)
    assert folder.config()["time"]["devices"][0]["seconds_per_step"]["name"] == "lognormal"
    assert seconds(folder, Timing.read(folder.config()["time"])) == column(live)


@pytest.mark.parametrize("after", [1, 5, 6, 21, 40])
def test_a_resumed_run_has_the_same_seconds(after: int, live: Path, tmp_path: Path) -> None:
    table = few(time=WIFI)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=after)
    execute(tmp_path / "run", table, resume=True)
    assert column(tmp_path / "run") == column(live)


def test_other_devices_are_other_settings(live: Path) -> None:
    with pytest.raises(InputError, match=r"other settings: time\."):
        execute(live, few(time={"profile": "lan"}), resume=True)


def test_bad_devices_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no client 7, only 0 to 6"):
        execute(tmp_path / "run", small(time=WIFI | {"devices": [DEVICE, DEVICE | {"clients": [7]}]}))
    assert not (tmp_path / "run").exists()


def test_in_place_it_stays_the_finished_run_that_it_was(live: Path, tmp_path: Path) -> None:
    execute(tmp_path / "run", few())
    models = {path.name: path.read_bytes() for path in (tmp_path / "run" / "models").iterdir()}
    simulate_in_place(tmp_path / "run", Timing.read(WIFI))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    execute(tmp_path / "run", few(time=WIFI), resume=True)
    assert column(tmp_path / "run") == column(live)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "models").iterdir()} == models


def test_nothing_beside_or_around_the_run_is_removed(tmp_path: Path) -> None:
    execute(tmp_path / "outer", few())
    execute(tmp_path / "outer" / "run", few())
    (tmp_path / "outer" / "run.old").mkdir()
    (tmp_path / "outer" / "run.old" / "NOTES.txt").write_text("mine")
    with pytest.raises(InputError, match=r"run\.old is in the way"):
        simulate_in_place(tmp_path / "outer" / "run", Timing.read(WIFI))
    with pytest.raises(InputError, match="holds the run itself"):
        simulate(tmp_path / "outer" / "run", Timing.read(WIFI), tmp_path / "outer", force=True)
    with pytest.raises(InputError, match="is inside the run itself"):
        simulate(tmp_path / "outer" / "run", Timing.read(WIFI), tmp_path / "outer" / "run" / "copy")
    assert Results.read(tmp_path / "outer" / "run").complete
    assert (tmp_path / "outer" / "run.old" / "NOTES.txt").read_text() == "mine"


def test_an_interrupted_simulation_leaves_nothing_in_its_place(
    plain: Path, live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it can be done again; and a run that it would replace is still there, to the byte."""
    place = tmp_path / "a" / "copy"

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "rewrite", crash)
        with pytest.raises(Crash):
            simulate(plain, Timing.read(WIFI), place)
    assert not place.exists()
    simulate(plain, Timing.read(WIFI), place)
    assert column(place) == column(live)
    before = files(place)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_write", crash)
        with pytest.raises(Crash):
            simulate(plain, Timing.read({"profile": "lan"}), place, force=True)
        with pytest.raises(Crash):
            simulate_in_place(place, Timing.read({"profile": "lan"}))
    assert files(place) == before
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["copy"]


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("renames", [0, 1])
def test_a_copy_that_cannot_take_its_place_is_one_sentence(
    renames: int, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = simulate(plain, Timing.read(WIFI), tmp_path / "copy").path
    before, done, rename = files(place), 0, os.rename

    def few(*arguments: Any) -> None:
        nonlocal done
        if done == renames:
            raise PermissionError(errno.EACCES, "Permission denied")
        done += 1
        rename(*arguments)

    monkeypatch.setattr(os, "rename", few)
    said = r"cannot write .*copy: Permission denied" + (r"; the old folder is .*copy\.old$" if renames else "$")
    with pytest.raises(RunError, match=said):
        simulate_in_place(place, Timing.read({"profile": "lan"}))
    assert files(tmp_path / "copy.old" if renames else place) == before


def test_the_file_that_cannot_be_copied_is_named(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(RunError, match=r"cannot write .*copy: .*No space left on device: '.*copy.*'"):
        simulate(plain, Timing.read(WIFI), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_unfinished_run_is_not_rewritten_in_place(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", few(every=1), crash_after=8)
    with pytest.raises(InputError, match="is not finished"):
        simulate_in_place(tmp_path / "run", Timing.read(WIFI))
    copied = column(simulate(tmp_path / "run", Timing.read(WIFI), tmp_path / "copy").path)
    assert len(copied) == 8
    assert None not in copied


# ---- the command line and the report -------------------------------------------------------------------------------


def test_the_command_adds_the_seconds(capsys: Any, plain: Path, live: Path, tmp_path: Path) -> None:
    goals = ["--target", "objective=1e9", "--target", "objective=0"]
    code, said, _ = proxfed(
        capsys, "simulate", str(plain), "--profile", "fednag_wifi", "--out", str(tmp_path / "new"), *goals
    )
    assert code == 0
    assert "Did not reach" in said
    assert column(tmp_path / "new") == column(live)
    assert '"sim_seconds"' in (tmp_path / "new" / "report.html").read_text()
    assert "there is no profile 'wify'" in refused(capsys, "simulate", str(plain), "--profile", "wify")
    assert "holds a run already" in refused(
        capsys, "simulate", str(plain), "--profile", "lan", "--out", str(tmp_path / "new")
    )
    (tmp_path / "file").write_text("mine")
    assert "is not a run folder" in refused(
        capsys, "simulate", str(plain), "--profile", "lan", "--out", str(tmp_path / "file"), "--force"
    )
    again = [str(plain), str(plain), "--profile", "lan", "--out", str(tmp_path / "two")]
    assert "two of the runs would go to" in refused(capsys, "simulate", *again)
    assert "no table [time]" in refused(capsys, "simulate", str(plain))
    assert "exclude each other" in refused(capsys, "simulate", str(plain), "--profile", "lan", "--time", "x.toml")
    assert "not of the form" in refused(capsys, "simulate", str(plain), "--profile", "lan", "--target", "objective")
    said = refused(
        capsys, "simulate", str(plain), "--profile", "lan", "--target", "objectiv=1", "--out", str(tmp_path / "x")
    )
    assert "no measure 'objectiv'; did you mean 'objective'" in said
    assert not (tmp_path / "x").exists()


def test_the_command_says_what_became_of_a_run(capsys: Any, tmp_path: Path) -> None:
    wild = {"name": "fedavg", "label": "wild", "eta": 1e9, "K": 3}
    execute(tmp_path / "run", small(rounds=4, seeds=[0], algorithms=[wild, wild | {"label": "calm", "eta": 0.1}]))
    _, said, _ = proxfed(capsys, "simulate", str(tmp_path / "run"), "--profile", "lan")
    assert said.count("Simulated seconds are for the profile 'lan': a step of 0.01 s, and the links, are assumed") == 1
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith(("wild", "calm"))}
    assert "diverged in round" in lines["wild"]
    assert lines["calm"].rstrip().endswith("s")


def test_the_command_with_a_file_of_your_own(capsys: Any, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('[time]\nprofile = "lan"\nstep_scale = 100.0\n')
    arguments = [
        "--time",
        str(tmp_path / "slow.toml"),
        "--out",
        str(tmp_path / "both"),
        "--target",
        "objective=1e9",
        "--format",
        "json",
    ]
    code, said, _ = proxfed(capsys, "simulate", str(plain), *arguments)
    assert code == 0
    [found] = json.loads(said)
    slow = {e["algorithm"]: e["sim_seconds"] for e in found["results"]}
    for entry in found["results"]:
        assert entry["reached"][0]["sim_seconds"] <= entry["sim_seconds"]
    fast = seconds(RunFolder(plain), Timing.read({"profile": "lan"}))
    assert min(slow.values()) > 20 * max(fast)
    assert RunFolder(tmp_path / "both").config()["time"]["step_scale"] == 100.0


def test_profiles_are_listed(capsys: Any) -> None:
    code, said, _ = proxfed(capsys, "list", "profiles")
    assert code == 0
    assert all(name in said for name in profiles())
