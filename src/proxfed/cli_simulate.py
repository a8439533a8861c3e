"""`proxfed simulate`: how long finished runs would have taken on other devices and links."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxfed.cli_common import Format, FormatOption
from proxfed.errors import InputError, require

out = Console()


def simulate(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    profile: Annotated[
        str | None, typer.Option("--profile", help="Devices and links: `proxfed list profiles` has them all.")
    ] = None,
    time: Annotated[Path | None, typer.Option("--time", metavar="FILE.toml", help="Your own, a table [time].")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="MEASURE=VALUE", help="Show the time to this; else the run's own targets."),
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--out", help="The new run folder, or where several go; DIR-PROFILE if not given.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Rewrite the run folders themselves.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is there.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """How long the runs would have taken on such devices and links; nothing is trained again.

    Each run folder is copied with the column sim_seconds filled in. Without --profile and --time the run's own table
    [time] is used.

    Example: [bold]proxfed simulate runs/demo --profile wan --target accuracy=0.9[/bold]
    """
    from proxfed.record import RunFolder
    from proxfed.simulate.after import simulate, simulate_in_place, timing_of
    from proxfed.simulate.timing import Timing, read_time

    require(profile is None or time is None, "--profile and --time exclude each other")
    require(not (in_place and place), "--in-place and --out exclude each other")
    goals = _goals(target) if target else None
    given = Timing.read({"profile": profile}) if profile else Timing.read(read_time(time)) if time else None
    called = profile or (time.stem if time else "time")
    found = []
    for folder in folders:
        timing = given or timing_of(RunFolder(folder))
        if in_place:
            result = simulate_in_place(folder.resolve(), timing)
        else:
            beside = folder.resolve().name
            where = folder.resolve().with_name(f"{beside}-{called}") if place is None else place
            result = simulate(folder, timing, where / beside if place and len(folders) > 1 else where, force)
        found.append((result.path, _table(result, goals)))
    if format is Format.json:
        print(json.dumps([{"folder": str(path), "results": table} for path, table in found], indent=1))
        return
    for path, table in found:
        out.print(f"{path}", style="bold", highlight=False, markup=False, soft_wrap=True)
        out.print(_drawn(table))


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


def _table(folder: Any, goals: dict[str, list[float]] | None) -> list[dict[str, Any]]:
    """One entry per algorithm: its rounds, its seconds, and those to each target (None: it did not reach it)."""
    from proxfed.targets import Results, half_reached

    results = Results.of(folder)
    labels = list(dict.fromkeys(row["algorithm"] for row in results.rows))
    measured = {name for row in results.rows for name, value in row.items() if value is not None}
    goals = folder.config().get("targets", {}) if goals is None else goals
    for measure in goals:
        if measure not in measured:
            raise InputError(f"{folder.path} has no measure {measure!r}; it has {', '.join(sorted(measured))}")
    table = []
    for label in labels:
        histories = list(results.histories(label).values())
        entry: dict[str, Any] = {"algorithm": label, "rounds": max(h[-1]["round"] for h in histories)}
        ends = sorted(h[-1]["sim_seconds"] for h in histories)
        entry["sim_seconds"] = ends[(len(ends) - 1) // 2]
        for measure, values in goals.items():
            for value in values:
                first = half_reached(histories, measure, value, "sim_seconds")
                entry[f"to {measure} {value:g}"] = first if first is not None and math.isfinite(first) else None
        table.append(entry)
    return table


def _drawn(table: list[dict[str, Any]]) -> Table:
    from proxfed.report.columns import show

    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    names = list(table[0]) if table else ["algorithm"]
    for name in names:
        drawn.add_column(
            name.replace("sim_seconds", "all rounds take"), justify="left" if name == "algorithm" else "right"
        )
    for entry in table:
        cells = [entry["algorithm"], f"{entry['rounds']:,}"]
        cells += ["Did not reach" if entry[n] is None else show(entry[n], "seconds") for n in names[2:]]
        drawn.add_row(*map(Text, cells))
    return drawn
