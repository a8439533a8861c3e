"""Does what a paper says of its results hold for ours? Judged on the rows of a run, by medians over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from proxfed.config import Claim
from proxfed.errors import require
from proxfed.record import Row

HIGHER_IS_BETTER = {"accuracy"}


class Verdict(NamedTuple):
    """A claim, what became of it, and the numbers that it was judged by."""

    claim: Claim
    status: str  # confirmed, not confirmed, not run
    found: str


def judge(claim: Claim, rows: Sequence[Row], quick: bool) -> Verdict:
    """The verdict on one claim; 'not run' if the quick form cannot tell, or the rows do not reach that far."""
    if quick and claim.form == "full":
        return Verdict(claim, "not run", "needs the full form")
    values = {label: _value(claim, label, rows) for label in _labels(claim)}
    missing = [label for label, value in values.items() if value is None]
    if missing:
        return Verdict(claim, "not run", f"no {claim.measure} of {', '.join(missing)}")
    known = {label: value for label, value in values.items() if value is not None}
    found = ", ".join(f"{label}: {value:.3g}" for label, value in known.items())
    return Verdict(claim, "confirmed" if _holds(claim, list(known.values())) else "not confirmed", found)


def _labels(claim: Claim) -> list[str]:
    given = [[claim.label] if claim.label else None, claim.order, claim.labels]
    chosen = [labels for labels in given if labels is not None]
    require(len(chosen) == 1, f"the claim {claim.says!r} needs exactly one of label, order and labels")
    return chosen[0]


def _value(claim: Claim, label: str, rows: Sequence[Row]) -> float | None:
    """The median over the seeds at the round that the claim speaks of, or at each seed's last one."""
    mine = [row for row in rows if row["algorithm"] == label and row.get(claim.measure) is not None]
    if claim.round is not None:
        at = [row[claim.measure] for row in mine if row["round"] == claim.round]
    else:
        at = [max((r for r in mine if r["seed"] == s), key=lambda r: r["round"])[claim.measure] for s in _seeds(mine)]
    return median(at) if at else None


def _seeds(rows: Sequence[Row]) -> set[int]:
    return {row["seed"] for row in rows}


def _holds(claim: Claim, values: list[float]) -> bool:
    better = claim.measure in HIGHER_IS_BETTER
    checks = [
        claim.below is None or values[0] < claim.below,
        claim.above is None or values[0] > claim.above,
        claim.near is None or abs(values[0] - claim.near) <= (claim.tolerance or 0),
        claim.order is None or values == sorted(values, reverse=better),
        claim.within_factor is None or max(values) <= claim.within_factor * min(values),
    ]
    return all(checks)
