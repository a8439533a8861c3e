"""`proxfed glm` over organisations that keep their tables: the same questions and estimates as with pooled tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxfed.errors import InputError, require
from proxfed.files import private_folder
from proxfed.fit.inference.infer import check, inferred
from proxfed.fit.inference.reported import Errors
from proxfed.fit.inference.result import Inference
from proxfed.fit.inference.subject import KNOWN, Subject
from proxfed.fit.settings import settings_for
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit import MASKED
from proxfed.silos.coordinator.fit_agreement import FitAgreement, agree_on_fit, announce
from proxfed.silos.coordinator.waits import recording_waits
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_job import read_fit
from proxfed.tables.preparation import Preparation
from proxfed.tables.schema import Schema, read_schema

log = logging.getLogger(__name__)


def glm_between(
    tables: str | Path | Schema,
    carrier: Carrier,
    folder: str | Path,
    *,
    loss: str | None = None,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "none",
    forest: bool = True,
    ties: str = "breslow",
    resume: bool = False,
    protection: Mapping[str, Any] = MASKED,
    say: Callable[[str], None] = log.warning,
) -> Inference:
    """The unpenalised model of all organisations' tables, which stay at the organisations.

    `folder` keeps what a killed coordinator needs to resume; all other parameters are those of `glm` and of
    `fit_between`.
    """
    check(errors, level, adjust)
    folder = Path(folder)
    schema = tables if isinstance(tables, Schema) else read_schema(tables)
    target = schema.target
    require(
        target is not None and len(target.names) in (0, 2), "standard errors are for a number, times or two classes"
    )
    require(errors != "cluster" or bool(target and target.cluster), "errors = 'cluster' needs target.cluster")
    named: dict[str, Any] = {} if loss is None else {"loss": loss}
    if target is not None and target.kind == "survival":
        named = {"loss": {"name": "cox", "ties": ties}}
    asked = settings_for({}, named)
    private_folder(folder)
    kept, sums = folder / "agreement.json", folder / "sums.log"
    if resume and kept.exists():
        agreed = FitAgreement.read(kept)
        same = agreed.settings == asked.model_dump(mode="json", exclude_defaults=True)
        require(same and carrier.sites == agreed.job.sites, f"{folder}: it was begun with another loss or other sites")
    else:
        sums.unlink(missing_ok=True)
        agreed = agree_on_fit(schema, asked, carrier, dict(protection), say, folds=0)
    exchange = Exchange(carrier, agreed.life, say)
    with recording_waits(exchange, folder / "waiting.json"):
        told = announce(agreed.job, exchange)
        agreed.save(kept)
        if not told.hessians:
            raise InputError("no standard errors: a site has too few rows for Hessians (fit.rows_per_coefficient)")
        there = Elsewhere(agreed.job, exchange, told.d, Kept(sums, agreed.job.digest), told.hessians, told.grams)
        criterion = read_fit(agreed.job.fit).criterion
        prepared = Preparation.from_plain(agreed.job.schema["preparation"])
        found = Subject(there, criterion, prepared)
        require(found.name in KNOWN, f"loss = {found.name!r} has no standard errors; those that do: {', '.join(KNOWN)}")
        return inferred(found, site_intercepts, errors, level, adjust, forest)
