"""`proxfed sweep`: an experiment over a grid of any of its settings."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from proxfed.cli.common import (
    AxisOption,
    ChangeOption,
    CheckpointOption,
    DataOption,
    DeviceOption,
    ExperimentArgument,
    Format,
    FormatOption,
    JobsOption,
    OneCaseOption,
    check_anew,
    read_over,
    with_device,
)
from proxfed.errors import require
from proxfed.report.terminal import print_results, say, say_messages


def sweep(
    experiment: ExperimentArgument,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=VALUES", help="A setting and its values; repeat for a grid."),
    ] = None,
    measure: Annotated[str | None, typer.Option("--measure", help="Measure shown by heat maps and curves.")] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="MEASURE=VALUE", help="Show the cost of reaching this target instead."),
    ] = None,
    axis: AxisOption = None,
    change: ChangeOption = None,
    device: DeviceOption = None,
    case: OneCaseOption = "",
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; default: runs/NAME-sweep.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a sweep; you may add values.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing sweep.")] = False,
    jobs: JobsOption = None,
    checkpoint: CheckpointOption = 5.0,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Run an experiment for every combination of some of its settings.

    A setting is algorithms.LABEL.KEY, *.KEY for every algorithm that has it, or any other of the file, such as
    problem.l2, data.partition.alpha or rounds. Values are a list such as [0.1, 1.0], a..b (whole numbers),
    log(a,b,count) or linear(a,b,count). Settings of algorithms become labelled algorithms; other settings become cases
    with a folder each. Prints the table, and writes a page with a heat map over two settings, or a curve over one, for
    every algorithm.

    Examples: [bold]proxfed sweep demo --over "FedAvg.eta=log(0.1,10,5)" --over "FedAvg.K=[1, 5, 20]"[/bold],
    [bold]proxfed sweep demo --over "problem.l2=[0.01, 0.1]" --measure gap --jobs 2[/bold]
    """
    from proxfed.engine.allocator import tune_process
    from proxfed.harness.build import read_study
    from proxfed.harness.folder.run_folder import RunFolder
    from proxfed.tuning.sweep import sweep as sweep_study

    check_anew(resume, force)
    tune_process()
    study = read_study(experiment, with_device(change, device), case, data)
    path = folder or Path("runs") / f"{study.name}-sweep"
    begun = RunFolder(path).exists() or any(path.glob("*/config.toml"))
    require(begun or not resume, f"there is no sweep to resume in {path}")
    started = time.monotonic()
    swept = sweep_study(
        study, read_over(over), measure=measure, target=target, axis=axis, out=path, resume=resume, force=force,
        jobs=jobs, checkpoint_seconds=checkpoint,
    )  # fmt: skip
    if format is Format.json:
        print(json.dumps({"folder": str(path), "judged by": str(swept.judge), "results": swept.table()}, indent=1))
    else:
        print_results(swept.table())
        say(f"{time.monotonic() - started:.0f} s. By {swept.judge}; the report is in {swept.page}")
    for name, results in swept.items():
        say_messages(results, name)
