"""`proxfed validate`: how good a model is on tables of organisations that it was not fitted to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxfed.cli.between import Connection, KitOption, LoopbackOption, SitesOption, SuperlinkOption, tables_at_sites
from proxfed.cli.common import DataOption, Format, FormatOption
from proxfed.cli.silo import CarrierName
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
    from proxfed.fit.judge import Judgement
    from proxfed.fit.model_file import Model


def validate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="model.json or its folder.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The schema of the new tables.")],
    carrier: Annotated[
        CarrierName | None, typer.Option("--carrier", help="The tables are at sites: what brings questions to them.")
    ] = None,
    kit: KitOption = None,
    superlink: SuperlinkOption = "",
    sites: SitesOption = "",
    loopback: LoopbackOption = None,
    data: DataOption = None,
    format: FormatOption = Format.table,
) -> None:
    """External validation: measures of a model on the rows of organisations that it was not fitted to.

    The rows are prepared as the model's own were. With --carrier the tables stay at sites: each site computes its
    measures and tells them, rounded, if its site.toml has fit.measures = true. Of two sites or more, the loss, AUC and
    calibration over all of them come from sums that no single site can be read from.

    Examples: [bold]proxfed validate runs/model new.toml[/bold], [bold]proxfed validate runs/model new.toml --carrier
    nvflare --kit kits/deploy@example.org --sites ghent[/bold]
    """
    from proxfed.fit.external import validate as validate_here
    from proxfed.fit.judge import plain
    from proxfed.fit.model_file import read_model

    known, silent = read_model(model), tuple[str, ...]()
    if carrier is None and loopback is None:
        require(not (kit or superlink or sites), "--kit, --superlink and --sites need --carrier")
        found = validate_here(known, file, data)
    else:
        to = Connection(carrier or CarrierName.nvflare, kit, superlink, sites, loopback)
        found, silent = _between(known, model, file, to, data)
    if format is Format.json:
        print(json.dumps({"measures": plain(found), "silent": list(silent)}, indent=1))
        return
    table = plain_table("organisation", "measure", "value", "interval")
    for name, row in found.items():
        for measure, (value, low, high) in row.items():
            interval = f"{low:.3f} to {high:.3f}" if low == low else ""
            table.add_row(name, measure, f"{value:.3f}" if value == value else "-", interval)
    out.print(table)
    if silent:
        say(f"{', '.join(silent)}: no measures of its own are told (fit.measures of its site.toml)")


def _between(
    known: Model, model: Path, file: Path, to: Connection, data: str | None
) -> tuple[Judgement, tuple[str, ...]]:
    from proxfed.fit.external import check_schema
    from proxfed.silos.coordinator.validate import validate_between
    from proxfed.tables.schema import read_schema

    check_schema(known, read_schema(file))
    with tables_at_sites(file, to, model.with_name(model.name + ".validation"), "validate", data) as desk:
        found = validate_between(known, desk, say=lambda said: say(said, err))
    return found.measures, found.silent
