"""A private fit over organisations that keep their tables: each sends one noisy message about its rows.

The agreement of the sites is kept until the model is saved (`agreement.json`): a coordinator that was killed repeats
the same question, gets the same bytes, and spends no epsilon twice.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxfed.errors import require
from proxfed.files import private_folder
from proxfed.fit.model_file import Model
from proxfed.fit.private_tables import Private, by_schema, private_model, private_settings
from proxfed.silos.coordinator.deploy import greet
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit import MASKED, signed
from proxfed.silos.coordinator.fit_agreement import FitAgreement, announce, same_schema
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.tables.schema import Schema, read_schema

log = logging.getLogger(__name__)


def private_fit_between(
    tables: str | Path | Schema, carrier: Carrier, folder: str | Path, *, epsilon: float, delta: float = 1e-5,
    row: float | None = None, label: Sequence[float] | None = None, resume: bool = False,
    protection: Mapping[str, Any] = MASKED, say: Callable[[str], None] = log.warning,
) -> Model:  # fmt: skip
    """One model of all organisations' tables, with differential privacy of every row.

    Parameters
    ----------
    tables
        The schema that all sites share, or its file.
    carrier
        The way to the sites.
    folder
        Keeps the state that resuming needs until the model is saved.
    epsilon, delta, row, label
        As in `fit_private`.
    resume
        Resume a fit that was begun in this folder.
    protection
        As [protection] of an experiment; sums are masked by default.
    say
        Called with one-sentence messages for the user.

    Returns
    -------
    Model
        Signed by the sites.
    """
    schema = tables if isinstance(tables, Schema) else read_schema(tables)
    how = private_settings(schema, epsilon, delta, row, label)
    private_folder(Path(folder))
    kept = Path(folder) / "agreement.json"
    given = {"epsilon": epsilon, "delta": delta} | how.model_dump()
    if resume and kept.exists():
        agreed = FitAgreement.read(kept)
        require(
            agreed.settings == given, f"{folder}: the fit was begun with other settings; without --resume it is new"
        )
        require(agreed.job.sites == carrier.sites, f"the fit was begun with {', '.join(agreed.job.sites)}")
    else:
        agreed = FitAgreement(private_job(schema, carrier, how, dict(protection), say), (), (0, 0), {}, given)
    agreed.save(kept)
    job, exchange = agreed.job, Exchange(carrier, agreed.life, say)
    told = announce(job, exchange)
    there = Elsewhere(job, exchange, told.d, Kept(None, job.digest))
    return signed(private_model(there.private(), job.sites, schema, how, epsilon, delta), job, exchange)


def private_job(
    schema: Schema, carrier: Carrier, how: Private, protection: dict[str, Any], say: Callable[[str], None]
) -> Job:
    met = greet(carrier, False, say, by_schema(schema))
    same_schema(met, schema)
    n, target = len(carrier.sites), schema.target
    two = target is not None and target.kind == "classes"
    fit = {"loss": {"name": "logistic" if two else "squared"}, "intercept": True, "folds": 0, "by": "rows"}
    return Job(
        {"protection": protection}, carrier.sites, (1,) * n, (1 / n,) * n, met.agreed | {"classes": None},
        secrets.token_hex(16), fit=fit | {"private": how.model_dump()}, introductions=met.introductions,
        audits=met.audits,
    )  # fmt: skip
