"""`fit` over organisations that keep their tables: the same questions, the same solver, the same model.

Beside the model there is a folder with what the sites have agreed on and every sum that came (`agreement.json`,
`sums.log`), until the model is there. A fit that was killed goes on from them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfed.errors import InputError, ProxfedError, require
from proxfed.files import private_folder
from proxfed.fit.costs import CHOICE, FINAL, INTERVALS, MEASURES, SUMMARIES, costs
from proxfed.fit.cross_validate import check_folds, choose
from proxfed.fit.final_model import baseline_of, model_of
from proxfed.fit.inference.of_fit import intervals_of
from proxfed.fit.inference.result import Inference
from proxfed.fit.inference.subject import Subject
from proxfed.fit.model_file import Model, Signature
from proxfed.fit.objective import Objective, Quadratics, Shape
from proxfed.fit.oracle import Traffic
from proxfed.fit.settings import Settings, by_label, given_weight, settings_for, solver_of
from proxfed.fit.solve import Fit
from proxfed.fit.steps import Watch
from proxfed.fit.validation import Validation
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic, Loss
from proxfed.silos.coordinator.deploy import FAREWELL
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit_agreement import FitAgreement, agree_on_fit, announce
from proxfed.silos.coordinator.fitted import FittedBetween
from proxfed.silos.coordinator.judged import judged_between
from proxfed.silos.coordinator.waits import recording_waits
from proxfed.silos.protection.signatures import signed_by
from proxfed.silos.site.fit_problem import problem_of_job
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_questions import check_draws
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter
from proxfed.tables.holdings import Holdings
from proxfed.tables.preparation import Preparation
from proxfed.tables.schema import Schema, read_schema

log = logging.getLogger(__name__)

MASKED = {"secure_aggregation": True}


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
    again = next((name for name in ("nested", "optimism", "stability") if getattr(asked, name)), None)
    require(again is None, f"{again}: models are fitted again where all tables lie in one place, not between sites")
    check_draws(asked.repetitions, asked.level)
    target = schema.target
    plain = target is None or not (target.offset or target.exposure)
    require(plain, "target.offset and target.exposure are for `proxfed glm`: other fits take no offsets")
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
    job, own, left_out = agreed.job, asked.site_intercepts, asked.chosen_by == "organisation"
    prepared = Preparation.from_plain(job.schema["preparation"])
    problem = problem_of_job(asked, job, prepared, asked.intercept and not own)
    f, h = problem.f, problem.h
    q, p = f.blocks[0].shape
    asking = there.adding_intercepts() if own else there
    objective = Objective.of(
        asking,
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
    if own:  # others predict with the mean of what sites add
        whole = problem_of_job(asked, job, prepared, True)
        mean = final.x.new_tensor([objective.organisations.intercept(final.x)])
        chosen = whole.with_h(whole.h.with_weight(float(begin.weight or 0)))
        final = replace(final, x=torch.cat([final.x, mean]))
    after_fit = there.traffic
    watch("judging the model", 0, 1)
    sites = (
        objective.organisations.asked if isinstance(objective.organisations, Quadratics) else objective.organisations
    )
    assert isinstance(sites, Elsewhere)  # with class weights and intercepts as they were fitted
    judged, bins, decisions = judged_between(sites, cv, place, asked)
    alone, nonzeros, notes = sites.alone(asked) if asked.alone and not left_out else ({}, {}, [])
    measures = there.traffic - after_fit
    before_intervals = there.traffic
    watch("computing intervals", 0, 1)
    found, baseline = _intervals(there, f.criterion, asked, prepared, final), None
    if not f.criterion.separate:
        try:
            baseline = baseline_of(there, final.x, schema.table.fewest)
        except InputError as e:
            notes.append(f"the model tells no probabilities: {e}")
    steps = {SUMMARIES: summaries, CHOICE: after_cv, FINAL: after_fit - after_cv, MEASURES: measures}
    steps[INTERVALS] = there.traffic - before_intervals
    how = "each organisation in turn, by the model of all others"
    if asked.chosen_by == "within":
        how = f"{there.folds} folds, each with rows of every organisation, which nobody but their sites know"
        how += f"; rows of the same {schema.folds.about} are held out together" if schema.folds.about else ""
    masked = job.protection.secure_aggregation
    return FittedBetween(
        model=model_of(
            prepared, job.sites, chosen, final, asked, costs(steps, len(job.sites), asked.profile), judged, how,
            (*prepared.notes, *final.notes, *notes), baseline, schema.source.drop,
        ),
        settings=asked,
        problem=chosen,
        fit=final,
        cv=cv,
        holdings=Holdings({site: agreed.rows.get(site) for site in job.sites}, {}, {}, {}, schema.table.fewest),
        rows=round(rows),
        federated=judged,
        calibration=bins,
        validation=Validation(decisions=decisions),
        protection="Sums travelled under masks: nobody but an organisation itself could read its own."
        if masked
        else "Sums of each organisation were sent as they are: no noise was added and no secure sum was used.",
        found=found,
        alone=alone,
        alone_nonzeros=nonzeros,
    )  # fmt: skip


def _intervals(there: Elsewhere, loss: Loss, asked: Settings, prepared: Preparation, final: Fit) -> Inference | str:
    """Of the model; a sentence, where there are none."""
    try:
        require(there.hessians, "no intervals: a site has too few rows for Hessians (fit.rows_per_coefficient)")
        return intervals_of(Subject(there, loss, prepared), asked, final)
    except (ProxfedError, np.linalg.LinAlgError) as e:
        return str(e)


def _class_weights(asked: Settings, schema: Schema, f: Linear) -> str | dict[str, float] | None:
    weights = asked.class_weights
    if not isinstance(weights, dict) or schema.target is None:
        return weights
    return by_label(weights, tuple(schema.target.names), isinstance(f.criterion, Logistic))


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
