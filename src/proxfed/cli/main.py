"""The command line: run, report, list; reproduce, results, simulate and data have files of their own.

Exit codes: 0 done, 1 failed on the way (what was computed is kept), 2 bad input (nothing was computed).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from proxfed import __version__
from proxfed.cli import data as cli_data
from proxfed.cli import reproduce as cli_reproduce
from proxfed.cli import results as cli_results
from proxfed.cli import simulate as cli_simulate
from proxfed.cli.common import CaseOption, ChangeOption, DataOption, Format, FormatOption, err, out, say
from proxfed.cli.progress import StopOnSignal, Watch, say_diverged
from proxfed.errors import ProxfedError, require
from proxfed.report.terminal import plain_table

app = typer.Typer(
    name="proxfed",
    help="Federated composite optimisation: one structured model over many data holders who never share their data.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_data.app)
app.add_typer(cli_results.app)


def _print_version(asked: bool) -> None:
    if asked:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


# ---- run -----------------------------------------------------------------------------------------------------------


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="A shipped experiment or your own file.")],
    change: ChangeOption = None,
    case: CaseOption = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The run folder; runs/NAME if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run, exactly.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    ranks: Annotated[int, typer.Option("--ranks", help="Spread the clients over this many processes.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for another rank.")] = 60.0,
    checkpoint: Annotated[
        float, typer.Option("--checkpoint", help="Seconds between checkpoints; 0: every round.")
    ] = 5.0,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Run an experiment: every algorithm in it, with every seed.

    Shows progress, prints the result table and writes report.html into the run folder. Ctrl-C stops after the current
    round; --resume goes on there, also after a crash, with bit-identical results.

    Examples: [bold]proxfed run demo -c rounds=50 -c "seeds=[0,1,2]" --out runs/quick[/bold], [bold]proxfed run demo -c
    algorithms.FedAvg.eta=0.5[/bold]
    """
    from proxfed.engine import ranks as network

    world = network.world()
    if ranks != 1 and world is None:
        from proxfed.engine.launch import launch

        raise typer.Exit(launch(ranks, sys.argv[1:]))

    from proxfed.harness.cases import read_cases, slug
    from proxfed.harness.execute import Plan
    from proxfed.harness.run_folder import RunFolder

    cases = read_cases(experiment, change or [], only=case or [])
    path = folder or Path("runs") / next(iter(cases.values())).name
    folders = {name: path / slug(name) for name in cases}
    leads = world is None or world[0] == 0
    begun = any(RunFolder(one).exists() for one in folders.values())
    require(begun or not (resume and leads), f"there is no run to resume in {path}")
    plan = Plan(cases, folders, data, resume, force, leads)
    if world is not None:
        network.connect(timeout)
    stop = StopOnSignal()
    started = time.monotonic()
    try:
        complete = plan.run(lambda name: Watch(leads and err.is_terminal, name), stop, world is not None, checkpoint)
    finally:
        network.disconnect()
    if not leads:
        raise typer.Exit(0 if complete else 1)
    if not complete:
        say(f"stopped; `proxfed run {experiment} --out {path} --resume` with the same settings goes on from here", err)
        raise typer.Exit(1)
    _finish(path, folders, format, time.monotonic() - started)
    states = [{"case": name} | state for name, one in folders.items() for state in RunFolder(one).status()]
    diverged = [state for state in states if state["status"] == "diverged"]
    say_diverged(diverged)
    raise typer.Exit(1 if diverged else 0)


def _finish(path: Path, folders: dict[str, Path], format: Format, seconds: float) -> None:
    from proxfed.report import write_report

    tables = {}
    for case, folder in folders.items():
        write_report([folder], folder / "report.html")
        tables[case] = _results(folder)
    if format is Format.json:
        found = {case: {"folder": str(folders[case]), "results": table} for case, table in tables.items()}
        print(json.dumps(found.get("", {"folder": str(path), "cases": found}), indent=1))
        return
    for case, table in tables.items():
        if case:
            say(case, style="bold")
        _print_results(table)
    pages = ", ".join(str(folder / "report.html") for folder in folders.values())
    say(f"{seconds:.0f} s. The report is in {pages}")


def _results(path: Path) -> list[dict[str, Any]]:
    """What each algorithm in a run folder reached."""
    from proxfed.harness.run_folder import RunFolder
    from proxfed.report import result_table
    from proxfed.report.targets import Results

    folder = RunFolder(path)
    return result_table(Results.of(folder), folder.config().get("targets"))


def _print_results(table: list[dict[str, Any]]) -> None:
    from proxfed.report import rich_table, rich_targets

    out.print(rich_table(table, out.width))
    if (targets := rich_targets(table)) is not None:
        out.print()
        out.print(targets)


app.command()(cli_reproduce.reproduce)


# ---- report --------------------------------------------------------------------------------------------------------


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    page: Annotated[
        Path | None, typer.Option("--out", help="The page; report.html in the first folder if not given.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Tables and plots from finished (or unfinished) runs; several folders are compared on one page.

    Example: [bold]proxfed report runs/demo runs/quick --out compare.html[/bold]
    """
    from proxfed.report import write_report

    page = page or folders[0] / "report.html"
    write_report(folders, page)
    tables = [_results(folder) for folder in folders]
    if format is Format.json:
        print(json.dumps({"report": str(page), "results": dict(zip(map(str, folders), tables, strict=True))}, indent=1))
        return
    for folder, table in zip(folders, tables, strict=True):
        say(str(folder), style="bold")
        _print_results(table)
    say(f"The report is in {page}")


app.command()(cli_simulate.simulate)


# ---- list ----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="algorithms, regularisers, compressors, topologies, ...; else all")
    ] = "",
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One of them, with what each setting means.")] = "",
    format: FormatOption = Format.table,
) -> None:
    """What there is to choose from, with the settings of each.

    Examples: [bold]proxfed list compressors[/bold], [bold]proxfed list algorithms depositum[/bold]
    """
    from proxfed.harness.catalogue import catalogue

    if name:
        _list_one(kind, name, format)
        return
    kinds = catalogue(kind)
    if format is Format.json:
        print(json.dumps(kinds, indent=1))
        return
    for title, entries in kinds.items():
        wide = (
            ["runs on", "needs", "sends", "different data", "paper"] if title == "algorithms" else ["settings", "about"]
        )
        table = plain_table("name", *wide, title=title)
        for entry in entries:
            table.add_row(*(Text(entry[column]) for column in ("name", *wide)))
        out.print(table)
        out.print()


def _list_one(kind: str, name: str, format: Format) -> None:
    from proxfed.harness.catalogue import about, find, recursion, settings

    make = find(kind, name)
    text = recursion(make) if kind == "algorithms" else about(make)
    if format is Format.json:
        print(json.dumps({"name": name, "about": text, "settings": [s._asdict() for s in settings(make)]}, indent=1))
        return
    out.print(text, highlight=False, markup=False)
    table = plain_table("name", "default", "meaning", title="settings")
    for setting in settings(make):
        table.add_row(*map(Text, (setting.name, setting.default or "", setting.about)))
    out.print()
    out.print(table)


def main() -> None:
    """The entry point: every error that is meant for the user is one sentence on stderr."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except ProxfedError as e:
        err.print(f"[red]error:[/red] {escape(str(e))}", highlight=False, soft_wrap=True)
        sys.exit(e.exit_code)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(1)
    except Exception as e:
        import click

        if isinstance(e, click.ClickException):
            if said := e.format_message():  # nothing, where help was printed instead
                err.print(f"[red]error:[/red] {escape(said)}", highlight=False, soft_wrap=True)
            sys.exit(2)
        raise
    sys.exit(code if isinstance(code, int) else 0)
