"""What two run folders have in common, and the task that an interrupted one has under way."""

from __future__ import annotations

from pathlib import Path

from proxfed.harness.folder.checkpoint import TaskFolder, task_name
from proxfed.harness.folder.run_folder import RunFolder


def rows(path: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in RunFolder(path).rows()]


def same(a: Path, b: Path) -> None:
    assert rows(a) == rows(b)
    (models_a, blocks_a), (models_b, blocks_b) = RunFolder(a).models(), RunFolder(b).models()
    assert blocks_a == blocks_b
    assert models_a.keys() == models_b.keys()
    for name, model in models_a.items():
        assert model.numpy().tobytes() == models_b[name].numpy().tobytes(), name


def status(path: Path) -> list[dict]:
    return RunFolder(path).status()


def under_way(path: Path) -> TaskFolder:
    """The task that was interrupted."""
    (here,) = (path / "checkpoint").iterdir()
    folder = RunFolder(path)
    (task,) = (s for s in folder.status() if task_name(s["algorithm"], s["seed"]) == here.name)
    return folder.task(task["algorithm"], task["seed"], ())
