"""`proxfed watch`: running experiments, in the terminal or on a page that refreshes itself."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxfed.errors import InputError
from proxfed.report.columns import RunStatus, column, number, show
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say, stop_on_signal, visible

if TYPE_CHECKING:
    from proxfed.harness.under_way import TaskView, View

IDLE, PREPARING = 5.0, 120.0
"""Seconds without a working process after which a run counts as stopped; longer before its first round, while data are
loaded and a reference is solved."""

SHOWN = ("objective", "gap", "error", "accuracy", "nonzeros")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or the folder of several cases.")],
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between updates.")] = 2.0,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="Also write a page that refreshes itself.")
    ] = None,
) -> None:
    """Watch a run that another process works on, until it ends.

    Shows the status, round and last measures of each algorithm and seed, and for a deployment the sites that the
    coordinator waits for. Without a terminal it prints a line for each change. Nothing is written into the run folder.

    The exit code is 0 once the run is complete, and 1 if no process works on it any more.

    Examples: [bold]proxfed watch runs/demo[/bold], [bold]proxfed watch runs/demo --page /tmp/demo.html[/bold]
    """
    from proxfed.harness.under_way import look

    view, worked, seen = look(folder), time.monotonic(), dict[str, str]()
    rates = {task.name: (task.round, time.monotonic()) for task in view.tasks}
    live = sys.stdout.isatty()
    with stop_on_signal() as stop, Live(console=out, auto_refresh=False, transient=True) as display:
        while True:
            worked = time.monotonic() if view.under_way else worked
            idle = time.monotonic() - worked >= (IDLE if view.begun else PREPARING)
            over = view.done or idle or stop()
            if page is not None:
                _write(view, page, None if over else every)
            if live:
                display.update(_table(view, rates), refresh=True)
            else:
                _print_changes(view, rates, seen)
            if over:
                break
            time.sleep(every)
            view = look(folder)
    if live:
        out.print(_table(view, rates))
    if not view.done:
        say("stopped watching" if stop() else "no process works on it: `proxfed run` with --resume continues it")
        raise typer.Exit(1)


def _write(view: View, page: Path, every: float | None) -> None:
    from proxfed.report.page import write_report

    counts = Counter("waiting" if task.status is None else str(task.status) for task in view.tasks)
    notice = "; ".join(filter(None, [", ".join(f"{n} {status}" for status, n in counts.items()), _waits(view)]))
    try:
        write_report(view.results, page, refresh=None if every is None else max(1, round(every)), notice=notice)
    except InputError:  # a task ended meanwhile, and its model is newer than the rows read
        if every is None:
            raise


def _rate(task: TaskView, rates: dict[str, tuple[int, float]]) -> str:
    """Rounds per second since the first look."""
    first, since = rates.setdefault(task.name, (task.round, time.monotonic()))
    if task.status is not RunStatus.RUNNING or task.round == first:
        return ""
    return f"{(task.round - first) / (time.monotonic() - since):.3g}/s"


def _measures(task: TaskView) -> str:
    if task.row is None:
        return ""
    found = {name: number(task.row, name) for name in SHOWN}
    return "  ".join(f"{name} {show(v, column(name).kind)}" for name, v in found.items() if v is not None)


def _waits(view: View) -> str:
    said = ", ".join(f"{site} ({seconds:.0f} s)" for site, seconds in view.waiting.items())
    return f"waiting for {said}" if said and view.under_way else ""


def _table(view: View, rates: dict[str, tuple[int, float]]) -> Table:
    table = plain_table("task", "status", "round", "rate", "last row")
    for task in view.tasks:
        status = "waiting" if task.status is None else str(task.status)
        cells = (task.name, status, f"{task.round}/{task.rounds}", _rate(task, rates), task.message or _measures(task))
        table.add_row(*(Text(visible(cell)) for cell in cells))
    if said := _waits(view):
        table.caption = Text(visible(said))
    return table


def _print_changes(view: View, rates: dict[str, tuple[int, float]], seen: dict[str, str]) -> None:
    """A line for each task with progress, and for the sites that the coordinator waits for."""
    lines = {
        task.name: f"{task.name}: {task.status}, round {task.round} of {task.rounds}  {task.message or _measures(task)}"
        for task in view.tasks
        if task.status is not None
    }
    lines["sites"] = f"waiting for {', '.join(view.waiting)}" if _waits(view) else ""
    for name, line in lines.items():
        if seen.get(name, "") != line:
            seen[name] = line
            if line:
                say(line.rstrip())
