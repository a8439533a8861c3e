"""`proxfed site`: the policy of a data holder, and the log of its messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.common import Format, FormatOption
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
    from proxfed.silos.protection.audit import Trail
    from proxfed.silos.protection.explain import Explained
    from proxfed.silos.site.config import Site
    from proxfed.silos.site.first_site import FirstSite

app = typer.Typer(
    name="site",
    help="For data holders: what this site allows, and what has left it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


DataOption = Annotated[Path, typer.Option("--data", metavar="FILE", help="The table: CSV, Parquet or .npz.")]
NameOption = Annotated[str, typer.Option("--name", help="Name of this site in jobs; default: from the file.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The site's file to write.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing site.toml; its key is kept.")]


@app.command()
def init(
    data: DataOption,
    label: Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column to predict.")],
    name: NameOption = "",
    to: OutOption = Path("site.toml"),
    force: ForceOption = False,
) -> None:
    """Write site.toml for a table: its location, and what this site allows. Nothing leaves this machine.

    A table with words or gaps also gets a schema.toml. The site's key is created beside it, unless it exists.

    Example: [bold]proxfed site init --data patients.csv --label outcome --name lyon[/bold]
    """
    from proxfed.silos.site.first_site import first_site

    _place(to, force)
    _write(first_site(data.expanduser(), label, name, to.parent), to, force)


@app.command()
def join(
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA.toml", help="Schema that the sites agreed on.")],
    data: DataOption,
    name: NameOption = "",
    to: OutOption = Path("site.toml"),
    force: ForceOption = False,
) -> None:
    """Write site.toml for a table that fits the other sites' schema. Nothing leaves this machine.

    The schema is copied to schema.toml, with this site's table as its source. A table that does not fit it is refused.

    Example: [bold]proxfed site join agreed.toml --data patients.csv --name lyon[/bold]
    """
    from proxfed.silos.site.first_site import joined_site

    _place(to, force)
    _write(joined_site(schema.expanduser(), data.expanduser(), name, to.parent), to, force)


@app.command()
def explain(
    experiment: Annotated[str, typer.Argument(metavar="JOB.toml", help="Job that a coordinator proposes.")],
    site: Annotated[Path, typer.Option("--site", metavar="FILE.toml", help="The site's file.")] = Path("site.toml"),
) -> None:
    """Explain what would leave this site in a job, and what could be learnt from it. Nothing leaves.

    JOB.toml is an experiment, or the schema of tables for a fit. The exit code is 1 if this site would refuse it.

    Examples: [bold]proxfed site explain trial.toml[/bold], [bold]proxfed site explain agreed.toml[/bold]
    """
    from proxfed.silos.site.config import read_site

    found = _explained(read_site(site), experiment)
    parts = {"What would leave": found.leaves, "What could be learnt from it": found.learnt}
    for title, lines in (parts | ({"This site refuses it": found.refused} if found.refused else {})).items():
        say(f"{title}:")
        for line in lines:
            say(f"  - {line}")
    if found.refused:
        raise typer.Exit(1)
    say("This site would take part. Its rows are checked when the job arrives.")


def _explained(site: Site, job: str) -> Explained:
    """For an experiment, or for a schema of tables to fit, which has columns."""
    from proxfed.cli.deploy import read_experiment
    from proxfed.fit.settings import settings_for
    from proxfed.registry import read_toml
    from proxfed.silos.protection.explain import explain as explained
    from proxfed.silos.protection.explain import explain_fit
    from proxfed.tables.schema import read_schema

    path = Path(job).expanduser()
    if path.is_file() and {"columns", "others", "target"} & set(read_toml(path)):
        return explain_fit(site, settings_for(read_schema(path).model, {}))
    return explained(site, read_experiment(job, []))


def _place(to: Path, force: bool) -> None:
    require(to.suffix == ".toml", f"--out {to}: the name of a site's file must end in .toml")
    require(to.parent.is_dir(), f"--out {to}: there is no folder {to.parent}")
    require(force or not to.exists(), f"{to} is there already; --force replaces it")


def _write(found: FirstSite, to: Path, force: bool) -> None:
    from proxfed.files import replace
    from proxfed.silos.protection.keyring import SiteKey, fingerprint

    schema = to.parent / "schema.toml"
    if found.schema:
        require(force or not schema.exists(), f"{schema} is there already; --force replaces it")
    key = found.site.path(found.site.files.key)
    site_key = SiteKey.read(key) if key.exists() else SiteKey.create(key)
    if found.schema:
        replace(schema, found.schema.encode())
    replace(to, found.text.encode())
    say(f"{found.site.name}: {found.rows:,} rows, {found.columns} columns beside the label")
    if found.rows < found.site.limits.rows:
        say(
            f"These are fewer rows than limits.rows = {found.site.limits.rows}: this site answers nothing.", style="red"
        )
    if found.why:
        say(f"They are not all numbers ({found.why}), so they are described in {schema}: read it, and agree on it.")
        say(f"The other sites start from the same file: `proxfed site join {schema.name} --data ...`")
    say(f"Read {to} and change what is not right: it says what this site allows.")
    say(f"The site's key is in {key}; tell your partners its fingerprint, over another way than this network:")
    say(f"  {fingerprint(site_key.public)}")


@app.command()
def audit(
    site: Annotated[Path, typer.Option("--site", metavar="FILE.toml", help="The site's file.")] = Path("site.toml"),
    last: Annotated[int, typer.Option("--last", min=0, help="Lines to show, from the end; 0: all.")] = 20,
    head: Annotated[
        int | None, typer.Option("--head", min=0, help="Only the digest of the first N lines, as in partners' records.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Records of others: a partner's audit.jsonl, or silos.json."),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what has left this site: messages, totals, and whether the file is unchanged (exit code 1 if not).

    Example: [bold]proxfed site audit --last 0[/bold]
    """
    from proxfed.silos.protection.ledger import Head
    from proxfed.silos.site.config import read_site

    here = read_site(site)
    file = here.audit
    trail = file.read()
    if head is not None:
        require(head <= len(trail.lines), f"--head {head}: the file has {len(trail.lines)} lines")
        say(str(Head.of(trail.lines[:head])))
        return
    if against is not None:
        _compare(here, trail, against)
        return
    runs = _by_run(trail)
    if format is Format.json:
        print(json.dumps({"lines": trail.lines, "runs": runs, "broken": trail.broken, "last": trail.last}, indent=1))
        raise typer.Exit(1 if trail.broken else 0)
    if trail.lines:
        _show(trail.lines[-last:] if last else trail.lines)
        out.print()
        _show_runs(runs)
    if trail.broken:
        say(f"{file.path} was changed afterwards: {trail.broken}", err, "red")
        raise typer.Exit(1)
    if not trail.lines:
        say(f"Nothing has left: {file.path} is empty")
        return
    say(f"All {len(trail.lines):,} lines are as they were written; the last has the digest {trail.last[:16]}.")
    say(f"Partners that began a job now would note {Head.of(trail.lines)} (with --head N: of the first N lines).")


def _compare(here: Site, trail: Trail, against: Path) -> None:
    """Compares with this site's signatures before jobs, as recorded by others."""
    from proxfed.silos.protection.witness import compare

    count, broken = compare(here.name, here.key.public, trail.lines, against.expanduser())
    if broken:
        say(f"{here.audit.path} does not match {against}: {broken}", err, "red")
        raise typer.Exit(1)
    require(count > 0, f"{against} has no record of {here.name}")
    say(f"The file has the lines of all {count} signatures of {here.name} that are in {against}.")


def _show(lines: Sequence[dict[str, Any]]) -> None:
    table = plain_table("line", "when", "to", "what", "run", "round", "bytes", "sha256")
    for line in lines:
        cells = (
            str(line.get("line", "")),
            str(line.get("at", ""))[:19].replace("T", " "),
            str(line.get("to", "")),
            str(line.get("what", "")),
            str(line.get("run", ""))[:12],
            str(line.get("t", "")),
            f"{line['bytes']:,}" if "bytes" in line else "",
            str(line.get("sha256", ""))[:12],
        )
        table.add_row(*map(Text, cells))
    out.print(table)


def _show_runs(runs: Sequence[dict[str, Any]]) -> None:
    private = any(run["epsilon"] is not None for run in runs)
    table = plain_table("run", "messages", "bytes", *(["epsilon"] if private else []))
    for run in runs:
        spent = "" if run["epsilon"] is None else f"{run['epsilon']:.3g} (delta {run['delta']:g})"
        cells = run["run"] or "-", f"{run['messages']:,}", f"{run['bytes']:,}", *([spent] if private else [])
        table.add_row(*map(Text, cells))
    out.print(table)


def _by_run(trail: Trail) -> list[dict[str, Any]]:
    """Messages, bytes and epsilon of each job."""
    from proxfed.engine.noise import epsilon
    from proxfed.silos.protection.privacy import noises

    runs = list(dict.fromkeys(str(line.get("run", "")) for line in trail.lines))
    out = []
    for run in runs:
        lines = [line for line in trail.lines if str(line.get("run", "")) == run]
        sent = [line for line in lines if "bytes" in line]
        delta = next((line["delta"] for line in lines if "delta" in line), None)
        found = None if delta is None else epsilon(noises(lines), delta)
        out.append(
            {"run": run[:12], "messages": len(sent), "bytes": sum(line["bytes"] for line in sent)}
            | {"epsilon": found, "delta": delta}
        )
    return out
