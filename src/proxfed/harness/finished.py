"""Simulated seconds for a finished run, without training again.

They are computed from the work and bytes in the rows, and the participation and topology in config.toml. The run folder
is copied with a new column sim_seconds, and the table [time] in its config.toml.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from proxfed.epochs import epochs_of
from proxfed.errors import InputError, RunError, require
from proxfed.harness.build import build_again, drawn_by_seed
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.registry import Table
from proxfed.simulate.clock import clock
from proxfed.simulate.timing import Timing
from proxfed.types import Algorithm

CHANGED = ("rows.csv", "config.toml", "checkpoint", "kept", "report.html")


def timing_of(results: Results) -> Timing:
    """The timing in the run's own configuration."""
    table = results.settings.get("time")
    if table is None:
        raise InputError(f"{results.folder} has no table [time] in its config.toml: name a --profile or a --time file")
    return Timing.read(table)


def with_seconds(results: Results, timing: Timing) -> Results:
    """The same results on these devices and links."""
    n = results.clients
    if n is None:
        raise InputError(f"{results.folder} has no clients.json, which has the number of clients")
    timing.check(n)
    tables = {table["label"]: table for table in results.settings["algorithms"]}
    entries: dict[str, Any] = {}
    clocks: dict[tuple[str, int], Any] = {}
    rows = []
    for row in results.rows:
        key = label, seed = row["algorithm"], row["seed"]
        if key not in clocks:
            require(label in tables, f"{results.folder}: rows.csv has {label!r}, which is not in config.toml")
            entry = entries.setdefault(label, build_again(tables[label], n))
            own_steps = _own_steps(results, tables[label], entry.algorithm)
            clocks[key] = clock(timing, entry.algorithm, entry.participation, entry.topology, n, seed, own_steps)
        rows.append({**row, "sim_seconds": clocks[key](row)})
    return replace(results, rows=rows, settings={**results.settings, "time": timing.table()})


def _own_steps(results: Results, table: Table, algorithm: Algorithm) -> np.ndarray | None:
    """(n,) local steps of each client, of an algorithm whose clients take epochs."""
    if (epochs := epochs_of(algorithm)) is None:
        return None
    assert results.client_stats is not None
    one = not drawn_by_seed(results.settings.get("data", {}))
    said = "each seed has a partition of its own, and clients.json has one of them: give the run itself a table [time]"
    require(one, f"{results.folder}: local steps in epochs follow from the sizes of clients; {said}")
    problem = table.get("problem") or results.settings["problem"]
    return epochs.of(results.client_stats.sizes, problem["batch"])


def simulate(results: Results, timing: Timing, out: Path, force: bool = False) -> Results:
    """A copy of the run folder in `out`, with these devices and links."""
    assert results.folder is not None
    here, there = results.folder.resolve(), out.resolve()
    require(there != here, f"--out {out} is the run itself: choose another place, or --in-place")
    require(there not in here.parents, f"--out {out} holds the run itself: choose another place")
    require(here not in there.parents, f"--out {out} is inside the run itself: choose another place")
    if RunFolder(out).exists():
        require(force, f"{out} holds a run already: --force replaces it, --out chooses another place")
    elif out.exists():
        require(out.is_dir() and not any(out.iterdir()), f"{out} exists and is not a run folder; choose another --out")
    return _put(results, timing, out)


def simulate_in_place(results: Results, timing: Timing) -> Results:
    """Replace the run by the copy."""
    assert results.folder is not None
    require(results.complete, f"{results.folder} is not finished: --resume it first, or leave out --in-place")
    return _put(results, timing, results.folder.resolve())


def _put(results: Results, timing: Timing, out: Path) -> Results:
    """Write the copy beside its destination, move it there when it is complete, and only then remove the old folder."""
    place = out.resolve()
    replaces, old = place.exists(), place.with_name(f"{place.name}.old")
    blocked = replaces and old.exists()
    require(not blocked, f"{old} is in the way: move it, or remove it if a simulation left it behind")
    results.models.load()  # read before the folder moves
    new = replace(with_seconds(results, timing), name=place.name, folder=out)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as beside:
            fresh = Path(beside) / place.name
            assert results.folder is not None
            _copy(results.folder, fresh, new)
            if replaces:
                os.rename(place, old)
            os.rename(fresh, place)
    except OSError as e:
        kept = f"; the old folder is {old}" if replaces and old.exists() else ""
        raise RunError(f"cannot write {place}: {_reason(e)}{kept}") from e
    if replaces:
        shutil.rmtree(old, ignore_errors=True)
    return new


def _copy(folder: Path, out: Path, new: Results) -> None:
    """A copy of the folder with these rows and settings."""
    shutil.copytree(folder, out, ignore=lambda here, _: CHANGED if Path(here) == folder else ())
    (out / "checkpoint").mkdir()
    RunFolder(out).rewrite(new.settings, new.rows)
    new.report(out / "report.html")


def _reason(e: OSError) -> str:
    """The reason for the first file, if copying a folder failed for several."""
    return str(e.args[0][0][-1] if isinstance(e, shutil.Error) else e.strerror)
