"""A site's policy for fits: decisions by site.toml about the job, its parts, and the queried points."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from proxfed.errors import RunError
from proxfed.silos.protection.guard import Refused
from proxfed.silos.protection.policy import allow_if, check_listed
from proxfed.silos.protection.ranges import Number, numbers, why_not
from proxfed.silos.site.config import Site
from proxfed.silos.wire.fit_job import read_fit
from proxfed.silos.wire.job import Job


def check_fit(site: Site, job: Job) -> None:
    """Whether a job of sums for a fit, which has only a loss and a number of folds, may be answered."""
    if job.fit is None:
        return
    try:
        fit = read_fit(job.fit)
    except RunError as e:
        raise Refused(str(e)) from e
    check_listed(site, "algorithms", site.allow.algorithms, "fit")
    more = [key for key in job.experiment if key != "protection"]
    none = not more and job.algorithm is None and job.x0 is None and job.seed == 0
    allow_if(none, "the job of a fit has no problem, regulariser, algorithm, start or seed: these stay with who asks")
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for number in numbers(fit.loss.model_dump(exclude_none=True), "fit.loss"):
        why = why_not(number, own)
        allow_if(not why, why)
    if fit.private is not None:
        budget = site.require.privacy is not None
        allow_if(budget, "a private fit needs a budget: require.privacy of its site.toml has none")
        allow_if(fit.folds == 0 and fit.by == "rows", "a private fit has no folds")
    protection = job.protection
    open_ = protection.secure_aggregation or not site.fit.masked or job.measures_only
    allow_if(open_, "sums of a fit are told under masks only: protection.secure_aggregation (fit.masked = true)")
    without = protection.privacy is None and protection.robust is None
    allow_if(without, "a fit has neither noise nor a robust mean: protection.privacy and protection.robust")
    if fit.external:
        allow_if(fit.folds == 0 and fit.by == "rows", "a validation has no folds")
        allow_if(site.fit.measures or not job.measures_only, "measures of its rows are not told (fit.measures = false)")
    if fit.by == "organisation":
        allow_if(fit.folds == len(job.sites), f"fit.folds = {fit.folds}, and the job has {len(job.sites)} sites")
        allow_if(site.fit.apart, "leaving out one organisation at a time tells the sums of each (fit.apart = false)")
    elif fit.folds:
        same = fit.folds == site.fit.folds
        allow_if(
            same, f"fit.folds = {fit.folds}, and the rows here are in {site.fit.folds} folds, in all jobs (fit.folds)"
        )


def check_same_folds(site: Site, before: int, now: int, same_units: bool = True) -> None:
    """Whether rows that were divided into folds may be divided differently."""
    allow_if(same_units, "its rows were divided into folds by another [folds], once and for all jobs")
    allow_if(before == now, f"its rows were divided into {before} folds, once and for all jobs, not into {now}")


def check_part(site: Site, rows: int) -> None:
    """Whether a part of the rows, or a difference of two parts, has enough rows; a refusal does not reveal how many."""
    fewest = site.limits.rows
    allow_if(rows >= fewest, f"a fold, or what is left without one, has fewer rows than limits.rows = {fewest}")


def check_cells(site: Site, cells: Tensor) -> None:
    """Whether classes may have weights, or be counted: two answers then differ by the rows of a class."""
    few = bool(((cells > 0) & (cells < site.limits.rows)).any())
    allow_if(not few, f"a class has fewer rows in a fold than limits.rows = {site.limits.rows}")


def check_factors(site: Site, factors: Sequence[float]) -> None:
    """Whether no class has so large a weight that it dominates a sum."""
    own = {key: (low, high) for key, (low, high) in site.ranges.items()}
    for factor in factors:
        why = why_not(Number("factors", "class_weights", factor), own)
        allow_if(not why, why)


def check_judged(site: Site) -> None:
    allow_if(site.fit.measures, "measures of its rows are not told (fit.measures = false)")


def check_inference(site: Site, apart: bool, alone: bool) -> None:
    """Whether sums for standard errors may be revealed, also with this organisation as one cluster or alone."""
    allow_if(site.fit.inference, "sums for standard errors and survival curves are not told (fit.inference = false)")
    said = "clustering by organisation tells nearly the sums of each (fit.apart = false)"
    allow_if(site.fit.apart or not apart, said)
    allow_if(site.fit.estimates or not alone, "estimates of its own rows alone are not told (fit.estimates = false)")


def check_clusters(site: Site, clusters: int) -> None:
    """Whether there are enough clusters for products of their gradients; a refusal does not reveal how many."""
    fewest = site.limits.rows
    allow_if(clusters >= fewest, f"there are fewer clusters than limits.rows = {fewest}")


def check_once(what: str, same: bool) -> None:
    """Whether this site's own rows are queried in one way only: many ways together would reveal them."""
    allow_if(same, f"another query {what!r} was answered in this job, and there is one")


def check_same_times(before: float, now: float) -> None:
    """Whether counts of leaving rows may use other intervals than before: two grids differ by single rows."""
    allow_if(before == now, f"who leaves was told in even steps to {before:g}, once and for all jobs, not to {now:g}")


def check_products(site: Site, rows: int, d: int) -> None:
    """Whether a part has enough rows for products of d columns; a refusal does not reveal how many."""
    fewest = site.fit.rows_per_coefficient
    said = f"Hessians and Gram matrices of {d} coefficients need {fewest:g} times as many rows in every part"
    allow_if(rows >= fewest * d, f"{said} (fit.rows_per_coefficient)")


def check_dominance(site: Site, share: float) -> None:
    """Whether no row dominates a sum. A refusal reveals something about rows: it counts as a failure."""
    if share > site.fit.dominance:
        raise RunError(f"one row would be {share:.0%} of a sum, and fit.dominance = {site.fit.dominance:g}")
