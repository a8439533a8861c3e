"""Simulated seconds of a run that is over: nothing is trained again.

The rows say what was spent, config.toml who took part and who talked to whom. The run folder is copied with the column
sim_seconds replaced and the table [time] in its config.toml.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from proxfed.errors import InputError, RunError, require
from proxfed.harness.build import Task
from proxfed.harness.run_folder import Row, RunFolder
from proxfed.harness.schema import parse
from proxfed.registry import Table
from proxfed.report import write_report
from proxfed.simulate.clock import clock
from proxfed.simulate.timing import Timing

CHANGED = ("rows.csv", "rows.csv.gz", "config.toml", "checkpoint", "report.html")


@dataclass(frozen=True)
class _Crowd:
    """All that a resolved algorithm has to know of its problem."""

    n: int


def timing_of(folder: RunFolder) -> Timing:
    """What the run's own configuration says."""
    table = folder.config().get("time")
    if table is None:
        raise InputError(f"{folder.path} has no table [time] in its config.toml: name a --profile or a --time file")
    return Timing.read(table)


def seconds(folder: RunFolder, timing: Timing) -> list[float]:
    """The simulated seconds of each row."""
    held = folder.clients()
    if held is None:
        raise InputError(f"{folder.path} has no clients.json, which says how many clients there are")
    n = len(held)
    timing.check(n)
    experiment = parse(folder.config() | {"time": None}, str(folder.path / "config.toml"))
    tasks = {str(t["label"]): Task(t, str(t["label"]), experiment, _Crowd(n)) for t in experiment.algorithms}  # type: ignore[arg-type]
    clocks = {}
    out = []
    for row in folder.rows():
        key = label, seed = row["algorithm"], row["seed"]
        require(label in tasks, f"{folder.path}: rows.csv speaks of {label!r}, which is not in config.toml")
        if key not in clocks:
            t = tasks[label]
            clocks[key] = clock(timing, t.algorithm, t.participation, t.topology, n, seed)
        out.append(clocks[key](row))
    return out


def simulate(run: Path, timing: Timing, out: Path, force: bool = False) -> RunFolder:
    """A copy of the run folder in `out`, with these devices and links."""
    here, there = run.resolve(), out.resolve()
    require(there != here, f"--out {out} is the run itself: choose another place, or --in-place")
    require(there not in here.parents, f"--out {out} holds the run itself: choose another place")
    require(here not in there.parents, f"--out {out} is inside the run itself: choose another place")
    if RunFolder(out).exists():
        require(force, f"{out} holds a run already: --force replaces it, --out chooses another place")
    elif out.exists():
        require(out.is_dir() and not any(out.iterdir()), f"{out} exists and is not a run folder; choose another --out")
    _put(RunFolder(run), timing, there)
    return RunFolder(out)


def simulate_in_place(run: Path, timing: Timing) -> RunFolder:
    """The copy takes the place of the run."""
    require(RunFolder(run).finished(), f"{run} is not finished: --resume it first, or leave out --in-place")
    _put(RunFolder(run), timing, run.resolve())
    return RunFolder(run)


def _put(folder: RunFolder, timing: Timing, place: Path) -> None:
    """The copy is made beside its place and goes there when it is whole, and only then is what was there removed."""
    replaces, old = place.exists(), place.with_name(f"{place.name}.old")
    blocked = replaces and old.exists()
    require(not blocked, f"{old} is in the way: move it, or remove it if a simulation left it behind")
    rows = [row | {"sim_seconds": now} for row, now in zip(folder.rows(), seconds(folder, timing), strict=True)]
    config = folder.config() | {"time": timing.table()}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as beside:
            fresh = Path(beside) / place.name
            _copy(folder, fresh, rows, config)
            if replaces:
                os.rename(place, old)
            os.rename(fresh, place)
    except OSError as e:
        kept = f"; what was there is in {old}" if replaces and old.exists() else ""
        raise RunError(f"cannot write {place}: {_reason(e)}{kept}") from e
    if replaces:
        shutil.rmtree(old, ignore_errors=True)


def _copy(folder: RunFolder, out: Path, rows: Sequence[Row], config: Table) -> None:
    """A copy of the folder with these rows and settings."""
    shutil.copytree(folder.path, out, ignore=lambda here, _: CHANGED if Path(here) == folder.path else ())
    (out / "checkpoint").mkdir()
    copy = RunFolder(out)
    copy.write_rows(rows)
    copy.write_config(config)
    if folder.finished():
        copy.save_checkpoint(len(config["algorithms"]) * len(config["seeds"]), -1, {"wall_seconds": 0.0}, {})
    write_report([out], out / "report.html")


def _reason(e: OSError) -> str:
    """Of the first file, where copying a folder failed with several."""
    return str(e.args[0][0][-1] if isinstance(e, shutil.Error) else e.strerror)
