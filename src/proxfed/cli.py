"""The command line: run, report, list, data.

Exit codes: 0 done, 1 failed on the way (what was computed is kept), 2 bad input (nothing was computed).
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from proxfed import __version__, cli_data, cli_simulate
from proxfed.cli_common import CaseOption, ChangeOption, DataOption, Format, FormatOption
from proxfed.errors import MissingData, ProxfedError, require

if TYPE_CHECKING:
    from proxfed.claims import Comparison, Verdict
    from proxfed.reproduce import Part

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
err = Console(stderr=True)
out = Console()


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
    change: Annotated[
        list[str] | None,
        typer.Option("-c", "--change", metavar="KEY=VALUE", help="Change a setting, e.g. -c algorithms.fedavg.eta=0.1"),
    ] = None,
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

    Example: [bold]proxfed run demo -c rounds=50 -c "seeds=[0,1,2]" --out runs/quick[/bold]
    """
    from proxfed.networks import ranks as network

    world = network.world()
    if ranks != 1 and world is None:
        from proxfed.launch import launch

        raise typer.Exit(launch(ranks, sys.argv[1:]))

    from proxfed.cases import read_cases, slug
    from proxfed.experiment import Plan
    from proxfed.record import RunFolder

    cases = read_cases(experiment, change or [], only=case or [])
    path = folder or Path("runs") / next(iter(cases.values())).name
    folders = {name: path / slug(name) for name in cases}
    leads = world is None or world[0] == 0
    begun = any(RunFolder(one).exists() for one in folders.values())
    require(begun or not (resume and leads), f"there is no run to resume in {path}")
    plan = Plan(cases, folders, data, resume, force, leads)
    if world is not None:
        network.connect(timeout)
    stop = _StopOnSignal()
    started = time.monotonic()
    try:
        complete = plan.run(lambda name: _Watch(leads and err.is_terminal, name), stop, world is not None, checkpoint)
    finally:
        network.disconnect()
    if not leads:
        raise typer.Exit(0 if complete else 1)
    if not complete:
        err.print(f"stopped; `proxfed run {experiment} --resume` with the same settings goes on from here ({path})")
        raise typer.Exit(1)
    _finish(path, folders, format, time.monotonic() - started)
    states = [{"case": name} | state for name, one in folders.items() for state in RunFolder(one).status()]
    diverged = [state for state in states if state["status"] == "diverged"]
    _say_diverged(diverged)
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
            out.print(f"[bold]{_plain(case)}[/bold]", highlight=False)
        _print_results(table)
    pages = ", ".join(str(folder / "report.html") for folder in folders.values())
    out.print(f"{seconds:.0f} s. The report is in {pages}", highlight=False)


def _results(path: Path) -> list[dict[str, Any]]:
    """What each algorithm in a run folder reached."""
    from proxfed.record import RunFolder
    from proxfed.report import result_table

    folder = RunFolder(path)
    return result_table(folder.rows(), folder.status(), folder.config().get("targets"))


def _print_results(table: list[dict[str, Any]]) -> None:
    from proxfed.report import rich_table, rich_targets

    out.print(rich_table(table, out.width))
    if (targets := rich_targets(table)) is not None:
        out.print()
        out.print(targets)


def _say_diverged(diverged: list[dict[str, Any]]) -> None:
    for s in diverged:
        where = f"{s['case']}: " if s["case"] else ""
        err.print(f"[red]{_plain(where + s['algorithm'])}, seed {s['seed']}: {_plain(s['message'])}[/red]")


class _StopOnSignal:
    """The first Ctrl-C (or SIGTERM) asks the run to stop after its round; the second ends the process."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(number, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self.asked


class _Watch:
    """A progress bar per task: rounds, rounds/s and the current measures."""

    def __init__(self, show: bool, case: str) -> None:
        self.case = f"{case}: " if case else ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[measures]}"),
            console=err,
            disable=not show,
        )
        self.current: tuple[int, Any] | None = None
        self.began = (0, 0.0)

    def __enter__(self) -> _Watch:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, p: Any) -> None:
        if self.bar.disable:
            return
        if self.current is None or self.current[0] != p.task:
            name = f"{self.case}{p.task + 1}/{p.tasks} {p.label}, seed {p.seed}"
            self.current = p.task, self.bar.add_task(name, total=p.rounds, rate="", measures="")
            self.began = p.round, time.monotonic()
        rounds, seconds = p.round - self.began[0], time.monotonic() - self.began[1]
        rate = f"{rounds / seconds:.3g} rounds/s" if rounds and seconds > 0 else ""
        self.bar.update(self.current[1], completed=p.round, rate=rate)
        if p.row is not None:
            shown = [k for k in ("objective", "error", "gap", "accuracy") if p.row.get(k) is not None][:2]
            self.bar.update(self.current[1], measures="  ".join(f"{k} {p.row[k]:.3g}" for k in shown))


# ---- reproduce -----------------------------------------------------------------------------------------------------


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="PAPER[/EXPERIMENT]|FILE.toml", help="composite_fl/fig1_full, or yours.")
    ],
    quick: Annotated[bool, typer.Option("--quick/--full", help="Minutes on two cores, or the paper's scale.")] = True,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="How many seeds, instead of its own; raise it to add some later."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Another choice for what the paper leaves open.")
    ] = None,
    case: CaseOption = None,
    change: ChangeOption = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Or only judge what has been run before.")] = True,
    folder: Annotated[Path, typer.Option("--out", help="Where the run folders go.")] = Path("runs/reproduce"),
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Run the experiments of a paper, and hold its numbers and its claims against what came out.

    What was run before is taken up again, so that an interrupted reproduction goes on where it stopped.

    Example: [bold]proxfed reproduce composite_fl --quick[/bold]
    """
    from proxfed.experiment import Plan
    from proxfed.figures import MISSING, available
    from proxfed.report import write_report
    from proxfed.reproduce import comparisons, draw, select, verdicts

    parts = select(what, folder, quick=quick, seeds=seeds, variant=variant, cases=case or [], changes=change or [])
    figures: dict[str, list[Path]] = {}
    if run:
        stop = _StopOnSignal()
        if not available():
            err.print(_plain(MISSING), highlight=False, soft_wrap=True)
        for part in parts:
            plan = Plan(part.cases, part.folders(), data, resume=True, leave_out=True)
            if len(parts) == 1 and len(plan.missing) == len(part.cases):
                raise MissingData(next(iter(plan.missing.values())))
            for name, reason in plan.missing.items():
                err.print(f"not run: {part.name} {name}: {_plain(reason)}", highlight=False, soft_wrap=True)
            if not plan.run(lambda name: _Watch(err.is_terminal, name), stop):
                err.print("stopped; the same command goes on from here")
                raise typer.Exit(1)
            figures[part.name] = draw(part)
            for name, path in part.folders().items():
                if name not in plan.missing:
                    write_report([path], path / "report.html", figures[part.name])
    for part in parts:
        _say_diverged(part.diverged())
    results = [(part, comparisons(part), verdicts(part, quick)) for part in parts]
    if format is Format.json:
        found = {result[0].name: _reproduction(*result) for result in results}
        print(json.dumps(found, indent=1))
        return
    for part, compared, judged in results:
        figure = part.experiment.paper.figure if part.experiment.paper else ""
        out.print(f"[bold]{part.name}[/bold]  {figure}  {part.folder}", highlight=False, soft_wrap=True)
        for path in figures.get(part.name, []):
            out.print(f"figure {path}", highlight=False, soft_wrap=True)
        if compared:
            out.print(_beside(compared))
        out.print(_judged(judged))


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
            }
            for v in judged
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _beside(compared: list[Comparison]) -> Table:
    """Our numbers next to the paper's."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    headings = ["case"] if any(c.case for c in compared) else []
    for column in (*headings, "measure", "algorithm", "ours", "the paper's"):
        table.add_column(column, overflow="fold")
    for c in compared:
        paper = c.paper if isinstance(c.paper, str) else f"{c.paper:.6g}"
        cells = [*([c.case] if headings else []), c.measure, c.label, c.found, paper]
        table.add_row(*map(_plain, cells))
    return table


def _judged(judged: list[Verdict]) -> Table:
    colour = {"confirmed": "green", "not confirmed": "red", "not run": "yellow"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "the paper says", "ours"):
        table.add_column(column, overflow="fold")
    for v in judged:
        table.add_row(f"[{colour[v.status]}]{v.status}[/]", _plain(v.claim.says), _plain(v.found))
    return table


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
        out.print(f"[bold]{folder}[/bold]", highlight=False)
        _print_results(table)
    out.print(f"The report is in {page}", highlight=False)


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
    from proxfed.catalogue import catalogue

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
        table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for column in ("name", *wide):
            table.add_column(column, overflow="fold")
        for entry in entries:
            table.add_row(*(entry[column] for column in ("name", *wide)))
        out.print(table)
        out.print()


def _list_one(kind: str, name: str, format: Format) -> None:
    from proxfed.catalogue import about, find, recursion, settings

    make = find(kind, name)
    text = recursion(make) if kind == "algorithms" else about(make)
    if format is Format.json:
        print(json.dumps({"name": name, "about": text, "settings": [s._asdict() for s in settings(make)]}, indent=1))
        return
    out.print(text, highlight=False, markup=False)
    table = Table(title="settings", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("name", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for setting in settings(make):
        table.add_row(setting.name, setting.default or "", setting.about)
    out.print()
    out.print(table)


def main() -> None:
    """The entry point: every error that is meant for the user is one sentence on stderr."""
    try:
        code = app(standalone_mode=False)
    except ProxfedError as e:
        err.print(f"[red]error:[/red] {_plain(str(e))}", highlight=False, soft_wrap=True)
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
                err.print(f"[red]error:[/red] {_plain(said)}", highlight=False, soft_wrap=True)
            sys.exit(2)
        raise
    sys.exit(code if isinstance(code, int) else 0)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
