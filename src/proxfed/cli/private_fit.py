"""`proxfed fit --epsilon`: a linear model with differential privacy, here or over a carrier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from proxfed.cli.between import Connection, tables_at_sites
from proxfed.errors import require
from proxfed.report.summary import plain_table
from proxfed.report.terminal import err, out, say

if TYPE_CHECKING:
    from proxfed.fit.model_file import Model


def run_private_fit(
    file: Path, data: str | None, to: Connection | None, place: Path | None, resume: bool, as_json: bool, seed: int,
    how: dict[str, Any],
) -> None:  # fmt: skip
    """The model, printed and written."""
    from proxfed.fit.private_tables import fit_private, save_private, summary

    if to is None:
        model = fit_private(file, data, seed=seed, **how)
        if place is not None:
            save_private(model, place)
    else:
        model = _between(file, data, to, place, resume, how)
    if as_json:
        print(json.dumps(summary(model), indent=1))
        return
    table = plain_table("feature", "in its own units")
    for name, value in zip(model.features, model.original.coef[0], strict=True):
        table.add_row(Text(name), f"{value:+.4g}")
    table.add_row("intercept", f"{model.original.intercept[0]:+.4g}")
    out.print(table)
    for note in model.notes:
        say(f"note: {note}")
    if to is None:
        say("The tables are on this machine: the noise follows from --seed and protects nothing.")
    if model.signatures:
        say(f"Signed by {', '.join(model.signatures)}.")


def _between(
    file: Path, data: str | None, to: Connection, place: Path | None, resume: bool, how: dict[str, Any]
) -> Model:
    from proxfed.fit.private_tables import save_private
    from proxfed.silos.coordinator.fit import farewell
    from proxfed.silos.coordinator.fit_agreement import FitAgreement
    from proxfed.silos.coordinator.private_fit import private_fit_between

    require(place is not None, "--out FOLDER is missing: the sites' agreements are kept beside the model")
    assert place is not None
    folder = place.with_name(place.name + ".fit")
    budget = {"noise": 1e-9, "epsilon": how["epsilon"] * (1 + 1e-6), "delta": how["delta"]}
    rules = {"require": {"privacy": budget}}
    with tables_at_sites(file, to, place, "fit", data, kept=folder if resume else None, rules=rules) as desk:
        model = private_fit_between(file, desk, folder, resume=resume, say=lambda said: say(said, err), **how)
        save_private(model, place)
        farewell(FitAgreement.read(folder / "agreement.json").job, desk, lambda said: say(said, err))
        shutil.rmtree(folder, ignore_errors=True)
    return model
