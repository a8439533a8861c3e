"""A holder's policy: decisions by site.toml about a job or a question, described as data.

Nothing here depends on rows except for their number, nothing is built or imported: a refused job has had no effect.
Each refusal is one sentence, which is sent to the coordinator.
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
from proxfed.silos.protection.ranges import numbers, why_not
from proxfed.silos.site.config import Names, Site
from proxfed.silos.wire.job import Job

MOST_CLIENTS = 1_000_000


def allow_if(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


# ---- a job ---------------------------------------------------------------------------------------------------------


def check_job(site: Site, job: Job) -> None:
    """Whether this site allows all of a job: its names, its numbers and the other sites.

    Names of code are checked before, by `Job.check_code`.
    """
    try:
        protection = job.protection
    except ValidationError as e:
        raise Refused(f"protection = {job.experiment['protection']!r:.200} is not understood") from e
    if not job.measures_only:
        check_sites(site, job.sites, protection)
    if job.algorithm is not None:
        check_listed(site, "algorithms", site.allow.algorithms, str(job.algorithm.get("name")))
        check_rounds(site, job.algorithm.get("rounds", 0))
    check_required(site, protection, job.private)
    problem = job.experiment.get("problem", {})
    check_batch(site, problem.get("batch"), protection)
    check_numbers(site, job)
    check_weights(site, job.weights, problem.get("weighting", EmpiricalRisk.weighting))
    if job.x0 is not None:
        start = torch.tensor(job.x0, dtype=torch.float64)
        check_model(site, [start])
        check_step(site, float(start.norm()))


def check_sites(site: Site, sites: Sequence[str], protection: Protection) -> None:
    """Whether these are this site's partners, and enough of them."""
    allow_if(site.name in sites, f"the job is for {', '.join(sites)}")
    fewest = site.require.sites
    allow_if(len(set(sites)) >= fewest, f"the job has {len(set(sites))} sites, and require.sites = {fewest}")
    strangers = sorted({*sites} - {*site.partners, site.name})
    allow_if(not (site.partners and strangers), f"{', '.join(strangers)}: not among its [partners]")
    known = bool(site.partners) or not protection.secure_aggregation
    allow_if(known, "with secure_aggregation it takes part only with sites whose keys are under its [partners]")


def check_batch(site: Site, batch: Any, protection: Protection) -> None:
    """Whether gradients of so many rows may leave. The coordinator knows the seed, and so which rows they are."""
    if batch is None:
        return
    said = f"problem.batch = {batch!r:.40}"
    allowed = site.allow.minibatches or protection.privacy is not None
    allow_if(allowed, f"{said}: gradients of some rows only are not told (allow.minibatches = false)")
    enough = whole(batch) and batch >= site.limits.rows
    allow_if(enough, f"{said} is less than limits.rows = {site.limits.rows}")


def check_numbers(site: Site, job: Job) -> None:
    """Whether every number of a job is in the site's range."""
    problem = {key: value for key, value in job.experiment.get("problem", {}).items() if key != "batch"}
    tables = {"problem": problem, "regulariser": job.experiment.get("regulariser"), "algorithm": job.algorithm}
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for where, table in tables.items():
        for number in numbers(table, where):
            why = why_not(number, own)
            allow_if(not why, why)
    allow_if(sum(job.clients) <= MOST_CLIENTS, f"the job has more than {MOST_CLIENTS:,} clients")


def check_weights(site: Site, weights: Sequence[float], weighting: Any) -> None:
    """Whether no client's weight is so large that a weighted sum is nearly its own message."""
    good = all(isinstance(w, (int, float)) and isfinite(w) and w > 0 for w in weights)
    allow_if(good and abs(sum(weights) - 1) < 1e-6, "the job's weights must be positive numbers whose sum is 1")
    equal = max(weights) <= min(weights) * (1 + 1e-9)
    allow_if(equal or weighting == "size", f"the job's weights differ, and problem.weighting = {weighting!r:.40}")
    allow_if(
        equal or site.allow.counts, "the job's weights differ, and counts of rows are not told (allow.counts = false)"
    )
    most = site.limits.weights
    within = max(weights) <= min(weights) * most
    allow_if(within, f"a client of the job weighs more than {most:g} times as much as another (limits.weights)")


def check_model(site: Site, sent: Iterable[Tensor]) -> None:
    """Whether the coordinator's vectors may be evaluated."""
    most = site.limits.norm
    for x in sent:
        norm = float(x.double().norm())
        allow_if(isfinite(norm), "a number that was sent is not finite")
        allow_if(norm <= most, f"a vector that was sent has the norm {norm:.3g}, and limits.norm = {most:g}")


def check_rounds(site: Site, rounds: Any) -> None:
    most = site.limits.rounds
    allow_if(whole(rounds) and rounds <= most, f"{rounds} rounds are asked for, and limits.rounds = {most}")


def check_required(site: Site, protection: Protection, private_fit: bool = False) -> None:
    """Whether messages are protected as this site requires."""
    require, privacy = site.require, protection.privacy
    masked = protection.secure_aggregation or not require.secure_aggregation
    bits = require.fraction_bits
    right = not protection.secure_aggregation or protection.fraction_bits == bits
    allow_if(right, f"protection.fraction_bits = {protection.fraction_bits}, and require.fraction_bits = {bits}")
    allow_if(masked, "the job has no protection.secure_aggregation = true, which this site requires")
    if require.privacy is None or private_fit:
        return
    least = require.privacy.noise
    if privacy is None:
        raise Refused("the job has no protection.privacy, which this site requires")
    enough = privacy.noise >= least
    allow_if(enough, f"protection.privacy.noise = {privacy.noise:g}, and this site requires at least {least:g}")


# ---- names -----------------------------------------------------------------------------------------------------


def check_listed(site: Site, what: str, allowed: Names, name: str) -> None:
    ok = allowed == "all" or name in allowed or name in site.allow.code
    known = "none" if not allowed or allowed == "all" else nearest(name, allowed)
    allow_if(ok, f"{name!r} is not among its allow.{what}: {known}")


# ---- a question ----------------------------------------------------------------------------------------------------


def check_rows(site: Site, rows: int) -> None:
    """Whether there are enough rows for an answer; a refusal does not reveal their number."""
    allow_if(rows >= site.limits.rows, f"it has fewer rows than limits.rows = {site.limits.rows}")


def check_measure(site: Site, name: str) -> None:
    check_listed(site, "measures", site.allow.measures, name)


def check_noiseless(site: Site, name: str, privacy: Privacy | None) -> None:
    """Whether this quantity may be revealed in a job whose messages get noise."""
    said = f"{name!r} would be told without noise, in a job with protection.privacy"
    allow_if(privacy is None, said)


def check_preparation(site: Site, name: str) -> None:
    """If noise is required, a quantity without noise is revealed only if the site names it."""
    named = site.require.privacy is None or site.allow.preparations != "all"
    allow_if(named, f"{name!r} has no noise: with require.privacy, allow.preparations must name it")
    check_listed(site, "preparations", site.allow.preparations, name)


def check_counts(site: Site) -> None:
    said = "counts of its rows are not told (allow.counts = false)"
    allow_if(site.allow.counts, f"{said}; without them all clients count the same: problem.weighting = 'uniform'")


def check_bytes(site: Site, so_far: int, more: int) -> None:
    """Whether so many more bytes may leave for this job; a refusal does not reveal how many have left."""
    most = site.limits.bytes
    allow_if(so_far + more <= most, f"with this answer more than limits.bytes = {most:,} would leave for this job")


def check_answers(site: Site, of_job: int, in_all: int, more: int = 1) -> None:
    """Whether so many more answers that depend on rows may leave."""
    said = "have been given" if more == 1 else f"are fewer than with {more:,} more"
    allow_if(of_job + more <= site.limits.answers, f"limits.answers = {site.limits.answers:,} of this job {said}")
    allow_if(in_all + more <= site.limits.total, f"limits.total = {site.limits.total:,} answers {said}, over all jobs")


def check_failures(site: Site, so_far: int) -> None:
    """Whether another question that may fail is answered: each failure reveals something about the rows."""
    most = site.limits.failures
    allow_if(so_far < most, f"{so_far} answers have failed while they were computed, and limits.failures = {most}")


def check_sum(site: Site, cohort: Sequence[str]) -> None:
    """Whether a sum over these sites hides enough."""
    least = site.require.sites
    allow_if(len(cohort) >= least, f"a sum of {len(cohort)} sites, and require.sites = {least}")


def check_survivors(
    site: Site, t: int, cohort: Collection[str], survivors: Sequence[str], told: Sequence[str] | None
) -> None:
    """Whether masks may be undone to read the sum of a cohort's survivors: only once, and if it hides enough.

    told: the survivors for whom shares were sent before.
    """
    good = {*survivors} <= {*cohort} and len({*survivors}) == len(survivors) and site.name in survivors
    allow_if(good, f"round {t}: {', '.join(survivors)} are not survivors of it")
    check_sum(site, survivors)
    whole = len(survivors) == len(cohort) or not site.require.same_cohort
    allow_if(whole, f"round {t}: the sum of fewer sites than before would tell them apart (require.same_cohort = true)")
    once = told is None or list(told) == list(survivors)
    allow_if(once, f"round {t}: shares were told for other survivors before; both together would tell a message")


def check_same_sum(site: Site, t: int, before: Sequence[str], now: Sequence[str]) -> None:
    """Whether a round that was answered for the sum of some sites may be answered for these sites."""
    said = f"round {t} was answered for the sum of {', '.join(before)}: that of {', '.join(now)} would tell them apart"
    allow_if(list(before) == list(now), said)


def check_same_cohort(site: Site, before: Sequence[str], now: Sequence[str]) -> None:
    """Whether the sum over these sites may follow one over others: at models close to each other both reveal much about
    the message of a site that is in only one of them."""
    said = f"a round of this job was a sum over {', '.join(before)}, and this one is over {', '.join(now)}"
    allow_if(list(before) == list(now), f"{said} (require.same_cohort = true)")


def check_other_circle(site: Site, other: Collection[str], same_weights: bool) -> None:
    """Whether a masked job may have other sites than an earlier one, by the sites that are in only one of them."""
    if not other:
        allow_if(
            same_weights, "an earlier job between the same sites had other weights: both sums together tell messages"
        )
        return
    fewest, names = site.limits.partners, ", ".join(sorted(other))
    allow_if(len(other) >= fewest, f"an earlier job differs by {names} only, and limits.partners = {fewest}")


def check_head(site: Site, partner: str, before: Head, now: Head) -> None:
    """Whether a partner's audit file still has its earlier lines, and counts no more of this site's than exist."""
    if partner == site.name:
        known = now.lines <= before.lines and (now.lines < before.lines or now == before)
        allow_if(known, "the job knows another audit file of this site than there is")
        return
    grown = now.lines > before.lines or now == before
    allow_if(grown, f"the audit file of {partner} does not have the lines any more that it had at an earlier job")


def check_signed(partner: str, good: bool) -> None:
    """Whether the position of a partner's audit file is signed by the partner."""
    allow_if(good, f"how far the audit file of {partner} is was not signed with the key of {partner}")


def check_step(site: Site, far: float) -> None:
    """Whether a model so far from all earlier ones may be evaluated."""
    most = site.limits.step
    allow_if(
        far <= most, f"a model was sent that is {far:.3g} away from all those before it, and limits.step = {most:g}"
    )


def fewest_of_feature(site: Site, job: Job) -> int:
    """The minimum number of rows that differ from all others in each feature; 1: no restriction."""
    if job.protection.privacy is not None or job.private:
        return 1
    masked = job.protection.secure_aggregation and len(set(job.sites)) > 2
    return site.limits.fewest_of_feature(not masked)


def check_features(fewest: int, rows: Sequence[int], names: Sequence[str]) -> None:
    """Whether enough rows differ from all others in each feature; only the site's log names the others."""
    few = [name for name, count in zip(names, rows, strict=True) if 0 < count < fewest]
    if few:
        said = "these features single out fewer rows than limits.feature"
        raise RunError(f"{said} = {fewest}: {', '.join(few[:10])}")


def check_test_rows(site: Site, rows: int) -> None:
    allow_if(rows >= site.limits.rows, f"it has fewer test rows than limits.rows = {site.limits.rows}")


def check_same_content(site: Site, t: int, same: bool) -> None:
    """Whether the answer equals the earlier one to the same question: two contents must not share a mask."""
    allow_if(same, f"a question of round {t} was answered before, and the answer would be another one now")


def check_epsilon(site: Site, spent: float) -> None:
    """Whether a message may leave after which the total privacy loss is `spent`."""
    required = site.require.privacy
    if required is not None:
        said = f"with one more message epsilon would be {spent:.3g}, and require.privacy.epsilon = {required.epsilon:g}"
        allow_if(spent <= required.epsilon, said)
