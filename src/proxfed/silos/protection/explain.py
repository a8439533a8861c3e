"""What would leave this site if it took part in a job, in plain words: how often, how precise, and what for."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from proxfed.engine.noise import epsilon
from proxfed.errors import InputError
from proxfed.fit.settings import Settings
from proxfed.harness.experiment import Experiment
from proxfed.harness.protection import Protection
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.silos.protection import policy, policy_of_fits
from proxfed.silos.site.config import Site
from proxfed.silos.wire.job import TABLES, Job


class Explained(NamedTuple):
    """An explanation for people who decide whether to take part."""

    leaves: list[str]
    """What leaves, how often and how precise."""
    learnt: list[str]
    """What others could compute from it."""
    refused: list[str]
    """Why this site would not take part; empty: it would."""


def explain(site: Site, e: Experiment) -> Explained:
    """Explain an experiment that is proposed to this site and its partners."""
    protection = e.protection or Protection()
    return Explained([*_leaves(site, e, protection)], [*_learnt(site, e, protection)], [*_refused(site, e)])


def explain_fit(site: Site, settings: Settings) -> Explained:
    """Explain a fit of tables that is proposed to this site and its partners."""
    return Explained([*_of_fit(site, settings)], [*_learnt_of_fit(site, settings)], [*_refused_fit(site, settings)])


def _of_fit(site: Site, settings: Settings) -> Iterator[str]:
    yield "Once: the names of the columns and of the classes, and the versions of the software here."
    yield "Once: counts, means, variances and histograms of the columns, with small counts withheld."
    yield "Once: how many rows of each class every fold has, as sums over all sites."
    folds = "all sites but one" if settings.cv == "organisation" else f"all rows but one of {site.fit.folds} folds"
    yield f"Some thousand times: the loss and its gradient at a model, of all rows or {folds}, as sums over all sites."
    ratio = site.fit.rows_per_coefficient
    yield f"With them Hessians or Gram matrices, if every part has {ratio:g} rows or more for each coefficient."
    weights = settings.weights if isinstance(settings.weights, int) else len(settings.weights)
    yield f"{site.fit.folds * weights:,} times: the loss of rows that a fold holds out, as sums over all sites."
    if site.fit.measures:
        yield "Once: measures of the model on this site's own held-out rows, rounded to two digits or to five rows."
        yield "Once: the same of a model of this site's rows alone."
        yield "Of models that others have fitted (`proxfed validate`): the same measures on all rows here."
    if site.fit.inference:
        fewest = site.limits.rows
        yield (
            "A few times, for standard errors: how many rows each class has, and products of the gradients of rows or "
            "of clusters, as sums over all sites."
        )
        yield (
            "Twice, of survival times: how many rows leave in even steps of time, and the risk that is left, as sums "
            f"over all sites. Steps with fewer than {fewest} rows are joined; they are the same in all jobs."
        )
        yield (
            "Once: whether this site's own estimates agree with the others', as sums over all sites, without "
            f"categories of fewer than {fewest} rows."
        )
    if site.fit.estimates:
        yield "Once: this site's estimates of its own rows alone, to a hundredth of their standard errors."
    if settings.site_intercepts:
        yield "Once: the intercept of this site, as a mean over all sites. Sums at a model follow its own intercept."
    yield from _limits_of_sums(site, site.fit.masked)
    share = f"fit.dominance = {site.fit.dominance:g}"
    yield f"No sum of Poisson's or Cox's loss, no product and no intercept of which one row makes up more than {share}."
    yield (
        f"Every point counts as an answer, of limits.answers = {site.limits.answers:,} a job, and "
        f"limits.total = {site.limits.total:,} over all jobs."
    )
    if (budget := site.require.privacy) is not None:
        yield (
            "Of a private fit (--epsilon) nothing of this: one message of noisy sums, which counts towards "
            f"require.privacy.epsilon = {budget.epsilon:g} of all jobs."
        )
    yield "Once: this site's signature under the model, of which it keeps a copy."


def _limits_of_sums(site: Site, masked: bool) -> Iterator[str]:
    """The meaning of limits.feature and limits.failures."""
    fewest = site.limits.fewest_of_feature(not masked or len(site.partners) == 1)
    if fewest > 1:
        yield f"Nothing, if a category or another feature has some rows here, but fewer than {fewest} (limits.feature)."
    else:
        yield "A category may have a single row here: sums over all sites then have it in them (limits.feature = 1)."
    yield (
        "An answer that fails tells that a number was too large or a row too heavy. That happens at most "
        f"{site.limits.failures} times over all jobs (limits.failures); then the site answers nothing more."
    )


def _learnt_of_fit(site: Site, settings: Settings) -> Iterator[str]:
    yield "The model itself can remember rows; all sites and the coordinator get it."
    yield "The coordinator reads sums over all sites. If all others show it their answers, it reads this site's, too."
    yield "A coordinator that sends models of its own choosing can single out a rare row, but not whose it is;"
    yield "limits.norm, limits.step and limits.answers make that slow. Folds are this site's own, and always the same."
    if site.fit.inference:
        yield "Products of gradients of a squared loss at a few such models tell the rows that have two categories."
        yield "What only this site can estimate is its own estimate, also under masks."
    if settings.cv == "organisation":
        yield "One organisation is left out at a time: the sums of each, and so this site's own, follow by subtraction."


def _refused_fit(site: Site, settings: Settings) -> Iterator[str]:
    sites = (site.name, *site.partners) if site.partners else (site.name, "site-2", "site-3")
    n, left_out = len(sites), settings.cv == "organisation"
    named = settings.loss if isinstance(settings.loss, dict) else {"name": settings.loss or "logistic"}
    table: dict[str, Any] = {"loss": named, "intercept": settings.intercept, "folds": n if left_out else settings.folds}
    table["by"] = "organisation" if left_out else "rows"
    masked = {"protection": {"secure_aggregation": True, "fraction_bits": site.require.fraction_bits}}
    job = Job(masked, sites, (1,) * n, (1 / n,) * n, {}, "", fit=table)
    try:
        job.check()
        job.check_code(site.allow.code)
        policy.check_job(site, job)
        policy_of_fits.check_fit(site, job)
        policy.check_counts(site)
    except InputError as error:
        yield str(error)
    if not site.data.schema_file:
        yield "its rows have no schema; `proxfed site join` makes a site of one"


def _leaves(site: Site, e: Experiment, protection: Protection) -> Iterator[str]:
    runs, privacy = len(e.algorithms) * len(e.seeds), protection.privacy
    rounds = sum(int(a.get("rounds", e.rounds)) for a in e.algorithms) * len(e.seeds)
    yield "Once: the names of the columns and of the classes, and the versions of the software here."
    if e.problem.get("weighting", EmpiricalRisk.weighting) == "size":
        yield "Once: how many rows there are."
    if site.data.schema_file:
        yield "Once: counts, means, variances and histograms of the columns, with small counts withheld."
    yield f"{rounds:,} times ({runs} runs): a message with numbers for each coefficient of the model, {_precise(e)}"
    batch = e.problem.get("batch")
    if batch is not None:
        yield f"Each is computed from {batch} rows, drawn anew in every step; the coordinator can compute which."
    looks = sum(ceil(int(a.get("rounds", e.rounds)) / e.every) + 1 for a in e.algorithms) * len(e.seeds)
    if privacy is None:
        sums = "as sums over all sites" if protection.secure_aggregation else "of this site alone"
        yield f"{looks:,} times: the loss on training rows and its gradient at the model, {sums}."
        if site.data.held_out or site.data.test:
            yield f"{looks:,} times: measures on test rows, rounded to two digits or to what five rows make."
        yield from _limits_of_sums(site, protection.secure_aggregation)
    if e.reference:
        yield "Some hundred times more: gradients for the reference solution (reference = true)."
    spent = f"{rounds + (looks if privacy is None else 0):,} answers"
    yield f"That is {spent}, of limits.answers = {site.limits.answers:,} a job, limits.total = {site.limits.total:,}."


def _precise(e: Experiment) -> str:
    protection = e.protection or Protection()
    masked, privacy = protection.secure_aggregation, protection.privacy
    digits = f"to 2^-{protection.fraction_bits}" if protection.word_bits == 64 else f"to {protection.word_bits} bits"
    said = f"rounded {digits} and readable only as the sum over all sites" if masked else ""
    if privacy is not None:
        noise = (
            f"clipped to the norm {privacy.clip:g}, with noise of deviation {privacy.noise * privacy.clip:g} in each"
        )
        said = f"{noise}, {said}" if said else noise
    return said or f"to the last digit ({e.dtype})"


def _learnt(site: Site, e: Experiment, protection: Protection) -> Iterator[str]:
    if (privacy := protection.privacy) is not None:
        for a in e.algorithms:
            spent = epsilon({privacy.noise: int(a.get("rounds", e.rounds)) * len(e.seeds)}, privacy.delta)
            label = a.get("label", a["name"])
            yield (
                f"{label}: whoever sees the messages learns of all rows together at most what epsilon = {spent:.3g}, "
                f"delta = {privacy.delta:g} allows, times the clients of this site; 10 and more is little protection."
            )
        return
    yield "The model itself can remember rows; all sites and the coordinator get it."
    if protection.secure_aggregation:
        yield "The coordinator reads sums. If all other sites show it their messages, it reads this site's as well."
        if protection.recovery:
            yield "More than half of the sites together can undo the masks of one that they say has dropped out."
        yield "A coordinator that sends models of its own choosing can single out a rare row, but not whose it is."
    else:
        yield "The coordinator reads every message of this site. From gradients at models of its own choosing it can"
        yield "compute single rows that stand apart, such as the only patient of some age; the limits make it slow."
    if e.problem.get("batch") is not None:
        yield "From as many rounds as there are rows it can compute all rows: minibatches are known to it."


def _refused(site: Site, e: Experiment) -> Iterator[str]:
    tables: dict[str, Any] = e.model_dump(exclude_none=True)
    sites = (site.name, *site.partners) if site.partners else (site.name, *(f"site-{k}" for k in range(2, 4)))
    n = len(sites)
    job = Job({k: tables[k] for k in TABLES if k in tables}, sites, (1,) * n, (1 / n,) * n, {}, "")
    rounds = {"participation": e.participation, "topology": e.topology} if e.topology else {}
    for a in e.algorithms:
        own = job.of(rounds | a | {"rounds": a.get("rounds", e.rounds)}, str(a.get("label", a.get("name"))), 0)
        try:
            own.check()
            own.check_code(site.allow.code)
            policy.check_job(site, own)
        except InputError as error:
            yield f"{own.label}: {error}"
    if e.problem.get("weighting", EmpiricalRisk.weighting) == "size" and not site.allow.counts:
        yield "weighting = 'size': counts of rows are not told (allow.counts = false)"
