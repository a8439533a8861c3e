"""Testing a paper's claims on our results: on the rows of its cases, by medians over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from statistics import linear_regression
from typing import NamedTuple

from proxfed.harness.results import Results
from proxfed.papers.paper_schema import (
    Bounded,
    Claim,
    Diverges,
    Near,
    Order,
    Slope,
    WithinFactor,
    across_names,
)
from proxfed.papers.quantities import axis_end, seed_median, seed_values, written
from proxfed.report.columns import Directions, Row, agreed, axis_value, better, direction
from proxfed.report.targets import NEVER
from proxfed.types import Better

SHOWN = 4
"""The most cases whose numbers a verdict shows."""


Measured = Bounded | Near | WithinFactor | Order | Slope
"""Claims about numbers."""


class Judged(NamedTuple):
    """A claim in one case: whether it holds, and the numbers."""

    case: str
    holds: bool
    values: dict[str, float]
    """By label; for a claim of divergence, the share of the seeds that diverged."""
    found: str


class Verdict(NamedTuple):
    """A claim, its verdict, and the numbers behind it."""

    claim: Claim
    status: str  # confirmed, not confirmed, not run
    found: str
    cases: Sequence[Judged] = ()
    not_run: Sequence[str] = ()
    """Further cases of the claim, without the necessary rows."""


def judge(
    claim: Claim, results: Mapping[str, Results], quick: bool, cases: Mapping[str, Sequence[str]] | None = None
) -> Verdict:
    """The verdict on one claim; 'not run' if the quick form cannot decide, or no case has enough rows.

    `cases` has the labels of every case of the file: a verdict counts the cases of its claim that were not run.
    """
    if quick and claim.form == "full":
        return Verdict(claim, "not run", "needs the full form")
    labels, own = claim.names, agreed(r.directions for r in results.values())
    judged, missing = [], _missing(claim, labels, {})
    for case, sources in _sources(claim, results).items():
        known = [label for label in labels if label in sources]
        values = {label: value for label in known if (value := _value(claim, *sources[label])) is not None}
        if not isinstance(claim, Diverges) and claim.lost_from is not None:
            values = _lost(claim, values, results.get(claim.lost_from, Results([])))
        if len(values) < len(labels):
            missing = _missing(claim, [label for label in labels if label not in values], sources)
        elif early := _ended_early(claim, values, sources):
            missing = early
        else:
            found = ", ".join(f"{label}: {_shown(claim, value, *sources[label])}" for label, value in values.items())
            if isinstance(claim, Slope) and claim.at is not None:
                found = f"slope {_fit(claim, claim.at, list(values.values())):.3g} ({found})"
            holds = _holds(claim, list(values.values()), own) and not _hollow(claim, sources)
            judged.append(Judged(case, holds, values, found))
    if not judged:
        return Verdict(claim, "not run", missing)
    status = "confirmed" if all(j.holds for j in judged) else "not confirmed"
    every = {} if cases is None or claim.across or claim.case is not None else cases
    seen = {j.case for j in judged}
    not_run = [case for case, has in every.items() if case not in seen and {*labels} <= {*has}]
    return Verdict(claim, status, _summary(judged, len(not_run)), judged, not_run)


class _Source(NamedTuple):
    """The source of the numbers for a name in a claim."""

    results: Results
    label: str


def _sources(claim: Claim, results: Mapping[str, Results]) -> dict[str, dict[str, _Source]]:
    """The sources of a claim's names in each of its cases; for claims across cases, in all of them together."""
    if not claim.across:
        chosen = results if claim.case is None else {case: results[case] for case in results if case == claim.case}
        return {case: {label: _Source(r, label) for label in r.labels()} for case, r in chosen.items()}
    names = across_names({case: r.labels() for case, r in results.items()})
    return {"": {name: _Source(results[case], label) for name, (case, label) in names.items()}}


def _value(claim: Claim, results: Results, label: str) -> float | None:
    """The number of one algorithm in a claim."""
    histories, diverged = results.histories(label), results.diverged(label)
    if isinstance(claim, Diverges):
        return len(diverged) / len(histories) if histories else None
    if isinstance(claim, Slope) and claim.at is None:
        slopes = [_slope(claim, history, results.clients) for history in histories.values()]
        return seed_median([slope for slope in slopes if not math.isnan(slope)], None)
    values = seed_values(claim, results, label, claim.place)
    if claim.target is not None:  # a diverged seed did not reach it, even if it was there before
        values = {seed: NEVER if seed in diverged else value for seed, value in values.items()}
    return seed_median(values.values(), claim.target)


def _slope(claim: Slope, history: Sequence[Row], clients: int | None) -> float:
    """The slope of the measure against the axis in one run; NaN with fewer than two rows."""
    pairs = [(axis_value(row, claim.axis, clients), axis_value(row, claim.measure, clients)) for row in history]
    known = [(x, y) for x, y in pairs if x is not None and y is not None and claim.since <= x <= claim.until]
    usable = [(x, y) for x, y in known if claim.exponential or x > 0]
    return _fit(claim, [x for x, _ in usable], [y for _, y in usable])


def _fit(claim: Slope, x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y against log x, or against x; infinite if some y has no logarithm."""
    if len(set(x)) < 2:
        return math.nan
    if not all(math.isfinite(value) and value > 0 for value in y):
        return math.inf
    where = list(x) if claim.exponential else [math.log(value) for value in x]
    return linear_regression(where, [math.log(value) for value in y]).slope


def _lost(claim: Measured, values: Mapping[str, float], before: Results) -> dict[str, float]:
    """The loss of the values relative to another case, where it has them."""
    then = {label: value for label in values if (value := _value(claim, before, label)) is not None}
    if not then:
        return {}
    sign = 1 if direction(claim.measure, before.directions, "lost_from") == "higher" else -1
    return {label: sign * (then[label] - values[label]) for label in then}


def _holds(claim: Claim, values: list[float], own: Directions) -> bool:
    match claim:
        case Bounded():
            below = claim.below is None or max(values) < claim.below
            return below and (claim.above is None or min(values) > claim.above)
        case Near():
            return all(abs(value - claim.near) <= claim.tolerance for value in values)
        case WithinFactor():
            return all(map(math.isfinite, values)) and max(values) <= claim.within_factor * min(values)
        case Order():
            less = claim.target is not None or claim.lost_from is not None
            way: Better = "lower" if less else direction(claim.measure, own, "order")
            return all(_in_order(claim, way, a, b) for a, b in pairwise(values))
        case Slope():
            slopes = values if claim.at is None else [_fit(claim, claim.at, values)]
            return all(claim.slope[0] <= slope <= claim.slope[1] for slope in slopes)
        case Diverges():
            return set(values) == {float(claim.diverges)}


def _in_order(claim: Order, way: Better, a: float, b: float) -> bool:
    """Ties are not in order, even if neither reached the target; a factor decides about ties itself."""
    if claim.factor is None:
        return a != b and better(way, a, b)
    more, less = (a, b) if way == "higher" else (b, a)
    return math.isfinite(a) and claim.factor * less <= more <= claim.factor_most * less


def _hollow(claim: Claim, sources: Mapping[str, _Source]) -> bool:
    """Being ahead of a diverged run confirms nothing: the paper has a result there, ours has none to compare with."""
    return isinstance(claim, Order) and any(_most_diverged(*sources[name]) for name in claim.names)


# ---- claims without a verdict ----------------------------------------------------------------------------------------


def _missing(claim: Claim, names: list[str], sources: Mapping[str, _Source]) -> str:
    """The numbers of the claim that these names lack."""
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(_missing_number(claim, sources.get(name)), []).append(name)
    return ", ".join(f"no {reason} of {', '.join(names)}" for reason, names in by_reason.items())


def _missing_number(claim: Claim, source: _Source | None) -> str:
    """The number of the claim that this source lacks."""
    results, label = source or _Source(Results([]), "")
    rows = list(chain.from_iterable(results.histories(label).values()))
    if source is not None and not rows:
        return "finished seed"
    if isinstance(claim, Diverges):
        return "rows"
    if all(axis_value(row, claim.measure, results.clients) is None for row in rows):
        return claim.measure
    if claim.target is not None:
        return claim.axis
    if claim.place is None:
        return f"{claim.measure} in {claim.lost_from}"
    return f"{claim.measure} " + ("in round {1}" if claim.round is not None else "after {1} {0}").format(*claim.place)


def _ended_early(claim: Claim, values: Mapping[str, float], sources: Mapping[str, _Source]) -> str:
    """The names that ended before `above` without reaching the target: whether they need more is unknown."""
    if not isinstance(claim, Bounded) or claim.target is None or claim.above is None:
        return ""
    if min(values.values()) <= claim.above:
        return ""
    early = []
    for name in (name for name, value in values.items() if value == NEVER):
        end = axis_end(claim, *sources[name])
        if end is not None and end < claim.above and not _most_diverged(*sources[name]):
            early.append(f"{name}: ended too early ({claim.axis} {written(end, claim.axis)})")
    return ", ".join(early)


def _most_diverged(results: Results, label: str) -> bool:
    return 2 * len(results.diverged(label)) > len(results.histories(label))


# ---- in few words --------------------------------------------------------------------------------------------------


def _shown(claim: Claim, value: float, results: Results, label: str) -> str:
    if isinstance(claim, Diverges):
        seeds, rounds = len(results.histories(label)), sorted(results.diverged(label).values())
        return f"{len(rounds)} of {seeds} seeds diverged" + (f" (round {rounds[0]})" if rounds else "")
    if isinstance(claim, Slope) and claim.at is None:
        return f"slope {value:.3g}"
    if claim.target is not None and value == NEVER:
        return "diverged" if _most_diverged(results, label) else "did not reach"
    return written(value, claim.counts)


def _summary(judged: list[Judged], not_run: int) -> str:
    """The number of cases in which it holds, and the numbers, counterexamples first."""
    if len(judged) == 1 and not judged[0].case:
        return judged[0].found
    shown = sorted(judged, key=lambda j: j.holds)[:SHOWN]
    more = f", {not_run} more not run" if not_run else ""
    several = len(judged) > 1 or not_run > 0
    parts = [f"holds in {sum(j.holds for j in judged)} of {len(judged)} cases{more}"] if several else []
    parts += [f"[{j.case}] {j.found}" for j in shown]
    return "; ".join([*parts, *(["..."] if len(shown) < len(judged) else [])])
