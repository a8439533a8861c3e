"""`proxfed run`: every algorithm of an experiment, with every seed."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxfed.cli.common import (
    INTERRUPTED,
    CaseOption,
    ChangeOption,
    CheckpointOption,
    DataOption,
    DeviceOption,
    ExperimentArgument,
    Format,
    FormatOption,
    HookOption,
    JobsOption,
    OnlyOption,
    check_anew,
    command_line,
    hooked,
    resume_command,
    with_device,
)
from proxfed.errors import require
from proxfed.report.terminal import err, print_results, say, say_messages, stop_on_signal

if TYPE_CHECKING:
    from proxfed.harness.results import Results


def run(
    experiment: ExperimentArgument,
    change: ChangeOption = None,
    case: CaseOption = None,
    only: OnlyOption = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default: runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a run exactly; you may add seeds, algorithms and rounds.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
    hook: HookOption = None,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    ranks: Annotated[
        int, typer.Option("--ranks", help="Split the clients over this many processes; rows agree to rounding.")
    ] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for another rank.")] = 60.0,
    checkpoint: CheckpointOption = 5.0,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Run an experiment: every algorithm in it, with every seed.

    Shows progress, prints the result table and writes report.html into the run folder. Ctrl-C stops after the current
    round; --resume continues it, also after a crash, bit for bit if threads and versions are the same.
    In a Slurm array, each member takes the algorithms and seeds that no other member has taken.

    Examples: [bold]proxfed run demo -c rounds=50 -c "seeds=[0,1,2]" --out runs/quick[/bold], [bold]proxfed run demo -c
    algorithms.FedAvg.eta=0.5[/bold], [bold]proxfed run demo -c stop.patience=10 --hook tensorboard[/bold]
    """
    from proxfed.engine.allocator import tune_process
    from proxfed.harness.build import build_study
    from proxfed.harness.experiment import read_cases, slug
    from proxfed.harness.folder.run_folder import RunFolder
    from proxfed.harness.plan import Plan, check_seconds

    check_anew(resume, force)
    check_seconds(checkpoint, timeout)
    tune_process()
    changes = with_device(change, device)
    cases = {name: hooked(e, hook) for name, e in read_cases(experiment, changes, only=case or []).items()}
    path = folder or Path("runs") / next(iter(cases.values())).name
    folders = {name: RunFolder(path / slug(name)) for name in cases}
    array = "SLURM_ARRAY_TASK_ID" in os.environ
    require(
        not (array and force), "--force: members of a Slurm array would replace each other's work; remove the folder"
    )
    build = partial(build_study, only=only or [])
    plan = Plan(cases, folders, data, resume or array, force, only=only or [], build=build)
    require(plan.begun or not (resume and plan.leads), f"there is no run to resume in {path}")
    for remark in plan.remarks if plan.leads else ():
        say(remark, err)
    started = time.monotonic()
    with stop_on_signal() as stop:
        found = plan.run(stop, jobs=jobs, ranks=ranks, checkpoint_seconds=checkpoint, timeout=timeout)
    if not plan.leads:
        raise typer.Exit(INTERRUPTED if stop() else 0)
    if stop():
        say(f"stopped; to resume: {resume_command()}", err)
        raise typer.Exit(INTERRUPTED)
    _show(path, found, format, time.monotonic() - started)
    for name, results in found.items():
        say_messages(results, name)


def _show(path: Path, found: dict[str, Results], format: Format, seconds: float) -> None:
    pages = []
    for results in found.values():
        assert results.folder is not None
        pages.append(results.report(results.folder / "report.html", command_line()))
    if format is Format.json:
        tables = {case: {"folder": str(r.folder), "results": r.table()} for case, r in found.items()}
        print(json.dumps(tables.get("", {"folder": str(path), "cases": tables}), indent=1))
        return
    for case, results in found.items():
        if case:
            say(case, style="bold")
        print_results(results.table())
        if not results.complete:
            say("Not all algorithms and seeds are done: --resume runs what is missing.")
    say(f"{seconds:.0f} s. The report is in {', '.join(map(str, pages))}")
