"""Whatever happens to the disk of a site or of the coordinator: the same model to the bit, or one sentence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from proxfed.errors import InputError, ProxfedError, RunError
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.silos.coordinator import deploy as deploying
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.site import holder as holding
from proxfed.silos.site.config import read_site
from proxfed.silos.site.from_config import holder
from proxfed.silos.wire import job as jobs
from proxfed.silos.wire.carrier import Direct

from support.damage import KINDS, FullDisk, damage, files_of

SITES = ("lyon", "oslo", "turin")
EXPERIMENT = parse(
    {
        "name": "trial",
        "rounds": 2,
        "data": {"name": "synthetic_binary"},  # the rows of the sites take its place
        "problem": {"name": "least_squares", "l2": 0.1, "weighting": "uniform"},
        "regulariser": {"name": "l1", "weight": 0.01},
        "topology": {"name": "ring"},
        "algorithms": [{"name": "scaffold", "eta": 0.02, "K": 2}, {"name": "depositum", "alpha": 0.05}],
    },
    "trial.toml",
)


def sites(folder: Path, data: Mapping[str, Any] | None = None) -> Path:
    """Three of them, each with its own files."""
    rng = np.random.default_rng(1)
    for name in SITES:
        (folder / name).mkdir(parents=True)
    keys = {name: fingerprint(SiteKey.create(folder / name / "site.key").public) for name in SITES}
    for name in SITES:
        place = folder / name
        table = np.round(rng.normal(size=(24, 5)), 3)
        lines = [",".join(map(str, row)) + f",{'ab'[k % 2]}" for k, row in enumerate(table)]
        (place / "rows.csv").write_text("\n".join(["x1,x2,x3,x4,y,clinic", *lines]) + "\n")
        about = {"path": "rows.csv", "label": "y", "client": "clinic", **(data or {})}
        others = {other: key for other, key in keys.items() if other != name}
        site = {"name": name, "data": about, "limits": {"rows": 5}, "partners": others}
        (place / "site.toml").write_text(tomli_w.dumps(site))
    return folder


def carrier(folder: Path) -> Direct:
    """Holders made from what is on their disks."""
    return Direct({name: holder(read_site(folder / name / "site.toml")).answer for name in SITES})


def carried_out(folder: Path, asking: Any = None) -> Any:
    """Rows and models of the run, which is begun, or resumed if it has begun."""
    deploy(
        EXPERIMENT, asking or carrier(folder), folder / "run", resume=RunFolder(folder / "run").exists(),
        progress=False, say=lambda sentence: None,
    )  # fmt: skip
    found = RunFolder(folder / "run")
    rows = [{k: v for k, v in row.items() if k not in ("wall_seconds", "wire_bytes")} for row in found.rows()]
    return rows, {name: model.numpy().tobytes() for name, model in found.models()[0].items()}


class Crash(Exception):
    pass


class Dying(Direct):
    """A coordinator that is gone after so many exchanges."""

    def __init__(self, holders: Mapping[str, Callable[[bytes], bytes]], after: int) -> None:
        super().__init__(holders)
        self.left = after

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        self.left -= 1
        if self.left < 0:
            raise Crash
        return super().ask(questions, deadline)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What comes out if nothing happens, and after how many exchanges."""
    folder = sites(tmp_path_factory.mktemp("whole") / "lab")
    asking = Dying(carrier(folder).holders, 10_000)
    return carried_out(folder, asking), 10_000 - asking.left


def interrupted(folder: Path, after: int) -> Path:
    with pytest.raises(Crash):
        carried_out(sites(folder), Dying(carrier(folder).holders, after))
    return folder


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory, whole: Any) -> Path:
    """Interrupted in its first algorithm; the second has not begun."""
    folder = interrupted(tmp_path_factory.mktemp("early") / "lab", 10)
    assert list((folder / "lyon" / "state").glob("*/*.safetensors"))
    return folder


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory, whole: Any) -> Path:
    """Interrupted in the middle of a step between peers."""
    for after in range(whole[1] - 12, 0, -1):
        folder = interrupted(tmp_path_factory.mktemp("late") / "lab", after)
        if list((folder / "lyon" / "state").glob("*/log")):
            return folder
    raise AssertionError


# ---- damaged files ---------------------------------------------------------------------------------------------------


class Campaign:
    """Copies of what sites and coordinator have on their disks, each damaged in one place, and then resumed."""

    def __init__(self, folder: Path, right: Any, scratch: Path) -> None:
        self.folder, self.right, self.scratch = folder, right, scratch
        there = [path.relative_to(folder) for path in files_of(folder) if path.name != "site.toml"]
        self.names = [name for name in there if name.parts[0] != "run" or name.name == "silos.json"]
        self.refused = self.unharmed = 0

    def try_one(self, k: int) -> None:
        draw = np.random.default_rng(k)
        name, kind = self.names[k % len(self.names)], KINDS[k // len(self.names) % len(KINDS)]
        beside = [other for other in self.names if other != name and other.parts[0] == name.parts[0]] or [name]
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.folder, self.scratch)
        damage(self.scratch / name, kind, draw, self.scratch / beside[int(draw.integers(len(beside)))])
        found, said = None, ""
        try:
            found = carried_out(self.scratch)
        except ProxfedError as e:
            said = str(e)
        assert "\n" not in said
        assert len(said) < 600
        assert said or found == self.right, f"{k}: after {kind} of {name} it is silently wrong"
        self.refused, self.unharmed = self.refused + bool(said), self.unharmed + (not said)


@pytest.mark.parametrize("which", ["early", "late"])
def test_damage_is_refused_or_without_consequence(
    which: str, whole: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    campaign = Campaign(request.getfixturevalue(which), whole[0], tmp_path / "copy")
    for k in range(0, len(campaign.names) * len(KINDS), 7):
        campaign.try_one(k)
    assert campaign.refused > 2
    assert campaign.unharmed > 0  # by the other slot


@pytest.mark.slow
@pytest.mark.parametrize("which", ["early", "late"])
def test_five_hundred_damaged_files(which: str, whole: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    campaign = Campaign(request.getfixturevalue(which), whole[0], tmp_path / "copy")
    for k in range(250):
        campaign.try_one(k)
    assert campaign.refused + campaign.unharmed == 250


def test_files_of_another_run_are_not_taken_for_this_one(early: Path, tmp_path: Path) -> None:
    one, other = Path(shutil.copytree(early, tmp_path / "one")), interrupted(tmp_path / "other", 10)
    (mine,) = (path.parent for path in (one / "lyon" / "state").glob("*/0.safetensors"))
    (theirs,) = (path.parent for path in (other / "lyon" / "state").glob("*/0.safetensors"))
    for name in ("0.safetensors", "1.safetensors"):
        if (theirs / name).exists():
            shutil.copy(theirs / name, mine / name)
    with pytest.raises(ProxfedError, match="lyon refuses: what this site keeps of the run is lost"):
        carried_out(one)
    shutil.copy(theirs / "job", mine / "job")
    with pytest.raises(ProxfedError, match="lyon failed: what this site keeps of the job is damaged"):
        carried_out(one)


def test_other_rows_after_a_restart_are_noticed(early: Path, tmp_path: Path) -> None:
    """Also by a coordinator that lives on, and tells nobody of the job again."""
    folder = Path(shutil.copytree(early, tmp_path / "lab"))
    file, asking = folder / "oslo" / "rows.csv", carrier(folder)
    text = file.read_text()
    file.write_text(text.replace("0.", "1.", 1))
    changed = carrier(folder).holders["oslo"]

    class Restarting(Direct):
        """Its third exchange finds another oslo."""

        left = 8

        def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
            self.left -= 1
            holders = self.holders if self.left > 0 else {**self.holders, "oslo": changed}
            return {site: holders[site](question) for site, question in questions.items()}

    with pytest.raises(InputError, match="oslo refuses: the rows are not those that the run was begun with"):
        carried_out(folder, Restarting(asking.holders))
    file.write_text(text)
    carried_out(folder)


def test_what_was_agreed_on_is_that_of_the_experiment(early: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(early, tmp_path / "lab"))
    other = EXPERIMENT.model_copy(update={"problem": EXPERIMENT.problem | {"l2": 0.2}})
    with pytest.raises(InputError, match="the sites have agreed on another problem"):
        deploy(other, carrier(folder), folder / "run", resume=True, progress=False)


# ---- a full disk -----------------------------------------------------------------------------------------------------


def writes(folder: Path, disk: str) -> int:
    """How many there are on a disk in a whole run."""
    sites(folder)
    with pytest.MonkeyPatch.context() as patch:
        full = _full(patch, folder / disk, 10_000)
        carried_out(folder)
    return 10_000 - full.left


def _full(patch: pytest.MonkeyPatch, folder: Path, n: int, for_good: bool = False) -> FullDisk:
    """Writes to the audit file are counted when they are flushed; of the one that fails the end is missing."""
    disk = FullDisk(patch, folder, n, for_good)

    def flush(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith("audit.jsonl"):
            try:
                disk.count(path)
            except OSError:
                os.truncate(path, os.path.getsize(path) - 7)
                raise

    patch.setattr("os.fsync", flush)
    return disk


def full_at(n: int, for_good: bool, disk: str, right: Any, folder: Path) -> None:
    said = ""
    sites(folder)
    with pytest.MonkeyPatch.context() as patch:
        full = _full(patch, folder / disk, n, for_good)
        try:
            carried_out(folder)
        except (RunError, InputError) as e:
            said = str(e)
    assert full.full
    assert "No space left on device" in said
    assert "\n" not in said
    assert carried_out(folder) == right
    assert all(read_site(folder / name / "site.toml").audit.read().broken == "" for name in SITES)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks at which file is flushed")
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("disk", ["lyon", "run"])
def test_a_disk_that_is_full_at_some_write(disk: str, for_good: bool, whole: Any, tmp_path: Path) -> None:
    """That of a site, or of the coordinator; when there is room again, it goes on to the same bits."""
    total = writes(tmp_path / "count", disk)
    assert total > 30
    for n in range(2 + 11 * for_good, total + 1, 29):
        full_at(n, for_good, disk, whole[0], tmp_path / str(n))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks at which file is flushed")
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("disk", ["lyon", "run"])
def test_a_disk_that_is_full_at_every_write(disk: str, for_good: bool, whole: Any, tmp_path: Path) -> None:
    for n in range(1, writes(tmp_path / "count", disk) + 1):
        full_at(n, for_good, disk, whole[0], tmp_path / str(n))


# ---- versions --------------------------------------------------------------------------------------------------------


def test_sites_with_another_proxfed_are_refused_and_with_another_torch_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, said = carrier(sites(tmp_path / "lab")), list[str]()
    ours = holding.versions()
    monkeypatch.setattr(holding, "versions", lambda: ours | {"torch": "1.0"})
    deploy(EXPERIMENT, asking, tmp_path / "run", progress=False, say=said.append)
    assert said == [
        f"{name} has torch 1.0 and not {ours['torch']}: last digits may differ from those of a run in one place"
        for name in SITES
    ]
    monkeypatch.setattr(holding, "versions", lambda: ours | {"proxfed": "0.0.1"})
    with pytest.raises(InputError, match=r"lyon has proxfed '0\.0\.1', and we .*: install the same one"):
        deploy(EXPERIMENT, asking, tmp_path / "other", progress=False)


def test_a_run_does_not_go_on_with_another_proxfed(
    early: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(early, tmp_path / "lab"))
    monkeypatch.setattr(jobs, "__version__", "99.0")
    with pytest.raises(InputError, match=r"the job is of proxfed .*, and here is 99\.0: install the same version"):
        deploying.recorded(folder / "run" / "silos.json")
    with pytest.raises(InputError, match=r"the job is of proxfed .*, and here is 99\.0"):
        carried_out(folder)


# ---- what site.toml says of the rows ---------------------------------------------------------------------------------


def test_a_site_of_several_clients_with_rows_held_out(whole: Any, tmp_path: Path) -> None:
    folder = sites(tmp_path / "lab", {"held_out": 0.25})
    deploy(EXPERIMENT, carrier(folder), folder / "run", progress=False, say=lambda sentence: None)
    assert [len(holder(read_site(folder / name / "site.toml")).rows.sizes) for name in SITES] == [2, 2, 2]
    last = RunFolder(folder / "run").rows()[-1]
    assert all(last[f"test_loss_{name}"] is not None for name in SITES)  # rounded to what five of six rows make
