"""`proxfed glm`: an unpenalised model of several organisations' tables, with standard errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from proxfed.cli.between import Connection, KitOption, LoopbackOption, SitesOption, SuperlinkOption, tables_at_sites
from proxfed.cli.common import DataOption, Format, FormatOption
from proxfed.cli.silo import CarrierName
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
    from proxfed.fit.inference import Inference

FILES = ("inference.json", "coefficients.csv", "coefficients.tex", "report.html")


def glm(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The schema of the tables.")],
    loss: Annotated[
        str | None,
        typer.Option("--loss", help="Loss: logistic, squared, poisson, huber or cox; default: from the target."),
    ] = None,
    site_intercepts: Annotated[
        bool, typer.Option("--site-intercepts", help="Give every organisation its own intercept, which stays there.")
    ] = False,
    random_intercepts: Annotated[
        bool,
        typer.Option("--random-intercepts", help="Organisations' intercepts are draws from a normal distribution."),
    ] = False,
    errors: Annotated[
        str,
        typer.Option(
            "--errors",
            metavar="model|robust|cluster|organisation",
            help="Standard errors: model, robust (sandwich), or clustered by target.cluster or organisation.",
        ),
    ] = "model",
    level: Annotated[float, typer.Option("--level", help="Confidence level of the intervals.")] = 0.95,
    adjust: Annotated[
        str,
        typer.Option("--adjust", metavar="none|bonferroni|holm|bh", help="Adjust p-values for multiple comparisons."),
    ] = "none",
    ties: Annotated[
        str, typer.Option("--ties", metavar="breslow|efron", help="How ties of survival times are handled.")
    ] = "breslow",
    forest: Annotated[
        bool, typer.Option("--forest/--no-forest", help="Show each organisation's own estimates, or only sums.")
    ] = True,
    impute: Annotated[
        int, typer.Option("--impute", metavar="TIMES", min=0, help="Impute gaps this often and pool by Rubin's rules.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of --impute.")] = 0,
    place: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Folder for tables and report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    carrier: Annotated[
        CarrierName | None,
        typer.Option("--carrier", help="Framework that connects to the sites, if the tables are there."),
    ] = None,
    kit: KitOption = None,
    superlink: SuperlinkOption = "",
    sites: SitesOption = "",
    loopback: LoopbackOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="At sites: resume estimates that have begun.")] = False,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Estimate a generalised linear model or Cox's, with intervals and p-values, from sums that organisations send.

    Prints coefficients with odds, rate or hazard ratios, the deviance, a test of a common intercept for all
    organisations, and the heterogeneity of the coefficients (Cochran's Q, I2, forest plot). The results in FOLDER are
    inference.json, coefficients.csv, coefficients.tex and report.html.

    With --carrier the tables stay at sites, each with a running `proxfed silo`, as with `proxfed fit`.

    Example: [bold]proxfed glm tables.toml --site-intercepts --out runs/estimates[/bold]
    """
    from proxfed.fit.inference import glm as estimate

    if place is not None:
        require(not place.exists() or place.is_dir(), f"--out {place} is not a folder")
        there = [name for name in FILES if (place / name).exists()]
        require(force or not there, f"--out {place} has a {', '.join(there[:1])} already; --force replaces it")
    options: dict[str, Any] = {"errors": errors, "level": level, "adjust": adjust, "forest": forest, "ties": ties}
    options |= {"loss": loss, "site_intercepts": site_intercepts}
    if carrier is not None or loopback is not None:
        require(
            not random_intercepts,
            "--random-intercepts: tau is estimated only with all tables in one place, not between organisations",
        )
        require(not impute, "--impute: gaps are imputed only with all tables in one place, not between organisations")
        to = Connection(carrier or CarrierName.nvflare, kit, superlink, sites, loopback)
        found = _between(file, to, place, resume, data, options)
    else:
        require(not (resume or kit or superlink or sites), "--resume, --kit, --superlink and --sites need --carrier")
        found = estimate(file, data, random_intercepts=random_intercepts, imputations=impute, seed=seed, **options)
    if place is not None:
        from proxfed.files import write_together
        from proxfed.fit.inference.page import inference_page

        texts = (found.json(), found.csv(), found.latex(), inference_page(found))
        write_together(place, dict(zip(FILES, texts, strict=True)))
    if format is Format.json:
        print(found.json(), end="")
    else:
        print_inference(found)
    if place is not None:
        say(f"\nTables and report are in {place}: {', '.join(FILES)}", err if format is Format.json else out)


def _between(
    file: Path, to: Connection, place: Path | None, resume: bool, data: str | None, options: dict[str, Any]
) -> Inference:
    """Estimates from tables at sites. Until they exist, checkpoints are beside them."""
    from proxfed.silos.coordinator.fit import finish
    from proxfed.silos.coordinator.glm import glm_between

    require(place is not None, "--out FOLDER is missing: the sites' messages are kept beside the estimates")
    assert place is not None
    folder = place.with_name(place.name + ".glm")
    with tables_at_sites(file, to, place, "glm", data, kept=folder if resume else None) as desk:
        found = glm_between(file, desk, folder, resume=resume, say=lambda said: say(said, err), **options)
        finish(folder, desk, lambda said: say(said, err))
    return found


def print_inference(found: Inference) -> None:
    """All tables and notes."""
    for line in found.sentences():
        say(line)
    for cells in (found.cells(short=True), found.term_cells(), found.agreement_cells()):
        head, lines = cells
        if lines:
            out.print()
            table = plain_table(*head)
            for each in lines:
                table.add_row(*map(Text, each))
            out.print(table)
    if found.notes:
        out.print()
    for note in found.notes:
        say(f"note: {note}")
