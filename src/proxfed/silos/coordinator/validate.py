"""External validation: sites that a model was not fitted to compute its measures on all their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import torch

from proxfed.errors import require
from proxfed.fit.judge import ALL, LOSS, Judgement, Measured
from proxfed.fit.metrics import Bin
from proxfed.fit.model_file import Model
from proxfed.fit.oracle import Question
from proxfed.problems.losses import Logistic
from proxfed.silos.coordinator.deploy import greet
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit import MASKED, farewell
from proxfed.silos.coordinator.fit_agreement import announce, job_of, same_schema
from proxfed.silos.coordinator.judged import area, calibration
from proxfed.silos.protection.signatures import signed_by
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_job import FitTable
from proxfed.silos.wire.fit_questions import Bootstrap, check_draws

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validated:
    """The measures of a model on rows of organisations that it was not fitted to."""

    measures: Judgement
    """Of the sites that reveal theirs (`fit.measures` in site.toml), and over all sites from sums."""
    calibration: list[Bin]
    """Calibration for two classes, over all sites."""
    silent: tuple[str, ...]
    """Sites that do not reveal their own measures."""


def validate_between(
    model: Model,
    carrier: Carrier,
    *,
    protection: Mapping[str, Any] = MASKED,
    repetitions: int = 200,
    level: float = 0.95,
    seed: int = 0,
    say: Callable[[str], None] = log.warning,
) -> Validated:
    """Measures of the model on all rows of the sites, which are prepared like the model's training rows.

    Nothing is fitted. Over all sites there are the mean loss and, for two classes, AUC and calibration from a histogram
    of probabilities, with small cells withheld. A single site sends only its measures: sums would be its own.
    """
    check_draws(repetitions, level)
    if model.signatures:
        signed_by(model)
    again = set(carrier.sites) & set(model.organisations)
    require(not again, f"{', '.join(sorted(again))}: the model was fitted to the rows of this site, which are not new")
    met = greet(carrier, False, say, model.prepare)
    same_schema(met, model.prepare.schema)
    fit = FitTable.model_validate({"loss": model.loss, "intercept": True, "folds": 0, "by": "rows", "external": True})
    loss = fit.criterion
    fit = fit.model_copy(update={"intercept": loss.separate})
    several = len(carrier.sites) > 1
    job = job_of(met, model.prepare.schema, carrier.sites, fit, protection if several else {})
    exchange = Exchange(carrier, say=say)
    told = announce(job, exchange)
    there = Elsewhere(job, exchange, told.d, Kept(None, job.digest))
    x = torch.tensor([v for row in model.prepared.coef for v in row], dtype=torch.float64)
    if loss.separate:
        x = torch.cat([x, torch.tensor(model.prepared.intercept, dtype=torch.float64)])
    require(len(x) == told.d, f"the model has {len(x)} coefficients, and the sites expect {told.d}")
    measures = there.judged(x[None], Bootstrap(repetitions, level, seed))
    over_all, bins = dict[str, Measured](), list[Bin]()
    if several:
        if isinstance(loss, Logistic):
            counts = there.histogram(x[None]).numpy()
            over_all["auc"], bins = Measured(area(counts), nan, nan), calibration(counts)
        weight = float(there.counts().sum())
        (sums,) = there.ask([Question(x, order=0)])
        over_all[LOSS] = Measured(sums.value / weight, nan, nan)
        measures = measures | {ALL: over_all}
    farewell(job, carrier, say)
    return Validated(measures, bins, tuple(site for site in job.sites if site not in measures))
