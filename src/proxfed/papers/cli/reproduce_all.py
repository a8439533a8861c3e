"""`proxfed reproduce --all`: everything of the papers that has not been run yet, one case after the other, for days."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from proxfed.cli.common import INTERRUPTED, Format
from proxfed.errors import InputError, RunError, require
from proxfed.report.columns import show
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say, stop_on_signal

if TYPE_CHECKING:
    from proxfed.papers.queue import Waiting

HOUR = 3600.0


def reproduce_all(
    what: str | None, folder: Path, results: Path, *,
    quick: bool, data: str | None, jobs: int | None, budget: float | None, listing: bool, format: Format,
) -> None:  # fmt: skip
    """Run, or list, what neither `results` nor the run folders in `folder` have, the cheapest first."""
    from proxfed.papers.queue import waiting
    from proxfed.papers.reproduce import experiments_of, papers

    names = experiments_of(what) if what is not None else [name for some in papers().values() for name in some]
    found = waiting(names, folder, results, quick=quick, directory=data)
    if listing:
        _list(found, budget, format)
        return
    require(format is Format.table, "--format json needs --list: what is run is judged with --no-run, case by case")
    for w in found:
        if reason := _left_out(w, budget):
            say(f"left out: {w}: {reason}", err)
    todo = [w for w in found if not _left_out(w, budget)]
    failed = [w for k, w in enumerate(todo) if not _run(w, k, todo[k:], folder, data, jobs)]
    form = "quick" if quick else "full"
    done = f"{len(todo) - len(failed)} of {len(todo)} are done; {len(found) - len(todo)} were left out"
    say(f"{done}. `proxfed reproduce PAPER --{form} --no-run --out {folder}` judges them.")
    raise typer.Exit(1 if failed else 0)


def _left_out(w: Waiting, budget: float | None) -> str:
    """Why a case is not run; empty if it is."""
    if w.missing:
        return w.missing
    if budget is None or (w.cost.seconds is not None and w.cost.seconds <= budget * HOUR):
        return ""
    return f"{_cost(w)}, where --budget allows {budget:g} h"


def _run(w: Waiting, k: int, rest: list[Waiting], folder: Path, data: str | None, jobs: int | None) -> bool:
    """Carry out one case, from where it stopped; False if it cannot be, which is no reason to leave the others."""
    from proxfed.harness.plan import Plan
    from proxfed.report.page import write_report

    after = sum(other.cost.seconds or 0.0 for other in rest[1:])
    resumed = ", resumed" if w.begun else ""
    say(f"{k + 1} of {k + len(rest)}: {w}{resumed}: {_cost(w)}; {_time(after)} after it", err)
    started = time.monotonic()
    try:
        part = w.part(folder)
        part.check()
        plan = Plan(part.cases, part.folders, data, resume=True)
        for remark in plan.remarks:
            say(remark, err)
        with stop_on_signal() as stop:
            found = plan.run(stop, jobs=jobs)
    except (InputError, RunError) as e:
        say(f"failed: {w}: {e}", err, "red")
        return False
    if stop():
        say("stopped; the same command resumes it", err)
        raise typer.Exit(INTERRUPTED)
    for case, results in found.items():
        write_report([results], part.folders[case].path / "report.html")
    say(f"done: {w}: {_time(time.monotonic() - started)}", err)
    return True


def _list(found: list[Waiting], budget: float | None, format: Format) -> None:
    if format is Format.json:
        lines = [
            {
                "experiment": w.name,
                "case": w.case,
                "seeds": list(w.seeds),
                "begun": w.begun,
                "core_seconds": w.cost.seconds,
                "known_from": w.cost.known_from,
                "left_out": _left_out(w, budget),
            }
            for w in found
        ]
        print(json.dumps(lines, indent=1))
        return
    if not found:
        say("Everything has been run.")
        return
    table = plain_table()
    table.add_column("hours", justify="right")
    table.add_column("what", overflow="fold")
    for heading in ("seeds", "known from", ""):
        table.add_column(heading, no_wrap=True)
    for w in found:
        hours = "?" if w.cost.seconds is None else f"{w.cost.seconds / HOUR:,.2f}"
        note = "no data" if w.missing else "left out" if _left_out(w, budget) else "begun" if w.begun else ""
        table.add_row(*map(Text, (hours, str(w), str(len(w.seeds)), w.cost.known_from, note)))
    out.print(table)
    todo = [w for w in found if not _left_out(w, budget)]
    total = sum(w.cost.seconds or 0.0 for w in todo)
    say(f"\n{len(todo)} to be run: {_time(total)} of one core, estimated from kept runs and the size of the settings.")


def _cost(w: Waiting) -> str:
    return "of unknown cost" if w.cost.seconds is None else f"about {_time(w.cost.seconds)} of one core"


def _time(seconds: float) -> str:
    return show(seconds, "seconds") if seconds < 100 * HOUR else f"{seconds / HOUR:,.0f} h"
