"""What a holder does and does not: decisions of site.toml over a job or a question, described as data.

Nothing here is computed from rows but how many there are, nothing is built and nothing is imported: a job that is
refused has done nothing. Each refusal is one sentence, which is told to whoever asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import isfinite
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from proxfed.errors import RunError, nearest, whole
from proxfed.harness.protection import Privacy, Protection
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.silos.protection.guard import Refused
from proxfed.silos.protection.ledger import Head
from proxfed.silos.protection.ranges import Number, numbers, why_not
from proxfed.silos.site.config import Names, Site
from proxfed.silos.wire.fit_job import read_fit
from proxfed.silos.wire.job import Job

MOST_CLIENTS = 1_000_000


def _allow(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


# ---- a job ---------------------------------------------------------------------------------------------------------


def check_job(site: Site, job: Job) -> None:
    """Whether this site can vouch for all of a job: its names, its numbers and the other sites.

    Names of code are refused before, by `Job.check_code`.
    """
    try:
        protection = job.protection
    except ValidationError as e:
        raise Refused(f"protection = {job.experiment['protection']!r:.200} is not understood") from e
    check_sites(site, job.sites, protection)
    if job.algorithm is not None:
        _listed(site, "algorithms", site.allow.algorithms, str(job.algorithm.get("name")))
        check_rounds(site, job.algorithm.get("rounds", 0))
    check_required(site, protection)
    problem = job.experiment.get("problem", {})
    check_batch(site, problem.get("batch"), protection)
    check_numbers(site, job)
    check_weights(site, job.weights, problem.get("weighting", EmpiricalRisk.weighting))
    if job.x0 is not None:
        check_model(site, [torch.tensor(job.x0, dtype=torch.float64)])


def check_sites(site: Site, sites: Sequence[str], protection: Protection) -> None:
    """Whether these are the partners that this site knows, and enough of them."""
    _allow(site.name in sites, f"the job is for {', '.join(sites)}")
    fewest = site.require.sites
    _allow(len(set(sites)) >= fewest, f"the job has {len(set(sites))} sites, and require.sites = {fewest}")
    strangers = sorted({*sites} - {*site.partners, site.name})
    _allow(not (site.partners and strangers), f"{', '.join(strangers)}: not among its [partners]")
    known = bool(site.partners) or not protection.secure_aggregation
    _allow(known, "with secure_aggregation it takes part only with sites whose keys are under its [partners]")


def check_batch(site: Site, batch: Any, protection: Protection) -> None:
    """Whether gradients of so many rows may leave. A coordinator that knows the seed knows which rows they are."""
    if batch is None:
        return
    said = f"problem.batch = {batch!r:.40}"
    allowed = site.allow.minibatches or protection.privacy is not None
    _allow(allowed, f"{said}: gradients of some rows only are not told (allow.minibatches = false)")
    enough = whole(batch) and batch >= site.limits.rows
    _allow(enough, f"{said} is less than limits.rows = {site.limits.rows}")


def check_numbers(site: Site, job: Job) -> None:
    """Whether every number of a job is in a range that this site has for it."""
    problem = {key: value for key, value in job.experiment.get("problem", {}).items() if key != "batch"}
    tables = {"problem": problem, "regulariser": job.experiment.get("regulariser"), "algorithm": job.algorithm}
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for where, table in tables.items():
        for number in numbers(table, where):
            why = why_not(number, own)
            _allow(not why, why)
    _allow(sum(job.clients) <= MOST_CLIENTS, f"the job has more than {MOST_CLIENTS:,} clients")


def check_weights(site: Site, weights: Sequence[float], weighting: Any) -> None:
    """Whether no client counts so much that a weighted sum is its own message."""
    good = all(isinstance(w, (int, float)) and isfinite(w) and w > 0 for w in weights)
    _allow(good and abs(sum(weights) - 1) < 1e-6, "the job's weights must be positive numbers whose sum is 1")
    equal = max(weights) <= min(weights) * (1 + 1e-9)
    _allow(equal or weighting == "size", f"the job's weights differ, and problem.weighting = {weighting!r:.40}")
    _allow(
        equal or site.allow.counts, "the job's weights differ, and counts of rows are not told (allow.counts = false)"
    )
    most = site.limits.weights
    within = max(weights) <= min(weights) * most
    _allow(within, f"a client of the job weighs more than {most:g} times as much as another (limits.weights)")


def check_model(site: Site, sent: Iterable[Tensor]) -> None:
    """Whether anything is told about vectors that the coordinator sent."""
    most = site.limits.norm
    for x in sent:
        norm = float(x.double().norm())
        _allow(isfinite(norm), "a number that was sent is not finite")
        _allow(norm <= most, f"a vector that was sent has the norm {norm:.3g}, and limits.norm = {most:g}")


def check_rounds(site: Site, rounds: Any) -> None:
    most = site.limits.rounds
    _allow(whole(rounds) and rounds <= most, f"{rounds} rounds are asked for, and limits.rounds = {most}")


def check_required(site: Site, protection: Protection) -> None:
    """Whether messages are protected as this site wants it."""
    require, privacy = site.require, protection.privacy
    masked = protection.secure_aggregation or not require.secure_aggregation
    bits = require.fraction_bits
    right = not protection.secure_aggregation or protection.fraction_bits == bits
    _allow(right, f"protection.fraction_bits = {protection.fraction_bits}, and require.fraction_bits = {bits}")
    _allow(masked, "the job has no protection.secure_aggregation = true, which this site requires")
    if require.privacy is None:
        return
    least = require.privacy.noise
    if privacy is None:
        raise Refused("the job has no protection.privacy, which this site requires")
    enough = privacy.noise >= least
    _allow(enough, f"protection.privacy.noise = {privacy.noise:g}, and this site requires at least {least:g}")


# ---- a fit ---------------------------------------------------------------------------------------------------------


def check_fit(site: Site, job: Job) -> None:
    """Whether a job of sums for a fit may be answered: it brings a loss and a number of folds, and nothing else."""
    if job.fit is None:
        return
    try:
        fit = read_fit(job.fit)
    except RunError as e:
        raise Refused(str(e)) from e
    _listed(site, "algorithms", site.allow.algorithms, "fit")
    more = [key for key in job.experiment if key != "protection"]
    none = not more and job.algorithm is None and job.x0 is None and job.seed == 0
    _allow(none, "the job of a fit has no problem, regulariser, algorithm, start or seed: these stay with who asks")
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for number in numbers(fit.loss.model_dump(exclude_none=True), "fit.loss"):
        why = why_not(number, own)
        _allow(not why, why)
    protection = job.protection
    open_ = protection.secure_aggregation or not site.fit.masked
    _allow(open_, "sums of a fit are told under masks only: protection.secure_aggregation (fit.masked = true)")
    without = protection.privacy is None and protection.robust is None
    _allow(without, "a fit has neither noise nor a robust mean: protection.privacy and protection.robust")
    if fit.by == "organisation":
        _allow(fit.folds == len(job.sites), f"fit.folds = {fit.folds}, and the job has {len(job.sites)} sites")
        _allow(site.fit.apart, "leaving out one organisation at a time tells the sums of each (fit.apart = false)")
    elif fit.folds:
        same = fit.folds == site.fit.folds
        _allow(
            same, f"fit.folds = {fit.folds}, and the rows here are in {site.fit.folds} folds, in all jobs (fit.folds)"
        )


def check_same_folds(site: Site, before: int, now: int, same_units: bool = True) -> None:
    """Whether rows that were divided into folds may be divided otherwise."""
    _allow(same_units, "its rows were divided into folds by another [folds], once and for all jobs")
    _allow(before == now, f"its rows were divided into {before} folds, once and for all jobs, not into {now}")


def check_part(site: Site, rows: int) -> None:
    """Whether anything is told of a part of the rows, or of what two parts differ by; how many rows is not said."""
    fewest = site.limits.rows
    _allow(rows >= fewest, f"a fold, or what is left without one, has fewer rows than limits.rows = {fewest}")


def check_cells(site: Site, cells: Tensor) -> None:
    """Whether rows of the classes may count differently, or be counted: two answers then differ by rows of a class."""
    few = bool(((cells > 0) & (cells < site.limits.rows)).any())
    _allow(not few, f"a class has fewer rows in a fold than limits.rows = {site.limits.rows}")


def check_factors(site: Site, factors: Sequence[float]) -> None:
    """Whether no class counts so much more than others that it stands alone in a sum."""
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for factor in factors:
        why = why_not(Number("factors", "class_weights", factor), own)
        _allow(not why, why)


def check_judged(site: Site) -> None:
    _allow(site.fit.measures, "measures of its held-out rows are not told (fit.measures = false)")


def check_products(site: Site, rows: int, d: int) -> None:
    """Whether so many products of columns may be told of a part; how many rows it has is not said."""
    fewest = site.fit.rows_per_coefficient
    said = f"Hessians and Gram matrices of {d} coefficients need {fewest:g} times as many rows in every part"
    _allow(rows >= fewest * d, f"{said} (fit.rows_per_coefficient)")


def _listed(site: Site, what: str, allowed: Names, name: str) -> None:
    ok = allowed == "all" or name in allowed or name in site.allow.code
    known = "none" if not allowed or allowed == "all" else nearest(name, allowed)
    _allow(ok, f"{name!r} is not among its allow.{what}: {known}")


# ---- a question ----------------------------------------------------------------------------------------------------


def check_rows(site: Site, rows: int) -> None:
    """Whether there are enough rows to answer for; how many there are is not said."""
    _allow(rows >= site.limits.rows, f"it has fewer rows than limits.rows = {site.limits.rows}")


def check_measure(site: Site, name: str) -> None:
    _listed(site, "measures", site.allow.measures, name)


def check_noiseless(site: Site, name: str, privacy: Privacy | None) -> None:
    """Whether this may be told of rows in a job whose messages get noise."""
    said = f"{name!r} would be told without noise, in a job with protection.privacy"
    _allow(privacy is None, said)


def check_preparation(site: Site, name: str) -> None:
    """Where noise is required, what has none is told only if the site names it."""
    named = site.require.privacy is None or site.allow.preparations != "all"
    _allow(named, f"{name!r} has no noise: with require.privacy, allow.preparations must name it")
    _listed(site, "preparations", site.allow.preparations, name)


def check_counts(site: Site) -> None:
    _allow(site.allow.counts, "counts of its rows are not told (allow.counts = false)")


def check_bytes(site: Site, so_far: int, more: int) -> None:
    """Whether so many bytes may leave after those that have left for this job; how many these are is not said."""
    most = site.limits.bytes
    _allow(so_far + more <= most, f"with this answer more than limits.bytes = {most:,} would leave for this job")


def check_answers(site: Site, of_job: int, in_all: int, more: int = 1) -> None:
    """Whether so many more answers that depend on rows may leave."""
    said = "have been given" if more == 1 else f"are fewer than with {more:,} more"
    _allow(of_job + more <= site.limits.answers, f"limits.answers = {site.limits.answers:,} of this job {said}")
    _allow(in_all + more <= site.limits.total, f"limits.total = {site.limits.total:,} answers {said}, over all jobs")


def check_sum(site: Site, cohort: Sequence[str]) -> None:
    """Whether a sum over these sites hides enough."""
    least = site.require.sites
    _allow(len(cohort) >= least, f"a sum of {len(cohort)} sites, and require.sites = {least}")


def check_survivors(
    site: Site, t: int, cohort: Collection[str], survivors: Sequence[str], told: Sequence[str] | None
) -> None:
    """Whether masks may be undone, so that the sum of a cohort's survivors can be read: once, and if it hides enough.

    told: the survivors for whom shares were told before.
    """
    good = {*survivors} <= {*cohort} and len({*survivors}) == len(survivors) and site.name in survivors
    _allow(good, f"round {t}: {', '.join(survivors)} are not survivors of it")
    check_sum(site, survivors)
    whole = len(survivors) == len(cohort) or not site.require.same_cohort
    _allow(whole, f"round {t}: the sum of fewer sites than before would tell them apart (require.same_cohort = true)")
    once = told is None or list(told) == list(survivors)
    _allow(once, f"round {t}: shares were told for other survivors before; both together would tell a message")


def check_same_sum(site: Site, t: int, before: Sequence[str], now: Sequence[str]) -> None:
    """Whether a round that was answered for the sum of some sites may be answered for that of these."""
    said = f"round {t} was answered for the sum of {', '.join(before)}: that of {', '.join(now)} would tell them apart"
    _allow(list(before) == list(now), said)


def check_same_cohort(site: Site, before: Sequence[str], now: Sequence[str]) -> None:
    """Whether the sum over these sites may follow on one over others: at models near to each other both tell much of
    the message of a site that is in one of them."""
    said = f"a round of this job was a sum over {', '.join(before)}, and this one is over {', '.join(now)}"
    _allow(list(before) == list(now), f"{said} (require.same_cohort = true)")


def check_other_circle(site: Site, other: Collection[str], same_weights: bool) -> None:
    """Whether a job with masks may be between other sites than an earlier one, by those that are in one of them."""
    if not other:
        _allow(
            same_weights, "an earlier job between the same sites had other weights: both sums together tell messages"
        )
        return
    fewest, names = site.limits.partners, ", ".join(sorted(other))
    _allow(len(other) >= fewest, f"an earlier job differs by {names} only, and limits.partners = {fewest}")


def check_head(site: Site, partner: str, before: Head, now: Head) -> None:
    """Whether a partner's audit file has the lines that it had; of this site's own, not more than there are."""
    if partner == site.name:
        known = now.lines <= before.lines and (now.lines < before.lines or now == before)
        _allow(known, "the job knows another audit file of this site than there is")
        return
    grown = now.lines > before.lines or now == before
    _allow(grown, f"the audit file of {partner} does not have the lines any more that it had at an earlier job")


def check_signed(partner: str, good: bool) -> None:
    """Whether a partner itself said how far its audit file is."""
    _allow(good, f"how far the audit file of {partner} is was not signed with the key of {partner}")


def check_step(site: Site, far: float) -> None:
    """Whether anything is told about a model so far from those before it."""
    most = site.limits.step
    _allow(far <= most, f"a model was sent that is {far:.3g} away from all those before it, and limits.step = {most:g}")


def check_test_rows(site: Site, rows: int) -> None:
    _allow(rows >= site.limits.rows, f"it has fewer test rows than limits.rows = {site.limits.rows}")


def check_same_content(site: Site, t: int, same: bool) -> None:
    """Whether what was answered before to the same question is answered again: two contents share no mask."""
    _allow(same, f"a question of round {t} was answered before, and the answer would be another one now")


def check_epsilon(site: Site, spent: float) -> None:
    """Whether a message may leave after which all that left is as private as `spent` says."""
    required = site.require.privacy
    if required is not None:
        said = f"with one more message epsilon would be {spent:.3g}, and require.privacy.epsilon = {required.epsilon:g}"
        _allow(spent <= required.epsilon, said)
