"""A disk that is full at any write: one sentence, and when there is room again the run goes on to the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from proxfed import files
from proxfed.errors import RunError
from proxfed.files import write
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.silos.protection.versions import too_near
from proxfed.types import Block

from support.damage import FullDisk
from support.resumed import same
from support.small_experiment import execute, small

TABLE = small(
    rounds=2,
    seeds=[3],
    reference=False,
    algorithms=[a for a in small()["algorithms"] if a.get("label", a["name"]) in ("fedavg", "depositum")],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert execute(path, TABLE)
    return path


def full_at(n: int, whole: Path, path: Path) -> bool:
    """Whether there were so many writes; if so, the n-th one failed in a sentence, and nothing else was lost."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, path, n)
        said = ""
        try:
            execute(path, TABLE)
        except RunError as e:
            said = str(e)
    assert bool(said) == disk.full
    assert not said or "No space left on device" in said
    assert "\n" not in said
    assert execute(path, TABLE, resume=RunFolder(path).exists())
    same(path, whole)
    assert not list(path.rglob("*.new"))
    return disk.full


def writes(whole: Path, path: Path) -> int:
    """How many there are in a whole run."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, path, 10_000)
        assert execute(path, TABLE)
    return 10_000 - disk.left


@pytest.mark.parametrize("part", range(4))
def test_some_write_fails(part: int, whole: Path, tmp_path: Path) -> None:
    total = writes(whole, tmp_path / "count")
    for n in range(1 + part, total, 8):
        assert full_at(n, whole, tmp_path / f"run{n}")


@pytest.mark.slow
def test_every_write_fails(whole: Path, tmp_path: Path) -> None:
    total = writes(whole, tmp_path / "count")
    assert total > 40
    for n in range(1, total + 1):
        assert full_at(n, whole, tmp_path / f"run{n}")
    assert not full_at(total + 1, whole, tmp_path / "none")


def test_what_a_killed_process_was_writing_is_removed(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "versions.json").write_text("{")
    (path / "rows.csv.1234abcd.new").write_text("half")
    assert execute(path, TABLE, force=False)
    (path / "models" / "fedavg-123456-seed3.safetensors.1234abcd.new").write_text("half")
    assert execute(path, TABLE, resume=True)
    same(path, whole)
    assert not list(path.rglob("*.new"))


def test_finishing_a_task_writes_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model and its rows; of the others a line each, that of the status."""
    folder, sizes = RunFolder(tmp_path / "run"), dict[str, int]()
    folder.create({"name": "many"}, None, [])
    real = files.replace

    def replace(path: Path, data: bytes, begun: bool = True) -> None:
        sizes[path.parent.name] = len(data)
        real(path, data, begun)

    monkeypatch.setattr(files, "replace", replace)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    seen = []
    for seed in range(60):
        task = folder.task("fedavg", seed, [])
        with task.taken():
            task.append({"algorithm": "fedavg", "seed": seed, "round": 0})
            folder.finish(
                task, "fedavg", seed, "finished", 0, "", torch.zeros(10_000), [Block("x", 0, 10_000, (10_000,))]
            )
        seen.append((sizes["models"], sizes["run"]))
    assert len(folder.models()[0]) == 60
    assert max(models for models, _ in seen) < 1.01 * seen[0][0]
    assert seen[-1][1] - seen[0][1] < 59 * 400


def test_a_page_that_cannot_be_written_leaves_the_old_one(whole: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    Results.read(whole).report(page)
    before = page.read_bytes()
    for n in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            FullDisk(patch, tmp_path, n)
            with pytest.raises(RunError, match=r"^cannot write the report to .*report.html: No space left on device$"):
                Results.read(whole).report(page)
        assert page.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_report_does_not_write_through_a_link_in_the_run_folder(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    (tmp_path / "mine").write_text("precious")
    (path / "report.html").unlink(missing_ok=True)
    (path / "report.html").symlink_to(tmp_path / "mine")
    Results.read(path).report(path / "report.html")
    assert (tmp_path / "mine").read_text() == "precious"
    assert not (path / "report.html").is_symlink()
    assert "<html" in (path / "report.html").read_text()


def test_what_is_no_plain_file_is_written_to(tmp_path: Path) -> None:
    write("/dev/null", "text")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_a_table_that_cannot_be_noted_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(RunError, match=r"cannot write to .*state.tables: "):
        too_near(tmp_path / "state" / "tables", np.zeros((3, 2)), 5)
