"""`proxfed simulate`: how long finished runs would have taken on other devices and links."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.errors import nearest, require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say

if TYPE_CHECKING:
    from proxfed.harness.results import Results


def simulate(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    profile: Annotated[
        str | None, typer.Option("--profile", help="Profile of devices and links; `proxfed list profiles` shows all.")
    ] = None,
    time: Annotated[
        Path | None, typer.Option("--time", metavar="FILE.toml", help="File with your own table of devices and links.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="MEASURE=VALUE", help="Target to show the time of; default: the run's own targets."
        ),
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--out", help="New run folder, or the parent of several; default: DIR-PROFILE.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Rewrite the run folders themselves.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Estimate how long runs would have taken on given devices and links; nothing is trained again.

    Each run folder is copied with the column sim_seconds filled in. Without --profile and --time, the devices and links
    of the run's own configuration are used.

    Example: [bold]proxfed simulate runs/demo --profile wan --target gap=0.001[/bold]
    """
    from proxfed.harness.finished import simulate, simulate_in_place, timing_of
    from proxfed.harness.results import Results
    from proxfed.simulate.timing import Timing, origin, read_time

    require(profile is None or time is None, f"--profile {profile} and --time {time} exclude each other")
    require(not (in_place and place), f"--in-place and --out {place} exclude each other")
    goals = _goals(target) if target else None
    given = Timing.read({"profile": profile}) if profile else Timing.read(read_time(time)) if time else None
    called = profile or (time.stem if time else "time")
    runs = [Results.read(folder) for folder in folders]
    for run in runs:
        _check(run, goals or {})
    places = [_place(folder, place, called, len(folders) > 1) for folder in folders]
    twice = next((path for path in places if places.count(path) > 1), None)
    require(in_place or twice is None, f"two of the runs would go to {twice}: simulate them one by one")
    found, origins = [], set[str]()
    for run, new in zip(runs, places, strict=True):
        timing = given or timing_of(run)
        origins.add(origin(timing.table()))
        result = simulate_in_place(run, timing) if in_place else simulate(run, timing, new, force)
        found.append((result.folder, _results(result, goals)))
    if format is Format.json:
        print(json.dumps([{"folder": str(path), "results": table} for path, table in found], indent=1))
        return
    for path, table in found:
        say(str(path), style="bold")
        _print(table)
    for line in sorted(filter(None, origins)):
        say(f"{line[0].upper()}{line[1:]}.")


def _place(folder: Path, place: Path | None, called: str, several: bool) -> Path:
    """The folder for the copy of a run."""
    named = folder.resolve() if folder.name in ("", "..") else folder
    if place is None:
        return named.with_name(f"{named.name}-{called}")
    return place / named.name if several else place


def _goals(texts: list[str]) -> dict[str, list[float]]:
    goals: dict[str, list[float]] = {}
    for text in texts:
        measure, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        require(bool(measure) and math.isfinite(number), f"--target {text!r} is not of the form accuracy=0.95")
        goals.setdefault(measure, []).append(number)
    return goals


def _check(run: Results, goals: dict[str, list[float]]) -> None:
    measured = sorted({name for row in run.rows for name, value in row.items() if isinstance(value, (int, float))})
    for name in goals:
        require(name in measured, f"--target: {run.folder} has no measure {name!r}; {nearest(name, measured)}")


def _results(run: Results, goals: dict[str, list[float]] | None) -> list[dict[str, Any]]:
    """One entry per algorithm: its rounds, its seconds, and the cost of reaching the targets."""
    from proxfed.report.summary import result_table

    kept = ("algorithm", "status", "rounds", "sim_seconds", "reached")
    table = result_table(run, run.targets if goals is None else goals)
    return [{k: v for k, v in entry.items() if k in kept} for entry in table]


def _print(table: list[dict[str, Any]]) -> None:
    from proxfed.report.columns import show
    from proxfed.report.summary import rich_targets

    drawn = plain_table()
    for heading in ("algorithm", "rounds", "simulated", ""):
        drawn.add_column(heading, justify="right" if heading in ("rounds", "simulated") else "left")
    for entry in table:
        status = "" if entry["status"] == "finished" else entry["status"]
        cells = entry["algorithm"], show(entry["rounds"], "count"), show(entry["sim_seconds"], "seconds"), status
        drawn.add_row(*map(Text, cells))
    out.print(drawn)
    if (targets := rich_targets(table)) is not None:
        out.print()
        out.print(targets)
