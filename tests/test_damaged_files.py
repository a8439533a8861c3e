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
from hypothesis import given
from hypothesis import strategies as st

from proxfed import files
from proxfed.errors import InputError, ProxfedError
from proxfed.harness.build import build_study
from proxfed.harness.experiment import parse
from proxfed.harness.finished import simulate
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.folder.status_file import Status
from proxfed.harness.plan import Planned
from proxfed.harness.results import Results
from proxfed.problems.saved import load_model, model_name
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


def longer(path: Path) -> Any:
    """The same of a run that is given more rounds, from the checkpoints that were kept."""
    execute(path, TABLE | {"rounds": 6}, resume=True)
    ends = [{k: v for k, v in s.items() if k != "message"} for s in status(path)]
    return rows(path), ends, model(path)


USES = (report, results, model, simulated, resumed, longer)


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
        uses = (
            USES
            if kind != "flip"
            else [USES[int(draw.integers(len(USES)))], longer if name.parts[0] == "kept" else resumed]
        )
        for use in uses:
            path = self.copy()
            damage(path / name, kind, np.random.default_rng(k), path / other)
            found = outcome(use, path)
            damaged = (name, other) if kind == "swapped" else (name,)
            right = found == self.right[use] or (
                use not in (resumed, longer) and any(self._earlier(file, found, use) for file in damaged)
            )
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


def test_the_campaign_would_notice(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the checksums of rows are not looked at, damage is silent."""
    monkeypatch.setattr(Status, "known", lambda status, data, where: data[: status.rows[-1][0]])
    campaign = Campaign(whole, tmp_path / "copy")
    names = [path.name for path in files_of(campaign.folder)]
    of_rows = range(names.index("rows.csv"), 4 * len(names) * len(KINDS), len(names))
    with pytest.raises(AssertionError, match="silently wrong"):
        deque(map(campaign.try_one, of_rows))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["whole", "half"])
def test_five_hundred_damaged_files(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(request.getfixturevalue(which), tmp_path / "copy")
    for k in range(250):
        campaign.try_one(k)
    assert campaign.refused > 250


# ---- what is not ours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["checkpoint/precious.pt", "models/precious.pt", "checkpoint/mine/notes.txt"])
@pytest.mark.parametrize("config", ["", "mine", "run"])
def test_a_file_of_the_user_is_not_removed(place: str, config: str, whole: Path, tmp_path: Path) -> None:
    """With --force neither, and whatever stands beside it."""
    path = tmp_path / "run"
    if config == "run":
        shutil.copytree(whole, path)
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    (path / place).write_text("precious")
    if config == "mine":
        (path / "config.toml").write_text("mine = 1\n")
    for force in (True, False):
        with pytest.raises(InputError, match=r"cannot be replaced, for it holds .*, which was not written by a run"):
            Planned(build_study(parse(TABLE, "test")), RunFolder(path), force=force)
    assert (path / place).read_text() == "precious"


def test_a_config_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("mine = 1\n")
    with pytest.raises(InputError, match=r"holds .*config.toml, which was not written by a run"):
        Planned(build_study(parse(TABLE, "test")), RunFolder(tmp_path / "run"), force=True)


def test_a_run_that_is_damaged_can_be_replaced(whole: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "status.json", "rows.csv"):
        path = Path(shutil.copytree(whole, tmp_path / name))
        (path / name).write_bytes((path / name).read_bytes()[:-5])
        assert execute(path, TABLE, force=True)
        same(path, whole)


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
    assert f"the checkpoint {slots[-1]} is damaged; resumed from the other one" in said


def test_checkpoints_of_another_task_are_not_taken(half: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(half, tmp_path / "run"))
    task = RunFolder(path).task("another", 0, ())
    shutil.copytree(under_way(path).path, task.path)
    with pytest.raises(InputError, match="no readable checkpoint"):
        task.load()


@pytest.mark.parametrize(
    "name", ["config.toml", "versions.json", "clients.json", "rows.csv", model_name("fedavg", 3)], ids=range(5)
)
def test_files_of_another_run_are_refused(name: str, whole: Path, tmp_path: Path) -> None:
    """Even if that run had other steps only."""
    execute(tmp_path / "other", TABLE | {"problem": TABLE["problem"] | {"l2": 0.3}})
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.copy(tmp_path / "other" / name, path / name)
    with pytest.raises(InputError, match=r"is not what this run wrote|another run|not the file|is cut|damaged"):
        Results.read(path).models.load()


def test_a_missing_model_is_not_passed_over(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    (path / model_name("fedcef", 3)).unlink()
    with pytest.raises(InputError, match=r"models/fedcef-.*-seed3.safetensors is not there"):
        Results.read(path).models.load()


def test_a_model_of_another_task_is_not_taken(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.copy(path / model_name("fedavg", 3), path / model_name("fedcef", 3))
    with pytest.raises(InputError, match="is not the file that this run wrote"):
        Results.read(path).models.load()
    with pytest.raises(InputError, match=r"has no model of 'fedcef' with seed 3, only fedavg/3"):
        load_model(path, "fedcef", 3)


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
NESTED = st.recursive(
    PLAIN, lambda inside: st.lists(inside) | st.dictionaries(st.text(max_size=2), inside), max_leaves=5
)


@given(st.dictionaries(st.text(max_size=3).filter(lambda key: key != "sha256"), NESTED, min_size=1))
def test_a_table_that_is_sealed_in_one_pass_has_the_same_checksum(table: dict) -> None:
    assert files.checked(json.loads(files.sealed(table)), "table") == table
