"""Whatever happens to the files of a run folder: the same results as before, or one sentence; never others."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError, ProxfedError
from proxfed.harness.build import build_study
from proxfed.harness.experiment import parse
from proxfed.harness.finished import simulate
from proxfed.harness.plan import Planned
from proxfed.harness.results import Results
from proxfed.harness.run_folder import RunFolder
from proxfed.problems.saved import load_model
from proxfed.report.page import render
from proxfed.simulate.timing import Timing

from support.damage import KINDS, damage, files_of
from support.resumed import rows, same, status, under_way
from support.small_experiment import Crash, execute, small

TABLE = small(
    rounds=4,
    seeds=[3],
    reference=False,
    algorithms=[a for a in small()["algorithms"] if a.get("label", a["name"]) in ("fedavg", "fedcef", "depositum")],
)
LABELS = ("fedavg", "fedcef", "depositum")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert execute(path, TABLE)
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted in its second task, after two checkpoints."""
    path = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(Crash):
        execute(path, TABLE, crash_after=9)
    assert len(list(under_way(path).path.glob("*.safetensors"))) == 2
    return path


# ---- what is done with a run folder ---------------------------------------------------------------------------------


def report(path: Path) -> Any:
    """The page, without what a clock measured."""
    return render([Results.read(path)])


def results(path: Path) -> Any:
    found = Results.read(path)
    return list(found.rows), list(found.status), dict(found.settings), dict(found.versions), str(found.table())


def model(path: Path) -> Any:
    there = [label for label in LABELS if (label, 3) in list(Results.read(path).models)]
    return {label: {k: v.numpy().tobytes() for k, v in load_model(path, label, 3).items()} for label in there}


def simulated(path: Path) -> Any:
    return results(simulate(Results.read(path), Timing.read({"profile": "wan"}), path.parent / "simulated").folder)


def resumed(path: Path) -> Any:
    """Rows but for the wall clock, models and how it ended, but for what is said of a damaged slot."""
    execute(path, TABLE, resume=True)
    ends = [{k: v for k, v in s.items() if k != "message"} for s in status(path)]
    return rows(path), ends, list(Results.read(path).settings.items()), model(path)


USES = (report, results, model, simulated, resumed)


def outcome(use: Callable[[Path], Any], path: Path) -> Any:
    """What comes out, or the sentence of the refusal."""
    try:
        return use(path)
    except ProxfedError as e:
        said = str(e)
    assert "\n" not in said
    assert len(said) < 600
    return said


class Campaign:
    """Copies of a run folder, each damaged in one place, and all that can be done with them."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.right = {use: use(self.copy()) for use in USES}
        self.refused = self.unharmed = 0

    def copy(self) -> Path:
        shutil.rmtree(self.scratch, ignore_errors=True)
        return Path(shutil.copytree(self.folder, self.scratch / "run"))

    def try_one(self, k: int) -> None:
        draw = np.random.default_rng(k)
        names = [path.relative_to(self.folder) for path in files_of(self.folder)]
        name, kind = names[k % len(names)], KINDS[k // len(names) % len(KINDS)]
        other = names[(k + 1 + int(draw.integers(len(names) - 1))) % len(names)]
        uses = USES if kind != "flip" else [USES[int(draw.integers(len(USES)))], resumed]
        for use in uses:
            path = self.copy()
            damage(path / name, kind, np.random.default_rng(k), path / other)
            found = outcome(use, path)
            right = found == self.right[use] or (use is not resumed and self._earlier(name, found, use))
            assert right or isinstance(found, str), f"{k}: {use.__name__} after {kind} of {name} is silently wrong"
            self.refused, self.unharmed = self.refused + isinstance(found, str), self.unharmed + right

    def _earlier(self, name: Path, found: Any, use: Callable[[Path], Any]) -> bool:
        """Rows of a task under way that were lost behind its last checkpoint: as if it had been killed before them."""
        lost = name.parent.parent.name == "checkpoint" and name.name == "rows.csv" and not isinstance(found, str)
        if not lost or use in (report, model):
            return lost
        before = self.right[use][0]
        return [row for row in before if row in found[0]] == found[0] and len(found[0]) >= len(before) - 1


@pytest.mark.parametrize("which", ["whole", "half"])
def test_damage_is_refused_or_without_consequence(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(request.getfixturevalue(which), tmp_path / "copy")
    count = len(files_of(campaign.folder)) * len(KINDS)
    for k in range(0, count, 3):
        campaign.try_one(k)
    assert campaign.refused > 10
    assert which == "whole" or campaign.unharmed > 0  # by the other slot


def test_the_campaign_would_notice(whole: Path, tmp_path: Path) -> None:
    """Without checksums, damage is silent."""
    campaign = Campaign(without_checksums(whole, tmp_path / "old"), tmp_path / "copy")
    with pytest.raises(AssertionError, match="silently wrong"):
        deque(map(campaign.try_one, range(len(files_of(campaign.folder)) * len(KINDS))))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["whole", "half"])
def test_five_hundred_damaged_files(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(request.getfixturevalue(which), tmp_path / "copy")
    for k in range(250):
        campaign.try_one(k)
    assert campaign.refused > 250


# ---- one by one ------------------------------------------------------------------------------------------------------


def test_a_damaged_slot_is_passed_over_and_said(half: Path, whole: Path, tmp_path: Path) -> None:
    """One bit of a number, which still reads as a number."""
    path = Path(shutil.copytree(half, tmp_path / "run"))
    slots = sorted(under_way(path).path.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
    data = bytearray(slots[-1].read_bytes())
    data[-3] ^= 1
    slots[-1].write_bytes(bytes(data))
    assert execute(path, TABLE, resume=True)
    same(path, whole)
    (said,) = (s["message"] for s in status(path) if "damaged" in s["message"])
    assert f"the checkpoint {slots[-1]} is damaged, went on from the other" in said


def test_checkpoints_of_another_task_are_not_taken(half: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(half, tmp_path / "run"))
    task = RunFolder(path).task("another", 0, ())
    shutil.copytree(under_way(path).path, task.path)
    with pytest.raises(InputError, match="no readable checkpoint"):
        task.load()


@pytest.mark.parametrize("name", ["config.toml", "versions.json", "clients.json", "rows.csv", "model.safetensors"])
def test_files_of_another_run_are_refused(name: str, whole: Path, tmp_path: Path) -> None:
    """Even if that run had other seeds only."""
    execute(tmp_path / "other", TABLE | {"seeds": [4]})
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.copy(tmp_path / "other" / name, path / name)
    with pytest.raises(InputError, match=r"is not what this run wrote|of another run|not the file|is cut|damaged"):
        Results.read(path).models.load()


def test_a_missing_model_is_not_passed_over(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="is not there, but 3 models were written"):
        Results.read(path).models.load()


# ---- folders of a version that had no checksums ---------------------------------------------------------------------


def without_checksums(folder: Path, path: Path) -> Path:
    """As such a version would have written it."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    shutil.copytree(folder, path)
    status = json.loads((path / "status.json").read_text())
    ends = iter([end for end, _ in status["rows"][1:]])
    tasks = [{k: v for k, v in s.items() if k != "model"} for s in status["tasks"]]
    old = [s | {"rows_end": next(ends)} if s["status"] == "finished" else s for s in tasks]
    (path / "status.json").write_text(json.dumps(old))
    for name in ("versions.json", "clients.json"):
        table = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({k: v for k, v in table.items() if k not in ("run", "sha256")}))
    lines = (path / "config.toml").read_text().splitlines()
    (path / "config.toml").write_text("\n".join(lines[:-1]) + "\n")
    with safe_open(path / "model.safetensors", framework="pt") as f:
        tensors, blocks = {name: f.get_tensor(name) for name in f.keys()}, f.metadata()["blocks"]  # noqa: SIM118
    save_file(tensors, path / "model.safetensors", metadata={"blocks": blocks})
    for file in path.glob("checkpoint/*/rows.csv"):
        file.write_text("".join(line.rpartition(",")[0] + "\n" for line in file.read_text().splitlines()))
    return path


def test_a_folder_without_checksums_is_read_as_it_is(whole: Path, half: Path, tmp_path: Path) -> None:
    for k, folder in enumerate((whole, half)):
        old = without_checksums(folder, tmp_path / str(k))
        assert rows(old) == rows(folder)
        assert results(old)[:3] == results(folder)[:3]
        assert model(old) == model(folder)


def test_a_folder_without_checksums_gets_them_when_it_is_resumed(whole: Path, half: Path, tmp_path: Path) -> None:
    old = without_checksums(half, tmp_path / "run")
    planned = Planned(build_study(parse(TABLE, "test")), RunFolder(old), resume=True)
    assert planned.remark == f"{old} had no checksums and gets them; what was under way there begins anew"
    assert execute(old, TABLE, resume=True)
    same(old, whole)
    damage(old / "rows.csv", "flip", np.random.default_rng(0))
    with pytest.raises(InputError, match=r"rows.csv is damaged or changed"):
        rows(old)
