"""`proxfed fit`: one model of the tables of several organisations."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxfed.cli.between import Connection, KitOption, LoopbackOption, SitesOption, SuperlinkOption, tables_at_sites
from proxfed.cli.common import DataOption, Format, FormatOption
from proxfed.cli.print_fit import print_fitted
from proxfed.cli.silo import CarrierName
from proxfed.errors import InputError, require
from proxfed.report.progress import Step, showing
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown
    from proxfed.silos.coordinator.fitted import FittedBetween


def fit(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The schema of the tables.")],
    loss: Annotated[
        str | None,
        typer.Option("--loss", help="logistic, squared, softmax, huber, poisson or cox; default: from the target."),
    ] = None,
    penalty: Annotated[
        str | None,
        typer.Option("--penalty", metavar="NAME[,KEY=VALUE]", help="l1, group_lasso, elastic_net,l2=0.1, ...; none."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", min=0, help="Weight of the penalty; default: chosen.")
    ] = None,
    cv: Annotated[
        str | None,
        typer.Option(
            "--cv", metavar="within|organisation", help="Folds of rows within each organisation, or of whole ones."
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds", min=2, help="Folds of --cv within; default: 5. The schema's table `folds` groups rows."
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option("--rule", metavar="one_se|best", help="Choose the simplest model within one SE, or the best."),
    ] = None,
    weights: Annotated[int | None, typer.Option("--weights", min=1, help="Weights to try; default: 30.")] = None,
    compress: Annotated[
        str | None,
        typer.Option("--compress", metavar="NAME[,KEY=VALUE]", help="Compress messages, e.g. top_k,fraction=0.1."),
    ] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", help="Relative residual; default: 1e-10.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of folds and intervals; default: 0.")] = None,
    nested: Annotated[
        bool | None,
        typer.Option("--nested", help="Nested cross-validation: choose the weight again without each fold."),
    ] = None,
    optimism: Annotated[
        int | None,
        typer.Option("--optimism", metavar="DRAWS", min=0, help="Bootstrap draws to estimate the optimism."),
    ] = None,
    stability: Annotated[
        int | None, typer.Option("--stability", metavar="HALVES", min=0, help="Half-samples for stability selection.")
    ] = None,
    site_intercepts: Annotated[
        bool | None,
        typer.Option("--site-intercepts", help="Give every organisation its own intercept, which stays there."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", min=0, help="Differential privacy of every row: fit to one noisy sum per site."),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta (only with --epsilon).")] = 1e-5,
    row: Annotated[
        float | None, typer.Option("--row", metavar="NORM", help="Clip rows to this norm (only with --epsilon).")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="LOW,HIGH", help="Range of a numeric target (only with --epsilon).")
    ] = None,
    alone: Annotated[
        bool | None,
        typer.Option("--alone/--no-alone", help="Compare with models of each site alone and of pooled rows."),
    ] = None,
    place: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Folder for model and report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
    carrier: Annotated[
        CarrierName | None,
        typer.Option("--carrier", help="Framework that connects to the sites, if the tables are there."),
    ] = None,
    kit: KitOption = None,
    superlink: SuperlinkOption = "",
    sites: SitesOption = "",
    loopback: LoopbackOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="At sites: resume a fit that has begun.")] = False,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Fit a sparse model to the tables of several organisations, by federated rounds: no row leaves its table.

    Merged summaries prepare the tables, cross-validation chooses the weight of the penalty, and the model is fitted
    exactly and evaluated on held-out rows of each organisation. The results in FOLDER are model.json, coefficients.csv,
    report.html and model_card.md. The schema may have a table `model` with these options and more; the command line
    overrides it.

    With --carrier the tables stay at sites, each with a running `proxfed silo`, and FILE.toml is the schema that they
    agreed on. Only sums over all sites can be read. With --loopback 4 everything runs on this machine, with real
    processes, sockets and certificates.

    Examples: [bold]proxfed fit tables.toml --penalty l1 --out runs/model[/bold], [bold]proxfed fit tables.toml
    --carrier nvflare --kit kits/deploy@example.org --out runs/model[/bold]
    """
    given: dict[str, Any] = {
        "loss": loss,
        "penalty": None if penalty is None else named("--penalty", "zero" if penalty == "none" else penalty),
        "weight": weight,
        "cv": cv,
        "folds": folds,
        "rule": rule,
        "weights": weights,
        "compress": None if compress is None else named("--compress", compress),
        "tolerance": tolerance,
        "seed": seed,
        "nested": nested,
        "optimism": optimism,
        "stability": stability,
        "site_intercepts": site_intercepts,
        "alone": alone,
    }
    from proxfed.fit.consortium import fit as fit_tables
    from proxfed.fit.save import FILES

    given = {key: value for key, value in given.items() if value is not None}
    if epsilon is not None:
        from proxfed.cli.private_fit import run_private_fit

        strange = next((key for key in given if key != "seed"), None)
        require(strange is None, f"--{(strange or '').replace('_', '-')} does not go with --epsilon")
        how = {"epsilon": epsilon, "delta": delta, "row": row, "label": None if label is None else _pair(label)}
        at = None
        if carrier is not None or loopback is not None:
            require(seed is None, "--seed: the noise of sites is secret")
            at = Connection(carrier or CarrierName.nvflare, kit, superlink, sites, loopback)
        with _reserved(place, force):
            run_private_fit(file, data, at, place, resume, format is Format.json, seed or 0, how)
        return
    require(row is None and label is None, "--row and --label need --epsilon")
    fitted: Shown
    if carrier is not None or loopback is not None:
        to = Connection(carrier or CarrierName.nvflare, kit, superlink, sites, loopback)
        fitted = _between(file, to, place, force, resume, data, given)
    else:
        require(not (resume or kit or superlink or sites), "--resume, --kit, --superlink and --sites need --carrier")
        with _reserved(place, force), _showing() as progress:
            fitted = fit_tables(file, data, watch=progress, **given)
            if place is not None:
                progress("writing", 0, 1)
                fitted.save(place)
    if format is Format.json:
        from proxfed.fit.overview import summary

        print(json.dumps(summary(fitted), indent=1))
    else:
        print_fitted(fitted)
    if loopback is not None:
        _compare(file, data, given, fitted, err if format is Format.json else out)
    if place is not None:
        say(f"\nModel and report are in {place}: {', '.join(FILES)}", err if format is Format.json else out)


def _between(
    file: Path, to: Connection, place: Path | None, force: bool, resume: bool, data: str | None, given: dict[str, Any]
) -> FittedBetween:
    """A fit of tables at sites. Until the model exists, its checkpoints are beside it."""
    from proxfed.fit.settings import settings_for
    from proxfed.silos.coordinator.fit import finish, fit_between
    from proxfed.tables.schema import read_schema

    require(place is not None, "--out FOLDER is missing: the sites' messages are kept beside the model")
    assert place is not None
    folder = place.with_name(place.name + ".fit")
    schema = read_schema(file)
    asked = settings_for(schema.model, given)
    sites = tables_at_sites(file, to, place, "fit", data, folds=asked.folds, kept=folder if resume else None)
    with _reserved(place, force), sites as desk, _showing() as progress:
        try:
            fitted = fit_between(
                schema, desk, folder, resume=resume, watch=progress, say=lambda said: say(said, err), **given
            )
        except KeyboardInterrupt:
            say(f"stopped; to continue from {folder}, repeat the command with --resume", err)
            raise
        progress("writing", 0, 1)
        fitted.save(place)
        finish(folder, desk, lambda said: say(said, err))
    return fitted


def _compare(file: Path, data: str | None, given: dict[str, Any], fitted: Shown, to: Any) -> None:
    """Compares with the same fit of local tables, and with a fit of pooled rows by another method."""
    from proxfed.fit.consortium import fit as fit_tables

    plain = {key: value for key, value in given.items() if key not in ("weight", "cv", "weights", "rule", "alone")}
    here = fit_tables(file, data, **plain, weight=fitted.model.weight, alone=False, repetitions=0)
    x = here.problem.f.minimise(here.problem.h, here.problem.start(0), 1e-12)
    apart = [float((fitted.fit.x - other).abs().max()) for other in (here.fit.x, x)]
    say(
        f"Coefficients differ by at most {apart[0]:.1e} from those of the tables in one place, with the same weight;",
        to,
    )
    say(f"by at most {apart[1]:.1e} from those of pooled rows by another method (FISTA).", to)


@contextmanager
def _reserved(place: Path | None, force: bool) -> Iterator[None]:
    """Locks the folder against other fits; removes it afterwards if it is empty."""
    from proxfed.files import locked
    from proxfed.fit.save import FILES

    if place is None:
        yield
        return
    require(not place.exists() or place.is_dir(), f"--out {place} is not a folder")
    with locked(place, wait=False) as free:
        require(free, f"--out {place}: another `proxfed fit` is writing there")
        try:
            there = [name for name in FILES if (place / name).exists()]
            require(force or not there, f"--out {place} has a {', '.join(there[:1])} already; --force replaces it")
            yield
        finally:
            with suppress(OSError):
                place.rmdir()


def _pair(text: str) -> list[float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--label {text}: give two numbers, LOW,HIGH") from None
    return [low, high]


def named(option: str, text: str) -> dict[str, Any]:
    """NAME,KEY=VALUE,... as the table {name = NAME, KEY = VALUE}."""
    name, *rest = text.split(",")
    table: dict[str, Any] = {"name": name.strip()}
    for part in rest:
        key, equals, value = part.partition("=")
        require(bool(equals), f"{option} {text}: {part!r} is not of the form KEY=VALUE")
        try:
            table[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as e:
            raise InputError(f"{option} {text}: {value!r} is not a number, true, false or a quoted word") from e
    return table


@contextmanager
def _showing() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a callback of progress: (current task, amount done, total; 0: not known)."""
    with showing(stays=False) as show:
        yield lambda what, done, total: show(Step(what, done, total or None, "" if total else "rounds"))
