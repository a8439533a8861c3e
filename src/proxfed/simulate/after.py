"""Simulated seconds of a run that is over: nothing is trained again.

The rows say what was spent, config.toml who took part and who talked to whom. The run folder is copied with the column
sim_seconds replaced and the table [time] in its config.toml.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from proxfed.config import parse
from proxfed.errors import InputError, RunError, require
from proxfed.record import RunFolder
from proxfed.report import write_report
from proxfed.resolve import Task
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
    folder = RunFolder(run)
    rows = [row | {"sim_seconds": now} for row, now in zip(folder.rows(), seconds(folder, timing), strict=True)]
    config = folder.config() | {"time": timing.table()}
    require(out.resolve() != run.resolve(), f"--out {out} is the run itself: choose another place, or --in-place")
    require(out.resolve() not in run.resolve().parents, f"--out {out} holds the run itself: choose another place")
    if RunFolder(out).exists():
        require(force, f"{out} holds a run already: --force replaces it, --out chooses another place")
    elif out.exists():
        require(out.is_dir() and not any(out.iterdir()), f"{out} exists and is not a run folder; choose another --out")
    try:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run, out, ignore=lambda here, _: CHANGED if Path(here) == run else ())
        (out / "checkpoint").mkdir()
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror}") from e
    copy = RunFolder(out)
    copy.write_rows(rows)
    copy.write_config(config)
    if folder.finished():
        copy.save_checkpoint(len(config["algorithms"]) * len(config["seeds"]), -1, {"wall_seconds": 0.0}, {})
    write_report([out], out / "report.html")
    return copy


def simulate_in_place(run: Path, timing: Timing) -> RunFolder:
    """The copy takes the place of the run; at every moment one of the two is whole."""
    require(RunFolder(run).finished(), f"{run} is not finished: --resume it first, or leave out --in-place")
    fresh, old = run.with_name(f"{run.name}.new"), run.with_name(f"{run.name}.old")
    for place in (fresh, old):
        require(not place.exists(), f"{place} is in the way: move it, or remove it if a simulation left it behind")
    simulate(run, timing, fresh)
    os.rename(run, old)
    os.rename(fresh, run)
    shutil.rmtree(old)
    return RunFolder(run)
