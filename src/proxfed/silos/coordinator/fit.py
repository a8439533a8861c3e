"""`fit` over organisations that keep their tables: the same questions, the same solver, the same model.

Beside the model there is a folder with what the sites have agreed on and every sum that came (`agreement.json`,
`sums.log`), until the model is there. A fit that was killed goes on from them.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfed.errors import InputError, require
from proxfed.files import private_folder
from proxfed.fit.consortium import Watch, given_weight, model_of, save, settings_for
from proxfed.fit.costs import CHOICE, FINAL, MEASURES, SUMMARIES, costs
from proxfed.fit.cross_validate import CrossValidation, check_folds, choose
from proxfed.fit.inference.result import Inference
from proxfed.fit.judge import ALL, LOSS, Judgement, Measured
from proxfed.fit.metrics import Bin
from proxfed.fit.model import linear_model
from proxfed.fit.model_file import Model, Sent, Signature
from proxfed.fit.objective import Objective, Shape
from proxfed.fit.oracle import Traffic
from proxfed.fit.settings import Settings, by_label, loss_of, penalty_of, solver_of
from proxfed.fit.solve import Fit
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic
from proxfed.silos.coordinator.deploy import FAREWELL
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit_agreement import FitAgreement, agree_on_fit, announce
from proxfed.silos.coordinator.waits import recording_waits
from proxfed.silos.protection.signatures import signed_by
from proxfed.silos.site.rows import empty
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter
from proxfed.tables.holdings import Holdings
from proxfed.tables.preparation import Preparation
from proxfed.tables.schema import Schema, read_schema
from proxfed.types import Block, Problem

log = logging.getLogger(__name__)

MASKED = {"secure_aggregation": True}


@dataclass(frozen=True, eq=False)
class FittedBetween:
    """A model of tables that stayed where they are, and what is known of how good it is."""

    model: Model
    """Coefficients, preparation and measures, with the signatures of the sites."""
    settings: Settings
    """With which it was fitted."""
    problem: Problem[Linear]
    """Over no rows."""
    fit: Fit
    """The final fit."""
    cv: CrossValidation | None
    """None: the weight was given."""
    holdings: Holdings
    """Who holds what, as far as they tell."""
    rows: int
    """What all rows weigh together: without weights, how many there are."""
    federated: Judgement
    """Measures on held-out rows: over all, and of those sites that tell theirs."""
    calibration: list[Bin]
    protection: str
    """How sums travelled."""

    alone: Judgement = field(default_factory=dict)
    pooled: Judgement = field(default_factory=dict)
    alone_nonzeros: dict[str, int] = field(default_factory=dict)
    off_pooled: float | None = None
    intervals: str = "the interval of the mean over the folds, where there is one"
    judged_by_folds: bool = True
    own_intercepts: dict[str, float] = field(default_factory=dict)

    @property
    def sent(self) -> list[Sent]:
        """What was sent, step by step."""
        return self.model.sent

    @property
    def block(self) -> Block:
        """Where the weights are in x."""
        return self.problem.f.blocks[0]

    @property
    def inference(self) -> Inference:
        """Not yet between organisations."""
        raise InputError("intervals are computed where all tables lie in one place, not between organisations")

    def save(self, folder: str | Path) -> None:
        """model.json, coefficients.csv, report.html and model_card.md."""
        save(self, folder)


def fit_between(
    tables: str | Path | Schema,
    carrier: Carrier,
    folder: str | Path,
    *,
    resume: bool = False,
    protection: Mapping[str, Any] = MASKED,
    watch: Watch = lambda what, done, total: None,
    say: Callable[[str], None] = log.warning,
    **settings: Any,
) -> FittedBetween:
    """One model of all organisations' tables, each of which stays with its own.

    Parameters
    ----------
    tables : str, Path or Schema
        The schema that all sites have agreed on, or its file; where its rows are is not looked at.
    carrier : Carrier
        The way to the sites.
    folder : str or Path
        For what must not be lost before the model is there.
    resume : bool
        Go on with a fit that was begun in this folder.
    protection : mapping
        As [protection] of an experiment; sums are under masks unless it says otherwise.
    watch : callable
        Called with what is done now, how much of it is done, and how much there is.
    say : callable
        Told in one sentence what a person should know.
    **settings : Any
        Those of `Settings`; they overrule [model] of the schema.

    Returns
    -------
    FittedBetween
        The model, signed by the sites, and how good it is.
    """
    folder = Path(folder)
    schema = tables if isinstance(tables, Schema) else read_schema(tables)
    asked = settings_for(schema.model, settings)
    require(asked.compress is None, f"compress = {asked.compress!r}: sums under masks cannot be compressed")
    own = "an intercept for each organisation is fitted where all tables lie in one place, not between organisations"
    require(not asked.site_intercepts, f"site_intercepts = true: {own}")
    private_folder(folder)
    kept, sums = folder / "agreement.json", folder / "sums.log"
    watch("meeting the sites", 0, 1)
    if resume and kept.exists():
        agreed = FitAgreement.read(kept)
        same = agreed.settings == asked.model_dump(mode="json", exclude_defaults=True)
        require(same, f"{folder}: the fit was begun with other settings; without --resume it begins anew")
        fits = carrier.sites == agreed.job.sites
        said = f"the fit was begun with {', '.join(agreed.job.sites)}, and the sites are {', '.join(carrier.sites)}"
        require(fits, said)
    else:
        sums.unlink(missing_ok=True)
        agreed = agree_on_fit(schema, asked, carrier, dict(protection), say)
    exchange = Exchange(carrier, agreed.life, say)
    with recording_waits(exchange, folder / "waiting.json"):
        told = announce(agreed.job, exchange)
        agreed.save(kept)
        there = Elsewhere(agreed.job, exchange, told.d, Kept(sums, agreed.job.digest), told.hessians, told.grams)
        fitted = _fit(schema, asked, agreed, there, watch)
        watch("signing the model", 0, 1)
        return replace(fitted, model=signed(fitted.model, agreed.job, exchange))


def finish(folder: str | Path, carrier: Carrier, say: Callable[[str], None] = log.warning) -> None:
    """The model is where it belongs: sites forget the fit, but for their copy, and the folder goes."""
    folder = Path(folder)
    farewell(FitAgreement.read(folder / "agreement.json").job, carrier, say)
    shutil.rmtree(folder, ignore_errors=True)


def farewell(job: Job, carrier: Carrier, say: Callable[[str], None]) -> None:
    """Sites forget the fit, but for their copy of the model."""
    exchange = Exchange(carrier, say=say)
    heard = exchange.ask(job, dict.fromkeys(job.sites, Letter("end", job.digest)), FAREWELL)
    missing = [site for site in job.sites if site not in heard]
    if missing:
        say(f"{', '.join(missing)} did not hear that the fit is over, and keeps what it has of it")


def _fit(schema: Schema, asked: Settings, agreed: FitAgreement, there: Elsewhere, watch: Watch) -> FittedBetween:
    job = agreed.job
    prepared = Preparation.from_plain(job.schema["preparation"])
    problem = _problem(asked, schema, job, prepared)
    f, h = problem.f, problem.h
    q, p = f.blocks[0].shape
    objective = Objective.of(
        there,
        f.criterion,
        Shape(q, p, f.intercept),
        class_weights=_class_weights(asked, schema, f),
        names=prepared.names,
    )
    summaries = Traffic(1, *agreed.summaries)
    given = given_weight(asked)
    rows = float(objective.weight())
    smallest = asked.smallest or (1e-2 if p > rows else 1e-3)
    check_folds(objective, asked.cv or asked.folds)
    cv = choose(
        objective,
        h,
        asked.weights if given is None else [given],
        smallest,
        solver_of(asked, asked.cv_tolerance),
        asked.cv_tolerance,
        lambda done, total: watch("cross-validation", done, total),
    )
    after_cv = there.traffic
    place = cv.place(asked.rule)
    begin = cv.fits[place]
    solver = solver_of(asked, asked.tolerance, watch=lambda rounds, residual: watch("fitting the model", rounds, 0))
    chosen = problem.with_h(h.with_weight(float(begin.weight or 0)))
    final = solver.after(objective, chosen, begin)
    after_fit = there.traffic
    watch("judging the model", 0, 1)
    judged, bins = _judged(there, cv, place, asked)
    measures = there.traffic - after_fit
    told = sum(len(row) for name, row in judged.items() if name != ALL)
    measures = measures + Traffic(1, 8 * told, 8 * cv.models[:, place].numel() * len(job.sites))
    steps = {SUMMARIES: summaries, CHOICE: after_cv, FINAL: after_fit - after_cv, MEASURES: measures}
    how = "each organisation in turn, by the model of all others"
    if asked.chosen_by == "within":
        how = f"{there.folds} folds, each with rows of every organisation, which nobody but their sites know"
    masked = job.protection.secure_aggregation
    return FittedBetween(
        model=model_of(
            prepared, job.sites, chosen, final, asked, costs(steps, len(job.sites), asked.profile), judged, how,
            (*prepared.notes, *final.notes),
        ),
        settings=asked,
        problem=chosen,
        fit=final,
        cv=cv,
        holdings=Holdings({site: agreed.rows.get(site) for site in job.sites}, {}, {}, schema.table.fewest),
        rows=round(rows),
        federated=judged,
        calibration=bins,
        protection="Sums travelled under masks: nobody but an organisation itself could read its own."
        if masked
        else "Sums of each organisation were sent as they are: no noise was added and no secure sum was used.",
    )  # fmt: skip


def _problem(asked: Settings, schema: Schema, job: Job, prepared: Preparation) -> Problem[Linear]:
    """The model as it is without rows, with a penalty of weight 1 or the weight that is given."""
    assert schema.target is not None
    loss, data = loss_of(asked, schema.target), empty(job.schema, job.window(None))
    bare = linear_model(data, loss, intercept=asked.intercept)
    penalty = penalty_of(asked, bare.f.blocks[0].shape, prepared.groups)
    return linear_model(data, loss, penalty, groups=asked.groups, intercept=asked.intercept)


def _class_weights(asked: Settings, schema: Schema, f: Linear) -> str | dict[str, float] | None:
    weights = asked.class_weights
    if not isinstance(weights, dict) or schema.target is None:
        return weights
    return by_label(weights, tuple(schema.target.names), isinstance(f.criterion, Logistic))


# ---- how good it is --------------------------------------------------------------------------------------------------


def _judged(there: Elsewhere, cv: CrossValidation, place: int, asked: Settings) -> tuple[Judgement, list[Bin]]:
    """(measures over all and of the sites that tell them, calibration of two classes)."""
    loss, error = float(cv.mean[place]), float(cv.standard_error[place])
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(asked.level, dtype=torch.float64)))
    over_all, bins = {LOSS: Measured(loss, loss - z * error, loss + z * error)}, list[Bin]()
    if asked.repetitions == 0:
        over_all = {LOSS: Measured(loss, math.nan, math.nan)}
    models = cv.models[:, place]
    if isinstance(there.loss, Logistic):
        counts = there.histogram(models).numpy()
        over_all = {"auc": Measured(area(counts), math.nan, math.nan)} | over_all
        bins = calibration(counts)
    told = there.judged(models)
    of_sites = {site: {name: Measured(v, math.nan, math.nan) for name, v in row.items()} for site, row in told.items()}
    return of_sites | {ALL: over_all}, bins


def area(counts: np.ndarray) -> float:
    """AUC from (2, bins) counts of both classes by score; a pair in one bin counts half."""
    other, one = counts
    below = np.cumsum(other) - other
    pairs = one.sum() * other.sum()
    return float(one @ (below + other / 2) / pairs) if pairs else math.nan


def calibration(counts: np.ndarray, parts: int = 10) -> list[Bin]:
    """Predicted and observed, in parts of about equal size."""
    total = counts.sum(0)
    middle = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    part = np.minimum(parts - 1, (parts * (np.cumsum(total) - total / 2) / max(1, total.sum())).astype(int))
    found = []
    for k in range(parts):
        m = (part == k) & (total > 0)
        if m.any():
            n = total[m].sum()
            found.append(Bin(int(n), float(middle[m] @ total[m] / n), float(counts[1][m].sum() / n)))
    return found


# ---- signatures ------------------------------------------------------------------------------------------------------


def signed(model: Model, job: Job, exchange: Exchange) -> Model:
    """By every site, which keeps a copy."""
    question = Letter("model", job.digest, body=model.content())
    answers = exchange.ask(job, dict.fromkeys(job.sites, question))
    said = {site: {key: answers[site].head.get(key) for key in ("key", "signature")} for site in job.sites}
    signatures = {site: Signature.model_validate(each) for site, each in said.items() if each["key"] is not None}
    signed = model.model_copy(update={"signatures": signatures})
    signed_by(signed)
    return signed
