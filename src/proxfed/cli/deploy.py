"""`proxfed deploy`: an experiment over sites, whose rows stay there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxfed.cli.between import Connection, KitOption, LoopbackOption, SitesOption, SuperlinkOption, connected
from proxfed.cli.common import (
    INTERRUPTED,
    ChangeOption,
    DataOption,
    Format,
    FormatOption,
    HookOption,
    OnlyOption,
    check_anew,
    command_line,
    hooked,
    resume_command,
)
from proxfed.cli.silo import CarrierName, CarrierOption
from proxfed.errors import require
from proxfed.report.terminal import err, print_results, say, say_messages, stop_on_signal

if TYPE_CHECKING:
    from proxfed.harness.experiment import Experiment
    from proxfed.harness.results import Results


def deploy(
    experiment: Annotated[
        str, typer.Argument(metavar="FILE.toml", help="Experiment file; its data are the sites' rows.")
    ],
    carrier: CarrierOption = CarrierName.nvflare,
    kit: KitOption = None,
    superlink: SuperlinkOption = "",
    sites: SitesOption = "",
    loopback: LoopbackOption = None,
    change: ChangeOption = None,
    only: OnlyOption = None,
    hook: HookOption = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run if it has begun.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", help="Seconds after which a round continues without missing sites."),
    ] = None,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Run an experiment between organisations: each `proxfed silo` holds its rows, and this process coordinates.

    Start it on the machine of the carrier's server. Rows, report and run folder are the same as for `proxfed run`. It
    may be killed at any time: --resume continues it, bit for bit. With --loopback 3 everything runs on this machine,
    with real processes, sockets and certificates, and the models are compared with those of `proxfed run`.

    Examples: [bold]proxfed deploy trial.toml --kit kits/deploy@example.org[/bold], [bold]proxfed deploy trial.toml
    --loopback 3 --carrier flower[/bold]
    """
    from proxfed.silos.carriers.loopback_sites import make_sites
    from proxfed.silos.coordinator.deploy import deploy as carry_out

    os.umask(0o077)  # only this user may read what sites send
    check_anew(resume, force)
    e = hooked(read_experiment(experiment, change or []), hook)
    to = Connection(carrier, kit, superlink, sites, loopback)
    to.check()
    path = folder or Path("runs") / e.name
    started = time.monotonic()

    def known() -> tuple[str, ...]:
        return _begun(path) if resume else ()

    def make(beside: Path) -> tuple[str, ...]:
        return make_sites(e, data, beside, loopback or 0)

    with connected(to, path, "deploy", known, make) as desk, stop_on_signal() as stop:
        results = carry_out(
            e, desk, path, resume=resume, force=force, only=only or [], deadline=deadline, stop=stop,
        )  # fmt: skip
        if stop():
            say(f"stopped; to resume in {path}: {resume_command()}", err)
            raise typer.Exit(INTERRUPTED)
    _show(path, results, format, time.monotonic() - started)
    say_messages(results)
    if loopback is not None:
        _compare(e, data, results)


def read_experiment(source: str, changes: list[str]) -> Experiment:
    """The experiment; its own data are not needed."""
    from proxfed.harness.experiment import parse, read_table
    from proxfed.harness.overrides import override

    table, where = read_table(source)
    table.setdefault("data", {})
    for text in changes:
        override(table, text)
    e = parse(table, where)
    require(not e.cases, f"{where}: has cases; between organisations a file has one")
    return e


def _begun(path: Path) -> tuple[str, ...]:
    """The sites of an existing run."""
    from proxfed.silos.coordinator.deploy import recorded

    file = path / "silos.json"
    return recorded(file).job.sites if file.exists() else ()


def _show(path: Path, results: Results, format: Format, seconds: float) -> None:
    page = results.report(path / "report.html", command_line())
    if format is Format.json:
        print(json.dumps({"folder": str(path), "results": results.table()}, indent=1))
        return
    print_results(results.table())
    if not results.complete:
        say("Not all algorithms and seeds are done: --resume runs what is missing.")
    say(f"{seconds:.0f} s. The report is in {page}")


def _compare(e: Experiment, data: str | None, results: Results) -> None:
    """The same run with all rows in one place."""
    from proxfed.harness.build import build_study
    from proxfed.harness.compare import run_study

    together = run_study(build_study(e, data), progress=False)
    apart = max(float((results.models[name] - x).abs().max()) for name, x in together.models.items())
    say(f"The models and those of `proxfed run`, with all rows in one place, differ by at most {apart:.3g}.")
