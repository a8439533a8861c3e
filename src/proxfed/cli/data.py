"""`proxfed data`: list, check and download datasets, and show the clients' samples.

Tables of organisations are in tables.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from proxfed.cli import tables
from proxfed.cli.common import ChangeOption, DataOption, Format, FormatOption
from proxfed.errors import InputError, nearest, require
from proxfed.files import write
from proxfed.report.progress import Step, showing
from proxfed.report.summary import plain_table
from proxfed.report.terminal import out, say

app = typer.Typer(
    name="data",
    help="Data: list, check and download files, and show the samples of each client.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

app.command()(tables.schema)
app.command()(tables.describe)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets; `proxfed data list` shows all.")]


# ---- list ----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(data: DataOption = None, format: FormatOption = Format.table) -> None:
    """List every dataset, with a description and whether its files are present.

    Example: [bold]proxfed data list --data ~/data[/bold]
    """
    from proxfed.data.directory import data_directory
    from proxfed.harness.catalogue import catalogue

    entries: list[dict[str, Any]] = [
        {"name": entry["name"], "about": entry["about"], "files": _files(entry["name"], data)}
        for entry in catalogue("datasets")["datasets"]
    ]
    directory = data_directory(data)
    if format is Format.json:
        print(json.dumps({"directory": str(directory), "datasets": entries}, indent=1))
        return
    table = plain_table("name", "what it is", "files")
    for entry in entries:
        table.add_row(*map(Text, (entry["name"], entry["about"], _presence(entry["files"], directory))))
    out.print(table)
    say(f"\nFiles are looked for in {directory}; `proxfed data fetch NAME` downloads those that are not there.")


def _files(name: str, directory: str | None) -> list[dict[str, Any]]:
    """A dataset's public files and their locations, in the form with the most files present."""
    from proxfed.data import FILES

    files = []
    for collection in FILES.get(name, ()):
        forms = [form for form in (collection, collection.other_form) if form is not None]
        best = max(forms, key=lambda form: sum(path is not None for path in form.found(directory).values()))
        for file, path in best.found(directory).items():
            files.append({"path": str(path or best.place(directory) / file), "there": path is not None})
    return files


def _presence(files: list[dict[str, Any]], directory: Path) -> str:
    if not files:
        return "none needed"
    there = sum(file["there"] for file in files)
    folders = dict.fromkeys(_short(Path(file["path"]).parent, directory) for file in files)
    amount = f"all {there}" if there == len(files) else f"{there or 'none'} of {len(files)}"
    return f"{amount} in {', '.join(folders)}"


def _short(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


# ---- check ---------------------------------------------------------------------------------------------------------


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Datasets.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every dataset with files on this machine.")] = False,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Compare the checksums of the files with the published ones; the exit code is 1 if one differs.

    Example: [bold]proxfed data check mnist a9a[/bold]
    """
    from proxfed.data import FILES
    from proxfed.data import check as verdicts
    from proxfed.data.directory import data_directory

    require(bool(names) != all, "give the names of datasets or --all")
    directory = data_directory(data)
    chosen = names or [name for name in FILES if any(file["there"] for file in _files(name, data))]
    found = [
        {"dataset": name, "path": str(path), "state": state} for name in chosen for path, state in verdicts(name, data)
    ]
    if format is Format.json:
        print(json.dumps(found, indent=1))
    elif not found:
        say(f"There are no files of any dataset in {directory}")
    else:
        table = plain_table("dataset", "file", "verdict")
        for entry in found:
            colour = {"differs": "red", "as published": "green"}.get(entry["state"], "")
            cells = entry["dataset"], _short(Path(entry["path"]), directory), entry["state"]
            table.add_row(*map(Text, cells), style=colour)
        out.print(table)
        say(f"\nThe files are in {directory}")
    raise typer.Exit(1 if any(entry["state"] == "differs" for entry in found) else 0)


# ---- fetch ---------------------------------------------------------------------------------------------------------


@app.command()
def fetch(names: Names, data: DataOption = None, format: FormatOption = Format.table) -> None:
    """Download the missing files of a dataset; each checksum is verified before the file gets its name.

    Example: [bold]proxfed data fetch mnist fashion_mnist --data ~/data[/bold]
    """
    from proxfed.data import FILES
    from proxfed.data import fetch as arrivals

    for name in names:
        require(name in FILES, f"there is nothing to fetch for {name!r}; {nearest(name, FILES)}")
    with showing(stays=False) as show_step:

        def watch(file: str, so_far: int, total: int | None) -> None:
            show_step(Step(file, so_far, total, "bytes"))

        fetched = [(name, *arrival) for name in names for arrival in arrivals(name, data, watch)]
    if format is Format.json:
        keys = ("dataset", "path", "state")
        print(json.dumps([dict(zip(keys, map(str, entry), strict=True)) for entry in fetched], indent=1))
        return
    table = plain_table("dataset", "file", "")
    for entry in fetched:
        table.add_row(*(Text(str(cell)) for cell in entry))
    out.print(table)


# ---- show ----------------------------------------------------------------------------------------------------------


@app.command()
def show(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|NAME", help="An experiment, its .toml, or a dataset.")],
    change: ChangeOption = None,
    picture: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.svg", help="Also draw a picture into this file.")
    ] = None,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show the clients' samples, class by class. Nothing is trained.

    A dataset without clients and without a partition is shown as a single client. If an experiment and a dataset have
    the same name, the experiment is shown.

    Examples: [bold]proxfed data show demo[/bold], [bold]proxfed data show digits -c data.partition.name=shards -c
    data.partition.num_partitions=10 --out digits.svg[/bold]
    """
    from proxfed.report.circles import circles_svg
    from proxfed.report.client_stats import ClientStats, rich_picture

    if picture is not None:
        require(picture.suffix == ".svg", f"--out {picture}: the name of a drawing must end in .svg")
    federated = _federated(source, change or [], data)
    stats = ClientStats.of(federated)
    held_out = 0 if federated.test is None else len(federated.test[1])
    if picture is not None:
        write(picture, circles_svg(stats), "the drawing to ")
    if format is Format.json:
        print(json.dumps({"data": federated.name, "held_out": held_out} | stats.table()))
        return
    rest = f"; {held_out:,} more samples are held out" if held_out else ""
    out.print(Text.assemble((federated.name, "bold"), rest))
    out.print(rich_picture(stats, out.width))
    if picture is not None:
        say(f"\nThe drawing is in {picture}")


def _federated(source: str, changes: list[str], directory: str | None) -> Any:
    """The data of an experiment, or a dataset by itself."""
    from proxfed.data import DATASETS
    from proxfed.harness.build import load_data, load_together, partitioned
    from proxfed.harness.experiment import read, shipped
    from proxfed.harness.overrides import override

    if source.endswith(".toml") or source in shipped():
        experiment = read(source, changes)
        return load_data(partitioned(experiment.data, experiment.seeds[0]), directory)
    if source not in DATASETS:
        known = [*shipped(), *DATASETS]
        raise InputError(
            f"there is no experiment or dataset {source!r}; {nearest(source, known)}, or give a .toml file"
        )
    table: dict[str, Any] = {"data": {"name": source}}
    for text in changes:
        override(table, text)
        inside = table.keys() == {"data"} and isinstance(table["data"], dict)
        require(inside, f"-c {text}: for a dataset, only keys that start with 'data.' can be changed")
    return (load_data if "partition" in table["data"] else load_together)(table["data"], directory)
