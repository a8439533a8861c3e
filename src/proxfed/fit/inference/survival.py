"""Kaplan-Meier, the baseline hazard of Cox's model and the log-rank test, from sums over agreed intervals of time.

Organisations agree on times t_1 < t_2 < ... and send, for every interval (t_{k-1}, t_k], how many events happened, and
the risk at its begin and end: the sum of exp(score) over rows that are still there, where a score of 0 counts rows.

    hazard_k = d_k / R_k        R_k = (R(t_{k-1}+) + R(t_k)) / 2
    survival = prod (1 - hazard) of Kaplan-Meier,  exp(-sum hazard) of a baseline

If every time at which a row leaves is one of the agreed ones, nobody leaves inside an interval and this is
Kaplan-Meier's and Breslow's estimator exactly. Otherwise it is the estimate of a life table. Intervals in which fewer
than `fewest` rows leave, or some but fewer than `fewest` events happen, are joined with the next: by each organisation
before it sends anything, and of all together.

References: E. L. Kaplan, P. Meier, "Nonparametric Estimation from Incomplete Observations", Journal of the American
Statistical Association, 1958; N. Breslow, discussion of Cox's paper, Journal of the Royal Statistical Society B, 1972;
N. Mantel, "Evaluation of Survival Data and Two New Rank Order Statistics", Cancer Chemotherapy Reports, 1966.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray as Array

from proxfed.errors import require
from proxfed.fit.inference.distributions import chi2_tail, t_quantile

if TYPE_CHECKING:
    from proxfed.fit.oracle import Organisations


class RiskTable(NamedTuple):
    """What an organisation sends; those of all are added up. Each is (intervals,)."""

    events: Array
    leaving: Array
    """Rows whose time ends in the interval, with or without an event."""
    begin: Array
    """Sum of exp(score) over rows that are there after its begin."""
    end: Array
    """The same at its end, with the rows that leave just then."""

    def __add__(self, other: RiskTable) -> RiskTable:  # type: ignore[override]
        return RiskTable(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def at_risk(self) -> Array:
        return (self.begin + self.end) / 2


RISKS = RiskTable._fields

STEPS = 200
"""Intervals of a baseline."""
WIDE = 2.0 ** np.arange(-20, 40, 0.25)
"""Times among which the last one is sought at first: nobody need tell one."""


def even_steps(last: float) -> Array:
    """Up to one of WIDE."""
    return np.linspace(0, last, STEPS + 1)[1:]


def risk_table(times: Array, events: Array, grid: Array, scores: Array | None = None) -> RiskTable:
    """Of one organisation's rows, over the agreed times; rows beyond the last one are at risk throughout."""
    grid = np.asarray(grid, float)
    require(bool((np.diff(grid) > 0).all()) and len(grid) > 0, "the agreed times must increase")
    order = np.argsort(times, kind="stable")
    t, e = np.asarray(times, float)[order], np.asarray(events, bool)[order]
    risk = np.ones(len(t)) if scores is None else np.exp(np.asarray(scores, float)[order])
    above = np.append(np.cumsum(risk[::-1])[::-1], 0.0)
    before = np.concatenate([[-np.inf], grid[:-1]])
    inside = np.searchsorted(t, grid, "right") - np.searchsorted(t, before, "right")
    happened = np.append(0, np.cumsum(e))
    count = happened[np.searchsorted(t, grid, "right")] - happened[np.searchsorted(t, before, "right")]
    begin = above[np.searchsorted(t, before, "right")]
    end = above[np.searchsorted(t, grid, "left")]
    return RiskTable(count.astype(float), inside.astype(float), begin, end)


def joined(table: RiskTable, grid: Array, fewest: int) -> tuple[RiskTable, Array]:
    """Neighbouring intervals put together until none says anything of fewer than `fewest` rows.

    What is left over at the end is withheld, with its time.
    """
    begins: list[int] = []
    ends: list[int] = []
    first, leaving, happened = 0, 0.0, 0.0
    for k in range(len(grid)):
        leaving, happened = leaving + table.leaving[k], happened + table.events[k]
        enough = leaving >= fewest and (happened == 0 or happened >= fewest)
        if fewest <= 1 or enough:
            begins.append(first)
            ends.append(k)
            first, leaving, happened = k + 1, 0.0, 0.0
    b, e = np.array(begins, int), np.array(ends, int)
    if not len(b):
        empty = np.zeros(0)
        return RiskTable(empty, empty, empty, empty), empty
    events, left = (
        np.array([v[i : j + 1].sum() for i, j in zip(b, e, strict=True)]) for v in (table.events, table.leaving)
    )
    return RiskTable(events, left, table.begin[b], table.end[e]), np.asarray(grid, float)[e]


def withheld(times: Array, events: Array, grid: Array, fewest: int) -> Array | None:
    """(n,) the times of one organisation's rows, moved so that in no interval of the grid few of them leave, or happen:
    neighbouring intervals are put together, and all leave in the one where most do; None: they are too few."""
    if fewest <= 1:
        return np.asarray(times, float)
    e = np.asarray(events, bool)
    place = np.searchsorted(grid, times, "left")
    inside = place < len(grid)
    leaving = np.bincount(place[inside], minlength=len(grid))
    happened = np.bincount(place[inside & e], minlength=len(grid))
    ends, left, seen = list[int](), 0, 0
    for k in range(len(grid)):
        left, seen = left + leaving[k], seen + happened[k]
        if left >= fewest and (seen == 0 or seen >= fewest):
            ends.append(k)
            left = seen = 0
    if left or seen:  # what is left joins the last of them
        if not ends:
            return None
        ends[-1] = len(grid) - 1
        last = ends[-2] + 1 if len(ends) > 1 else 0
        if 0 < happened[last:].sum() < fewest:
            return None
    moved, first = np.asarray(times, float).copy(), 0
    for end in ends:
        most = first + int(leaving[first : end + 1].argmax())
        moved[(place >= first) & (place <= end)] = grid[most]
        first = end + 1
    if np.array_equal(grid, WIDE):  # whoever asks needs the last time alone: two grids would tell rows between them
        moved[inside] = moved[inside].max()
    return moved


def heaviest(times: Array, events: Array, scores: Array, grid: Array) -> float:
    """The largest share of one row in the sum of exp(score) over the rows that leave in one interval of the grid."""
    place = np.searchsorted(grid, times, "left")
    inside = place < len(grid)
    place, risk = place[inside], np.exp(scores[inside] - scores.max())
    total, most = np.zeros(len(grid)), np.zeros(len(grid))
    np.add.at(total, place, risk)
    np.maximum.at(most, place, risk)
    return float((most[total > 0] / total[total > 0]).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Curve:
    """A survival curve: S(t) from time[k] on, until the next."""

    times: Array
    survival: Array
    low: Array
    high: Array
    events: Array
    at_risk: Array

    def at(self, t: float) -> float:
        """S(t); beyond the last time it is not known."""
        require(
            len(self.times) > 0 and t <= self.times[-1],
            f"t = {t:g} is beyond the last time, {self.times[-1] if len(self.times) else 0:g}",
        )
        k = int(np.searchsorted(self.times, t, "right")) - 1
        return 1.0 if k < 0 else float(self.survival[k])


def kaplan_meier(table: RiskTable, grid: Array, level: float = 0.95, fewest: int = 5) -> Curve:
    """The survival curve of all rows, with Greenwood's intervals on the scale log(-log S)."""
    table, times = joined(table, grid, fewest)
    d, n = table.events, table.at_risk
    with np.errstate(divide="ignore", invalid="ignore"):
        S = np.cumprod(np.where(n > 0, 1 - d / n, 1.0))
        variance = np.cumsum(np.where(n > d, d / (n * (n - d)), 0.0))
        log_S = np.log(S)
        reach = t_quantile(level) * np.sqrt(variance) / np.abs(log_S)
        low = np.exp(-np.exp(np.log(-log_S) + reach))
        high = np.exp(-np.exp(np.log(-log_S) - reach))
    low, high = (np.where(S == 1, 1.0, np.where(S == 0, 0.0, v)) for v in (low, high))
    return Curve(times, S, low, high, d, n)


@dataclass(frozen=True, eq=False)
class Baseline:
    """The cumulative hazard of a row whose score is 0."""

    times: Array
    hazard: Array
    """(intervals,) cumulative."""

    def risk(self, scores: Array, t: float) -> Array:
        """The probability of an event until t: 1 - exp(-hazard(t) exp(score))."""
        last = float(self.times[-1]) if len(self.times) else 0.0
        require(len(self.times) > 0 and t <= last, f"t = {t:g} is beyond the last time of the baseline, {last:g}")
        k = int(np.searchsorted(self.times, t, "right")) - 1
        H = 0.0 if k < 0 else float(self.hazard[k])
        return -np.expm1(-H * np.exp(np.asarray(scores, float)))


def breslow(table: RiskTable, grid: Array, fewest: int = 5) -> Baseline:
    """From risks with the model's scores."""
    table, times = joined(table, grid, fewest)
    n = table.at_risk
    return Baseline(times, np.cumsum(np.where(n > 0, table.events / np.where(n > 0, n, 1), 0.0)))


def agreed_grid(organisations: Organisations, x: Array) -> Array:
    """Times in even steps, up to where the last rows leave; one exchange."""
    table = _risks(organisations, WIDE, x)
    there = np.flatnonzero(table.leaving > 0)
    require(len(there) > 0, "there are too few times above 0")
    return even_steps(float(WIDE[there[-1]]))


def _risks(organisations: Organisations, grid: Array, x: Array) -> RiskTable:
    import torch  # here: predictions need a baseline, and no torch

    return RiskTable(*organisations.risks(torch.from_numpy(grid), torch.from_numpy(x)).numpy())


def baseline_hazard(organisations: Organisations, x: Array, fewest: int) -> Baseline:
    """Of the model x, by all organisations; two exchanges."""
    grid = agreed_grid(organisations, x)
    table = _risks(organisations, grid, x)
    return breslow(table, grid, fewest)


# ---- log-rank -------------------------------------------------------------------------------------------------------


class LogRankSums(NamedTuple):
    """What a stratum sends: events less those expected if all groups were alike, and their covariance."""

    difference: Array
    """(groups,)"""
    covariance: Array
    """(groups, groups)"""

    def __add__(self, other: LogRankSums) -> LogRankSums:  # type: ignore[override]
        return LogRankSums(self.difference + other.difference, self.covariance + other.covariance)


def log_rank_sums(times: Array, events: Array, groups: Array, names: Sequence[object]) -> LogRankSums:
    """Of one organisation's rows: it compares its own rows with each other only, so it is a stratum."""
    t, e = np.asarray(times, float), np.asarray(events, bool)
    place = np.array([list(names).index(g) for g in np.asarray(groups).tolist()], int)
    k = len(names)
    difference, covariance = np.zeros(k), np.zeros((k, k))
    order = np.argsort(t, kind="stable")
    t, e, place = t[order], e[order], place[order]
    member = np.eye(k)[place]
    left = np.vstack([np.cumsum(member[::-1], 0)[::-1], np.zeros((1, k))])
    for when in np.unique(t[e]):
        first, last = np.searchsorted(t, when, "left"), np.searchsorted(t, when, "right")
        at_risk = left[first]
        d = member[first:last][e[first:last]].sum(0)
        n, total = at_risk.sum(), d.sum()
        share = at_risk / n
        difference += d - total * share
        if n > 1:
            covariance += total * (n - total) / (n - 1) * (np.diag(share) - np.outer(share, share))
    return LogRankSums(difference, covariance)


def log_rank(total: LogRankSums) -> tuple[float, int, float]:
    """(statistic, degrees of freedom, p) of the test that survival is alike in all groups, within strata."""
    some = np.flatnonzero(np.diag(total.covariance) > 0)
    if len(some) < 2:
        return 0.0, 0, math.nan
    at = some[:-1]  # the last follows from the others
    z = total.difference[at]
    statistic = float(z @ np.linalg.solve(total.covariance[np.ix_(at, at)], z))
    return statistic, len(at), chi2_tail(statistic, len(at))
