"""`proxfed reproduce`: the papers' experiments, with our numbers beside theirs, and their claims judged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from proxfed.cli.common import (
    INTERRUPTED,
    CaseOption,
    ChangeOption,
    DataOption,
    Format,
    FormatOption,
    JobsOption,
    OnlyOption,
)
from proxfed.errors import InputError, MissingData, require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say, say_messages, stop_on_signal

if TYPE_CHECKING:
    from proxfed.papers.claims import Verdict
    from proxfed.papers.comparisons import Comparison
    from proxfed.papers.reproduce import Part


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(metavar="PAPER[/EXPERIMENT]|FILE.toml", help="composite_fl/fig1_full, or yours."),
    ] = None,
    quick: Annotated[
        bool | None,
        typer.Option("--quick/--full", help="Minutes to an hour, or the paper's scale; with --all: the paper's scale."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="How many seeds, instead of its own; raise it to add some later."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Another choice for what the paper leaves open.")
    ] = None,
    case: CaseOption = None,
    only: OnlyOption = None,
    change: ChangeOption = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Or only judge what has been run before.")] = True,
    jobs: JobsOption = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the run folders go.")] = Path("runs/reproduce"),
    data: DataOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Whatever has not been run yet, of all papers or of one, the cheapest first.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="With --all: show what is left and what it takes.")] = False,
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0, metavar="HOURS", help="With --all: leave out what takes longer on one core."),
    ] = None,
    kept: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="With --all: kept results, which are not run again.")
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="The default: resume what has begun.", show_default=False)
    ] = True,
    format: FormatOption = Format.table,
) -> None:
    """Run the experiments of a paper, print our numbers beside the paper's, and judge its claims.

    What was run before is taken up again, so that an interrupted reproduction goes on where it stopped.

    Examples: [bold]proxfed reproduce composite_fl --quick[/bold], [bold]proxfed reproduce --all --list[/bold],
    [bold]proxfed reproduce --all --resume --jobs 2 --budget 10[/bold]
    """
    if everything:
        from proxfed.papers.cli.reproduce_all import reproduce_all

        plain = run and seeds is None and variant is None and not case and not only and not change
        require(plain, "--all takes no --seeds, --variant, --case, --only, -c, --no-run: it runs the files as they are")
        reproduce_all(
            what, folder, kept,
            quick=bool(quick), data=data, jobs=jobs, budget=budget, listing=listing, format=format,
        )  # fmt: skip
        return
    require(not listing and budget is None, "--list and --budget need --all")
    if what is None:
        raise InputError("say which PAPER, PAPER/EXPERIMENT or FILE.toml, or --all")
    quick = quick is not False
    from proxfed.harness.plan import KEPT_BYTES, Plan
    from proxfed.papers.reproduce import select
    from proxfed.report.page import write_report
    from proxfed.report.plots import MISSING, available

    require(
        run or (seeds is None and not only), "--no-run judges all that has been run: it takes no --seeds, no --only"
    )
    parts = select(what, folder, quick=quick, seeds=seeds, variant=variant, cases=case or [], changes=change or [])
    for part in parts:
        part.check()
    figures: dict[str, list[Path]] = {}
    if run:
        if not available():
            say(MISSING, err)
        # Every plan is made before the first is run, so that bad input is refused at once.
        share = KEPT_BYTES // len(parts)
        how: dict[str, Any] = {"resume": True, "leave_out": True, "only": only or [], "keep": share}
        plans = [Plan(part.cases, part.folders, data, **how) for part in parts]
        for remark in dict.fromkeys(remark for plan in plans for remark in plan.remarks):
            say(remark, err)
        for part, plan in zip(parts, plans, strict=True):
            if len(parts) == 1 and len(plan.missing) == len(part.cases):
                raise MissingData(next(iter(plan.missing.values())))
            for name, reason in plan.missing.items():
                say(f"not run: {part.name} {name}: {reason}", err)
            with stop_on_signal() as stop:
                part.ran = plan.run(stop, jobs=jobs)
            if stop():
                say("stopped; the same command resumes it", err)
                raise typer.Exit(INTERRUPTED)
            figures[part.name] = part.draw()
            for name, results in part.ran.items():
                write_report([results], part.folders[name].path / "report.html", figures[part.name])
    for part in parts:
        for name, results in part.results.items():
            say_messages(results, name)
    judged_parts = [(part, part.comparisons(), part.verdicts()) for part in parts]
    if format is Format.json:
        found = {result[0].name: _reproduction(*result) for result in judged_parts}
        print(json.dumps(found, indent=1))
        return
    for part, compared, judged in judged_parts:
        out.print(Text.assemble((part.name, "bold"), f"  {part.file.paper.figure}  {part.folder}"), soft_wrap=True)
        for path in figures.get(part.name, []):
            say(f"figure {path}")
        if compared:
            out.print(_beside(compared))
        if judged:
            out.print(_judged(judged))
        if not compared and not judged:
            say("The file has no [[claims]] and no [[reported]] numbers to compare with.")


def _reproduction(part: Part, compared: list[Comparison], judged: list[Verdict]) -> dict[str, Any]:
    """As plain tables; a target that was not reached is null."""
    return {
        "folder": str(part.folder),
        "diverged": part.diverged(),
        "reported": [
            {
                "case": c.case,
                "measure": c.reported.measure,
                "target": c.reported.target,
                "axis": c.reported.axis,
                "label": c.label,
                "paper": c.paper,
                "ours": c.found,
                "seeds": [_finite(value) for value in c.ours],
            }
            for c in compared
        ],
        "claims": [
            {
                "says": v.claim.says,
                "status": v.status,
                "found": v.found,
                "cases": [
                    {"case": j.case, "holds": j.holds, "values": {k: _finite(x) for k, x in j.values.items()}}
                    for j in v.cases
                ],
                "not_run": list(v.not_run),
            }
            for v in judged
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _beside(compared: list[Comparison]) -> Table:
    """Our numbers next to the paper's."""
    headings = ["case"] if any(c.case for c in compared) else []
    table = plain_table(*headings, "measure", "algorithm", "ours", "the paper's")
    for c in compared:
        cells = [*([c.case] if headings else []), c.measure, c.label, c.found, c.printed]
        table.add_row(*cells)
    return table


def _judged(judged: list[Verdict]) -> Table:
    colour = {"confirmed": "green", "not confirmed": "red", "not run": "yellow"}
    table = plain_table("", "the paper says", "ours")
    for v in judged:
        table.add_row(Text(v.status, style=colour[v.status]), v.claim.says, v.found)
    return table
