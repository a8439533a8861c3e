"""The present status of each task of a run folder, seen from another process. Nothing is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proxfed import files
from proxfed.errors import InputError, require
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.report.columns import DONE, Row, RunStatus

WAITING = "waiting.json"
"""A file in the run folder of a deployment: the sites that its coordinator waits for, and since when."""


@dataclass(frozen=True)
class TaskView:
    """One algorithm with one seed."""

    case: str
    label: str
    seed: int
    status: RunStatus | None
    """None: it has not begun."""
    round: int
    rounds: int
    row: Row | None
    """The last round."""
    message: str

    @property
    def name(self) -> str:
        return f"{self.case}: {self.label}, seed {self.seed}" if self.case else f"{self.label}, seed {self.seed}"

    @property
    def done(self) -> bool:
        return self.status in DONE


@dataclass(frozen=True)
class View:
    """A snapshot of all tasks of a run."""

    tasks: Sequence[TaskView]
    waiting: dict[str, float]
    """Seconds that the coordinator has waited for each site without an answer."""
    results: Sequence[Results]
    """By case."""

    @property
    def done(self) -> bool:
        return all(task.done for task in self.tasks)

    @property
    def begun(self) -> bool:
        return any(task.status is not None for task in self.tasks)

    @property
    def under_way(self) -> bool:
        """Whether a process works on it."""
        return any(task.status is RunStatus.RUNNING for task in self.tasks)


def folders(path: Path) -> list[Path]:
    """The run folder, or the run folders of its cases."""
    found = [path] if RunFolder(path).exists() else sorted(config.parent for config in path.glob("*/config.toml"))
    require(len(found) > 0, f"{path} is not a run folder, and contains no run folders")
    return found


def look(path: Path) -> View:
    """The present content of the run folder."""
    places = folders(path)
    results = [Results.read(place) for place in places]
    tasks = [task for place, r in zip(places, results, strict=True) for task in _tasks(r, place != path)]
    return View(tasks, _waiting(path), results)


def _tasks(results: Results, case: bool) -> list[TaskView]:
    last: dict[tuple[str, int], Row] = {}
    for each in results.rows:
        key = each["algorithm"], each["seed"]
        if key not in last or each["round"] >= last[key]["round"]:
            last[key] = each
    status = {(s["algorithm"], s["seed"]): s for s in results.status}
    out = []
    for seed in results.seeds:
        for table in results.settings["algorithms"]:
            label = table["label"]
            s, row = status.get((label, seed)), last.get((label, seed))
            t = max(0 if s is None else s["round"], 0 if row is None else row["round"])
            state, message = (None, "") if s is None else (RunStatus(s["status"]), s["message"])
            out.append(TaskView(results.name if case else "", label, seed, state, t, table["rounds"], row, message))
    return out


def _waiting(path: Path) -> dict[str, float]:
    """The waiting times of a live coordinator; a file left by a killed one is ignored."""
    with suppress(OSError, InputError, TypeError, ValueError, AttributeError):
        table = files.parse_json(files.read(path / WAITING), WAITING)
        return {str(site): max(0.0, time.time() - float(since)) for site, since in table["waiting"].items()}
    return {}
