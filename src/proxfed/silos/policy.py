"""What a holder does and does not: decisions of site.toml over a job or a question, described as data.

Nothing here is computed from rows but how many there are, nothing is built and nothing is imported: a job that is
refused has done nothing. Each refusal is one sentence, which is told to whoever asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from proxfed.errors import nearest, whole
from proxfed.harness.protection import Privacy, Protection
from proxfed.silos.guard import Refused
from proxfed.silos.site import Names, Site


def _allow(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


# ---- a job ---------------------------------------------------------------------------------------------------------


def check_job(site: Site, experiment: Mapping[str, Any], sites: Sequence[str]) -> None:
    """Whether this site takes part in an experiment, as resolved tables, together with these sites.

    Names of code are refused before, by `Job.check_code`.
    """
    _allow(site.name in sites, f"the job is for {', '.join(sites)}")
    fewest = site.require.sites
    _allow(len(set(sites)) >= fewest, f"the job has {len(set(sites))} sites, and require.sites = {fewest}")
    for table in experiment.get("algorithms", ()):
        _listed(site, "algorithms", site.allow.algorithms, str(table.get("name")))
        check_rounds(site, table.get("rounds", 0))
    try:
        check_required(site, Protection.model_validate(experiment.get("protection") or {}))
    except ValidationError as e:
        raise Refused(f"protection = {experiment['protection']!r:.200} is not understood") from e


def check_rounds(site: Site, rounds: Any) -> None:
    most = site.limits.rounds
    _allow(whole(rounds) and rounds <= most, f"{rounds} rounds are asked for, and limits.rounds = {most}")


def check_required(site: Site, protection: Protection) -> None:
    """Whether messages are protected as this site wants it."""
    require, privacy = site.require, protection.privacy
    masked = protection.secure_aggregation or not require.secure_aggregation
    _allow(masked, "the job has no protection.secure_aggregation = true, which this site requires")
    if require.privacy is None:
        return
    least = require.privacy.noise
    if privacy is None:
        raise Refused("the job has no protection.privacy, which this site requires")
    enough = privacy.noise >= least
    _allow(enough, f"protection.privacy.noise = {privacy.noise:g}, and this site requires at least {least:g}")


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
    """Whether this may be told of training rows in a job whose messages get noise."""
    said = f"{name!r} would be told without noise, in a job with protection.privacy"
    _allow(privacy is None or name == "test", said)


def check_preparation(site: Site, name: str) -> None:
    _listed(site, "preparations", site.allow.preparations, name)


def check_counts(site: Site) -> None:
    _allow(site.allow.counts, "counts of its rows are not told (allow.counts = false)")


def check_bytes(site: Site, so_far: int, more: int) -> None:
    """Whether so many bytes may leave after those that have left for this job."""
    most = site.limits.bytes
    _allow(so_far + more <= most, f"{so_far:,} bytes have left for this job, and limits.bytes = {most:,}")


def check_sum(site: Site, cohort: Sequence[str]) -> None:
    """Whether a sum over these sites hides enough."""
    least = site.require.sites
    _allow(len(cohort) >= least, f"a sum of {len(cohort)} sites, and require.sites = {least}")


def check_same_sum(site: Site, t: int, before: Sequence[str], now: Sequence[str]) -> None:
    """Whether a round that was answered for the sum of some sites may be answered for that of these."""
    said = f"round {t} was answered for the sum of {', '.join(before)}: that of {', '.join(now)} would tell them apart"
    _allow(list(before) == list(now), said)


def check_same_content(site: Site, t: int, same: bool) -> None:
    """Whether what was answered before to the same question is answered again: two contents share no mask."""
    _allow(same, f"a question of round {t} was answered before, and the answer would be another one now")


def check_epsilon(site: Site, spent: float) -> None:
    """Whether a message may leave after which all that left is as private as `spent` says."""
    required = site.require.privacy
    if required is not None:
        said = f"with one more message epsilon would be {spent:.3g}, and require.privacy.epsilon = {required.epsilon:g}"
        _allow(spent <= required.epsilon, said)
