"""`proxfed tune`: tunes the algorithms of an experiment with the same effort for each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from proxfed.cli.common import (
    INTERRUPTED,
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
    command_line,
    read_over,
    resume_command,
    with_device,
)
from proxfed.errors import require
from proxfed.report.terminal import err, out, print_results, say


def tune(
    experiment: ExperimentArgument,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="KEY=SPACE", help="A setting and its search space; may be repeated."),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", help="Total rounds per algorithm; default: 5 times the experiment's."),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", help="Measure to judge by; default: on held-out data, else the objective."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="MEASURE=VALUE", help="Judge by the cost of reaching this target.")
    ] = None,
    axis: AxisOption = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds of the finalists; default: the experiment's.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds per configuration; all count in the budget.")] = 1,
    validation: Annotated[
        float, typer.Option("--validation", help="Fraction of every client's training rows held out for judging.")
    ] = 0.2,
    search: Annotated[
        str,
        typer.Option(
            "--search", help="halving: evenly spread points; optuna: points chosen by a model of earlier ones."
        ),
    ] = "halving",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search (only with --search optuna).")] = 0,
    run: Annotated[bool, typer.Option("--run", help="Afterwards run the tuned experiment into DIR/run.")] = False,
    change: ChangeOption = None,
    device: DeviceOption = None,
    case: OneCaseOption = "",
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; default: runs/NAME-tuned.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a search exactly.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing search.")] = False,
    jobs: JobsOption = None,
    checkpoint: CheckpointOption = 5.0,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Tune the algorithms of an experiment, with the same effort for each.

    Successive halving: many configurations for a few rounds, the best third of them for three times as many, and so on;
    every algorithm has as many configurations and rounds. If the experiment has test data, configurations are judged on
    held-out training rows, and the test data are not touched. Writes DIR/tuned.toml for `proxfed run`, with a record of
    the search, and DIR/report.html with all configurations.

    A setting is algorithms.LABEL.KEY, LABEL.KEY, or *.KEY for every algorithm that has it. A space is log(a,b),
    linear(a,b), a..b (whole numbers), a list such as [0.1, 1.0], or around(30): from a thirtieth of the file's value to
    thirty times it.

    Examples: [bold]proxfed tune demo --over "FedAvg.eta=log(1e-2,10)" --budget 600[/bold], [bold]proxfed tune mine.toml
    --over "*.eta=around(30)" --target accuracy=0.9 --axis bytes --run[/bold]
    """
    from proxfed.engine.allocator import tune_process
    from proxfed.harness.build import read_study
    from proxfed.harness.compare import run_study
    from proxfed.tuning.tune import tune as tune_study
    from proxfed.tuning.tune_page import about, rich_tuned

    check_anew(resume, force)
    tune_process()
    study = read_study(experiment, with_device(change, device), case, data)
    path = folder or Path("runs") / f"{study.name}-tuned"
    require(not resume or (path / "tuning.toml").exists(), f"there is no tuning to resume in {path}")
    started = time.monotonic()
    tuned = tune_study(
        study, read_over(over), budget, measure=measure, target=target, axis=axis, rounds=rounds, seeds=seeds,
        validation=validation, search=search, seed=seed, out=path, resume=resume, force=force, jobs=jobs,
        checkpoint_seconds=checkpoint,
    )  # fmt: skip
    seconds = time.monotonic() - started
    if format is Format.table:
        out.print(rich_tuned(tuned, out.width))
        say(about(tuned))
        for note in tuned.notes():
            say(f"{note}.", style="yellow")
        say(f"{seconds:.0f} s. The tuned experiment is {path / 'tuned.toml'}, the report {path / 'report.html'}")
    results = None
    if run:
        results = run_study(tuned.study, path / "run", jobs=jobs, force=force)
        results.report(path / "run" / "report.html", command_line())
    if format is Format.json:
        found = {"folder": str(path), "judged by": str(tuned.judge), "tuned": tuned.table(), "notes": tuned.notes()}
        print(json.dumps(found | ({} if results is None else {"results": results.table()}), indent=1))
    elif results is not None:
        print_results(results.table())
        say(f"The report is in {path / 'run' / 'report.html'}")
    if results is not None and not results.complete:
        say(f"stopped; to resume: {resume_command()}", err)
        raise typer.Exit(INTERRUPTED)
