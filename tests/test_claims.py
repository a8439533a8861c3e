"""Claims of every kind, true and false, on rows made by hand; and ours beside the paper's numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from proxfed.cases import read_cases
from proxfed.claims import compare, judge
from proxfed.config import Claim, Reported, shipped
from proxfed.targets import NEVER, Results, axis_value, first_reached

CLIENTS = 4


def curve(label: str, values: list[float | None], seed: int = 0, measure: str = "error") -> list[dict[str, Any]]:
    """Rows of rounds 0, 1, ...: 8 gradients, 100 bytes up and 300 down a round."""
    return [
        {
            "algorithm": label, "seed": seed, "round": t, "gradients": 8 * t,
            "bytes_up": 100 * t, "bytes_down": 300 * t, "bytes_edge": 0, measure: value,
        }
        for t, value in enumerate(values)
    ]  # fmt: skip


def state(label: str, status: str, t: int, seed: int = 0) -> dict[str, Any]:
    return {"algorithm": label, "seed": seed, "status": status, "round": t, "message": ""}


def results(**curves: list[float | None]) -> Results:
    return Results([row for label, values in curves.items() for row in curve(label, values)], (), CLIENTS)


def status(cases: Results | dict[str, Results], quick: bool = False, **claim: Any) -> str:
    cases = cases if isinstance(cases, dict) else {"": cases}
    return judge(Claim(says="so", **({"measure": "error"} | claim)), cases, quick).status


FAST_AND_SLOW = results(fast=[1.0, 0.1, 0.01, 0.02], slow=[1.0, 0.5, 0.4, 0.3])


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ({"label": "fast", "below": 0.03}, True),
        ({"label": "fast", "below": 0.02}, False),
        ({"label": "slow", "above": 0.2}, True),
        ({"label": "slow", "above": 0.3}, False),
        ({"label": "slow", "round": 1, "above": 0.4, "below": 0.6}, True),
        ({"label": "slow", "near": 0.31, "tolerance": 0.02}, True),
        ({"label": "slow", "near": 0.35, "tolerance": 0.02}, False),
        ({"order": ["fast", "slow"]}, True),
        ({"order": ["slow", "fast"]}, False),
        ({"labels": ["fast", "slow"], "within_factor": 16.0}, True),
        ({"labels": ["fast", "slow"], "within_factor": 14.0}, False),
        ({"labels": ["fast", "slow"], "below": 0.31}, True),
        ({"labels": ["fast", "slow"], "below": 0.3}, False),
        ({"label": "fast", "target": 0.1, "below": 2}, True),
        ({"label": "fast", "target": 0.1, "below": 1}, False),
        ({"label": "slow", "target": 0.1, "above": 3}, True),  # it never does
        ({"label": "slow", "target": 0.1, "below": 1e9}, False),
        ({"order": ["fast", "slow"], "target": 0.5}, False),  # both in round 1
        ({"order": ["fast", "slow"], "target": 0.4}, True),
        ({"order": ["slow", "fast"], "target": 0.4}, False),
        ({"order": ["fast", "slow"], "target": 0.01}, True),  # slow never does
        ({"order": ["slow", "fast"], "target": 0.01}, False),
        ({"order": ["fast", "slow"], "target": 1e-9}, False),  # neither does
        ({"label": "slow", "target": 0.4, "axis": "steps", "near": 4.0, "tolerance": 0.1}, True),
        ({"label": "slow", "target": 0.4, "axis": "bytes", "near": 800.0, "tolerance": 0.1}, True),
        ({"label": "slow", "target": 0.4, "axis": "bytes_up", "near": 200.0, "tolerance": 0.1}, True),
        ({"labels": ["fast", "slow"], "target": 0.01, "within_factor": 100.0}, False),
        ({"label": "slow", "measure": "bytes", "round": 2, "near": 800.0, "tolerance": 0.1}, True),
        ({"label": "slow", "measure": "bytes", "round": 2, "below": 800.0}, False),
        ({"label": "fast", "diverges": False}, True),
        ({"label": "fast", "diverges": True}, False),
    ],
)
def test_one_case(claim: dict[str, Any], holds: bool) -> None:
    assert status(FAST_AND_SLOW, **claim) == ("confirmed" if holds else "not confirmed")


@pytest.mark.parametrize(
    "claim",
    [
        {"label": "other", "below": 1.0},
        {"label": "fast", "below": 1.0, "measure": "accuracy"},
        {"label": "fast", "below": 1.0, "round": 9},
        {"label": "fast", "target": 0.1, "axis": "sim_seconds", "below": 1.0},
        {"label": "fast", "below": 1.0, "case": "elsewhere"},
        {"label": "other", "diverges": True},
    ],
)
def test_without_the_numbers_nothing_is_said(claim: dict[str, Any]) -> None:
    assert status(FAST_AND_SLOW, **claim) == "not run"
    assert status({}, **claim) == "not run"


@pytest.mark.parametrize("measure", ["accuracy", "train_accuracy", "accuracy_x", "worst_x", "auc", "f1"])
def test_of_accuracy_more_is_better(measure: str) -> None:
    both = Results(curve("good", [0.1, 0.9], measure=measure) + curve("bad", [0.1, 0.5], measure=measure))
    assert status(both, measure=measure, order=["good", "bad"]) == "confirmed"
    assert status(both, measure=measure, order=["bad", "good"]) == "not confirmed"
    assert status(both, measure=measure, order=["good", "bad"], target=0.8) == "confirmed"
    assert status(both, measure=measure, order=["bad", "good"], target=0.8) == "not confirmed"


def test_the_median_over_the_seeds_decides() -> None:
    ends = [0.1, 0.2, 9.0]
    seeds = Results([row for seed, end in enumerate(ends) for row in curve("a", [1.0, end], seed)])
    assert status(seeds, label="a", near=0.2, tolerance=1e-12) == "confirmed"
    arrived = Results(curve("a", [1.0, 0.1], 0) + curve("a", [1.0, 1.0], 1) + curve("a", [1.0, 1.0, 0.1], 2))
    assert status(arrived, label="a", target=0.5, near=2.0, tolerance=1e-12) == "confirmed"


def test_the_full_form_is_not_judged_by_the_quick_one() -> None:
    assert status(FAST_AND_SLOW, quick=True, label="fast", below=1.0, form="full") == "not run"
    assert status(FAST_AND_SLOW, quick=False, label="fast", below=1.0, form="full") == "confirmed"


def test_bytes_are_written_in_their_unit_and_other_numbers_in_four_digits() -> None:
    claim = Claim(says="so", measure="error", order=["fast", "slow"], target=0.4, axis="bytes_up")
    assert judge(claim, {"": FAST_AND_SLOW}, quick=False).found == "fast: 100 B, slow: 200 B"
    asked = Reported(measure="bytes", values={"slow": 1.81975e8, "fast": "> 5 GB"})
    assert [(c.found, c.printed) for c in compare(asked, {"": FAST_AND_SLOW})] == [
        ("1.2 kB", "181.975 MB"),
        ("1.2 kB", "> 5 GB"),
    ]
    asked = Reported(measure="error", values={"slow": 0.123456789})
    assert [(c.found, c.printed) for c in compare(asked, {"": FAST_AND_SLOW})] == [("0.3", "0.123457")]


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ({"label": "fast", "measure": "gap", "below": 1.0}, "no gap of fast"),
        ({"label": "fast", "round": 55, "below": 1.0}, "no error in round 55 of fast"),
        ({"label": "fast", "target": 0.1, "axis": "sim_seconds", "below": 1.0}, "no sim_seconds of fast"),
        ({"label": "lost", "below": 1.0}, "no error of lost"),
    ],
)
def test_what_is_lacking_is_said(claim: dict[str, Any], found: str) -> None:
    verdict = judge(Claim(says="so", **({"measure": "error"} | claim)), {"": FAST_AND_SLOW}, quick=False)
    assert (verdict.status, verdict.found) == ("not run", found)


def test_the_quick_form_may_have_a_target_of_its_own() -> None:
    asked = {"order": ["fast", "slow"], "target": 1e-9, "quick_target": 0.4}
    assert status(FAST_AND_SLOW, quick=True, **asked) == "confirmed"
    assert status(FAST_AND_SLOW, quick=False, **asked) == "not confirmed"  # neither gets so far
    assert status(FAST_AND_SLOW, quick=True, label="fast", target=1.0, quick_target=0.0, below=9) == "not confirmed"


# ---- cases ---------------------------------------------------------------------------------------------------------

TWO = {"easy": results(a=[1.0, 0.1], b=[1.0, 0.2]), "hard": results(a=[1.0, 0.8], b=[1.0, 0.7], c=[1.0, 0.9])}


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ({"label": "a", "below": 0.9}, "confirmed"),
        ({"order": ["a", "b"]}, "not confirmed"),
        ({"order": ["a", "b"], "case": "easy"}, "confirmed"),
        ({"order": ["a", "b"], "case": "hard"}, "not confirmed"),
        ({"label": "c", "above": 0.8}, "confirmed"),  # only one case has it
        ({"order": ["easy: a", "hard: a"], "across": True}, "confirmed"),
        ({"order": ["hard: a", "easy: a"], "across": True}, "not confirmed"),
        ({"order": ["easy: b", "c"], "across": True}, "confirmed"),
        ({"order": ["a", "c"], "across": True}, "not run"),  # which a?
    ],
)
def test_cases(claim: dict[str, Any], found: str) -> None:
    assert status(TWO, **claim) == found


def test_a_verdict_says_where_and_by_which_numbers() -> None:
    verdict = judge(Claim(says="so", measure="error", order=["a", "b"]), TWO, quick=False)
    assert verdict.found == "holds in 1 of 2 cases; [hard] a: 0.8, b: 0.7; [easy] a: 0.1, b: 0.2"
    assert [(j.case, j.holds, j.values) for j in verdict.cases] == [
        ("easy", True, {"a": 0.1, "b": 0.2}),
        ("hard", False, {"a": 0.8, "b": 0.7}),
    ]


# ---- divergence ----------------------------------------------------------------------------------------------------


def diverging() -> Results:
    wild = curve("wild", [1.0, 1e9], 0) + curve("wild", [1.0, math.nan], 1) + curve("half", [1.0, 1e9])
    tame = curve("tame", [1.0, 0.5, 0.2], 0) + curve("half", [1.0, 0.6, 0.3], 1)
    states = [state("wild", "diverged", 1, 0), state("wild", "diverged", 1, 1), state("half", "diverged", 1, 0)]
    return Results(wild + tame, [*states, state("half", "finished", 2, 1), state("tame", "finished", 2)], CLIENTS)


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ({"label": "wild", "diverges": True}, True),
        ({"label": "tame", "diverges": True}, False),
        ({"label": "tame", "diverges": False}, True),
        ({"label": "wild", "diverges": False}, False),
        ({"label": "half", "diverges": True}, False),
        ({"label": "half", "diverges": False}, False),
        ({"order": ["tame", "wild"]}, True),  # NaN is worse than any number
        ({"order": ["wild", "tame"]}, False),
        ({"order": ["tame", "wild"], "round": 2}, True),  # it had no second round
        ({"order": ["wild", "tame"], "round": 2}, False),
        ({"order": ["tame", "wild"], "target": 0.5}, True),
        ({"label": "wild", "below": 1e300}, False),
    ],
)
def test_what_diverged_counts(claim: dict[str, Any], holds: bool) -> None:
    assert status(diverging(), **claim) == ("confirmed" if holds else "not confirmed")


def test_what_is_still_under_way_is_not_judged() -> None:
    rows = curve("a", [1.0, 0.5], 0) + curve("a", [1.0], 1)
    done, going = state("a", "finished", 1, 0), state("a", "running", 0, 1)
    assert status(Results(rows, [done, going]), label="a", near=0.5, tolerance=1e-12) == "confirmed"
    assert status(Results(rows[2:], [going]), label="a", target=0.5, above=1.0) == "not run"
    assert status(Results(rows[2:], [going]), label="a", diverges=False) == "not run"


# ---- targets and reported numbers ----------------------------------------------------------------------------------


def test_the_first_row_that_reaches_it_counts_also_if_it_is_lost_again() -> None:
    history = curve("a", [1.0, 0.1, 5.0, 0.05])
    assert first_reached(history, "error", 0.1) == 1
    assert first_reached(history, "error", 0.07) == 3, "no interpolation between rows"
    assert first_reached(history, "error", 0.01) == NEVER
    assert first_reached(history, "accuracy", 0.5) is None


def test_axes() -> None:
    row = curve("a", [1.0, 1.0, 1.0])[2]
    assert [axis_value(row, axis, CLIENTS) for axis in ("round", "steps", "bytes", "bytes_up", "gradients")] == [
        2, 4.0, 800, 200, 16,
    ]  # fmt: skip
    assert axis_value(row, "steps", None) is None
    assert axis_value(row, "sim_seconds", CLIENTS) is None


def test_ours_beside_the_papers() -> None:
    seeds = Results(curve("a", [1.0, 0.2], 0) + curve("a", [1.0, 0.4], 1) + curve("a", [1.0, 0.3], 2))
    (line,) = compare(Reported(measure="error", values={"a": 0.25}), {"": seeds})
    assert (line.found, line.paper) == ("0.3 (0.2 .. 0.4)", 0.25)
    reported = Reported(measure="error", target=0.3, case="hard", values={"a": 7, "b": "> 300"})
    first, second = compare(reported, {"easy": results(a=[1.0]), "hard": results(a=[1.0, 0.5, 0.1], b=[1.0, 0.9, 0.8])})
    assert (first.case, first.measure, first.found) == ("hard", "rounds to error 0.3", "2")
    assert (second.found, second.paper) == ("> 2", "> 300")


def test_what_was_not_run_has_no_number() -> None:
    (line,) = compare(Reported(measure="error", case="hard", values={"a": 7}), {})
    assert line.found == "not run"


@pytest.mark.parametrize("name", shipped())
def test_what_is_shipped_can_be_read_in_every_form(name: str) -> None:
    """Claims, reported numbers, quick forms and variants speak of cases, labels and keys that exist."""
    cases = read_cases(name)
    paper = next(iter(cases.values())).paper
    for variant in (None, *(paper.variants if paper else ())):
        for quick in (False, True):
            assert set(read_cases(name, quick=quick, variant=variant)) <= set(cases)
