"""Claims of every kind, true and false, on rows made by hand; and ours beside the paper's numbers."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from proxfed.errors import InputError
from proxfed.harness.experiment import parse, read, shipped
from proxfed.harness.results import Results
from proxfed.papers.beside import comparable
from proxfed.papers.claims import judge
from proxfed.papers.comparisons import compare
from proxfed.papers.paper_file import PaperFile
from proxfed.papers.paper_schema import (
    Bounded,
    Claim,
    Diverges,
    Near,
    Order,
    Reported,
    WithinFactor,
    make_claim,
)
from proxfed.papers.reproduce import judge_all
from proxfed.report.columns import axis_value
from proxfed.report.targets import NEVER, first_reached

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


def so(**claim: Any) -> Claim:
    """A claim about the error, unless it says of what, or that something diverges."""
    measure = {} if "diverges" in claim else {"measure": "error"}
    return make_claim(says="so", **(measure | claim))


def status(cases: Results | dict[str, Results], quick: bool = False, **claim: Any) -> str:
    cases = cases if isinstance(cases, dict) else {"": cases}
    return judge(so(**claim), cases, quick).status


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
        ({"order": ["fast", "slow"], "factor": 15.0}, True),
        ({"order": ["fast", "slow"], "factor": 16.0}, False),
        ({"order": ["slow", "fast"], "factor": 0.06}, True),
        ({"order": ["slow", "fast"], "factor": 0.07}, False),
        ({"order": ["fast", "slow"], "target": 0.5, "factor": 1.0}, True),
        ({"order": ["fast", "slow"], "target": 0.05, "factor": 1e6}, True),
        ({"order": ["slow", "fast"], "target": 0.05, "factor": 0.01}, False),
        ({"order": ["fast", "slow"], "target": 0.001, "factor": 1.0}, False),
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
def test_claims_about_one_case(claim: dict[str, Any], holds: bool) -> None:
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


@pytest.mark.parametrize(
    ("axis", "end", "more"),
    [("round", "round 3", 1), ("steps", "steps 6", 2), ("bytes", "bytes 1.2 kB", 400)],
)
def test_a_run_that_ended_before_it_could_be_above_is_not_judged(axis: str, end: str, more: int) -> None:
    """After 3 rounds it needs more than 3, perhaps not more than 4; what was there in round 1 does not."""
    ended = {"measure": "error", "target": 0.1, "axis": axis}
    verdict = judge(make_claim(says="so", label="slow", above=4 * more, **ended), {"": FAST_AND_SLOW}, quick=False)
    assert (verdict.status, verdict.found) == ("not run", f"slow: ended too early ({end})")
    assert status(FAST_AND_SLOW, label="slow", above=3 * more, **ended) == "confirmed"
    assert status(FAST_AND_SLOW, label="slow", above=4 * more, below=9 * more, **ended) == "not run"
    assert status(FAST_AND_SLOW, labels=["fast", "slow"], above=4 * more, **ended) == "not confirmed"


def test_of_the_cases_only_those_that_went_far_enough_are_judged() -> None:
    both = {"short": results(a=[1.0, 1.0]), "long": results(a=9 * [1.0])}
    claim = make_claim(says="so", measure="error", label="a", target=0.1, above=4)
    verdict = judge(claim, both, quick=False, cases={"short": ["a"], "long": ["a"]})
    assert (verdict.status, verdict.not_run) == ("confirmed", ["short"])
    assert verdict.found == "holds in 1 of 1 cases, 1 more not run; [long] a: did not reach"


@pytest.mark.parametrize("measure", ["accuracy", "train_accuracy", "accuracy_x", "worst_x"])
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
    claim = make_claim(says="so", measure="error", order=["fast", "slow"], target=0.4, axis="bytes_up")
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
        ({"label": "fast", "measure": "steps", "round": 9, "below": 1.0}, "no steps in round 9 of fast"),
        ({"order": ["fast", "lost"], "round": 9}, "no error in round 9 of fast, no error of lost"),
    ],
)
def test_what_is_missing_is_named(claim: dict[str, Any], found: str) -> None:
    verdict = judge(so(**claim), {"": FAST_AND_SLOW}, quick=False)
    assert (verdict.status, verdict.found) == ("not run", found)


def test_an_improvement_may_be_a_range() -> None:
    asked = {"order": ["fast", "slow"], "factor": 2.0}
    assert status(FAST_AND_SLOW, **asked, factor_most=15.0) == "confirmed"
    assert status(FAST_AND_SLOW, **asked, factor_most=14.9) == "not confirmed"
    with pytest.raises(ValidationError, match="factor_most = 3, which needs a factor that is not larger"):
        so(order=["fast", "slow"], factor=4.0, factor_most=3.0)
    with pytest.raises(ValidationError, match="factor_most = 3, which needs a factor"):
        so(order=["fast", "slow"], factor_most=3.0)


@pytest.mark.parametrize("claim", [{}, {"target": 0.5}, {"factor": 2.0}])
def test_to_be_ahead_of_what_diverged_confirms_nothing(claim: dict[str, Any]) -> None:
    rows = [*curve("a", [1.0, 0.4]), *curve("b", [1.0, 9.0])]
    order = {"order": ["a", "b"], **claim}
    assert status(Results(rows), **order) == "confirmed"
    assert status(Results(rows, [state("b", "diverged", 1)]), **order) == "not confirmed"
    assert status(Results(rows, [state("b", "diverged", 1)]), label="b", diverges=True) == "confirmed"


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
def test_claims_about_several_cases(claim: dict[str, Any], found: str) -> None:
    assert status(TWO, **claim) == found


def test_a_verdict_says_where_and_by_which_numbers() -> None:
    verdict = judge(make_claim(says="so", measure="error", order=["a", "b"]), TWO, quick=False)
    assert verdict.found == "holds in 1 of 2 cases; [hard] a: 0.8, b: 0.7; [easy] a: 0.1, b: 0.2"
    assert [(j.case, j.holds, j.values) for j in verdict.cases] == [
        ("easy", True, {"a": 0.1, "b": 0.2}),
        ("hard", False, {"a": 0.8, "b": 0.7}),
    ]


# ---- the best of all rounds ----------------------------------------------------------------------------------------


def test_with_best_it_is_the_best_of_all_rounds_that_counts() -> None:
    peak, steady = [0.1, 0.9, 0.3], [0.2, 0.5, 0.8]
    one = {"": Results(curve("peak", peak, measure="accuracy") + curve("steady", steady, measure="accuracy"))}
    asked = {"measure": "accuracy", "order": ["peak", "steady"]}
    assert status(one, **asked) == "not confirmed"
    assert status(one, **asked, best=True) == "confirmed"
    falling = {"": results(peak=peak, steady=steady)}  # of an error the least
    assert status(falling, label="peak", near=0.1, tolerance=1e-9, best=True) == "confirmed"


def test_the_best_of_a_run_that_broke_is_from_before() -> None:
    broke = {"": results(a=[0.4, 0.2, math.nan], b=[math.nan, math.nan, math.nan])}
    assert status(broke, label="a", near=0.2, tolerance=1e-9, best=True) == "confirmed"
    assert status(broke, label="b", above=1e300, best=True) == "confirmed"  # the worst that can be


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label": "a", "below": 1.0, "target": 0.5, "best": True}, "best = true or a target, not both"),
        ({"label": "a", "below": 1.0, "round": 3, "best": True}, "a round and best = true"),
        ({"label": "a", "slope": [-1, 0], "best": True}, "takes best only with at"),
    ],
)
def test_best_is_not_together_with_a_place(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_claim(says="so", measure="error", **keys)


# ---- what is lost from one case to another ------------------------------------------------------------------------


def easy_and_hard() -> dict[str, Results]:
    steady, shaky = {"easy": 0.9, "hard": 0.8}, {"easy": 0.95, "hard": 0.82}
    return {
        case: Results(
            curve("steady", [steady[case]], measure="accuracy") + curve("shaky", [shaky[case]], measure="accuracy")
        )
        for case in ("easy", "hard")
    }


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"order": ["steady", "shaky"]}, "confirmed"),  # loses less, though it is worse in both
        ({"order": ["shaky", "steady"]}, "not confirmed"),
        ({"label": "steady", "near": 0.1, "tolerance": 1e-9}, "confirmed"),
        ({"label": "shaky", "below": 0.125}, "not confirmed"),
        ({"label": "shaky", "below": 0.125, "lost_from": "hard", "case": "easy"}, "confirmed"),  # less than nothing
        ({"label": "shaky", "below": 0.5, "lost_from": "never run"}, "not run"),
        ({"label": "shaky", "below": 0.5, "case": "never run"}, "not run"),
    ],
)
def test_what_is_lost_from_one_case_to_another(claim: dict[str, Any], expected: str) -> None:
    lost = {"measure": "accuracy", "case": "hard", "lost_from": "easy"} | claim
    assert status(easy_and_hard(), **lost) == expected


def test_of_a_loss_more_is_worse() -> None:
    cases = {"easy": results(a=[0.1], b=[0.1]), "hard": results(a=[0.3], b=[0.4])}
    assert status(cases, case="hard", lost_from="easy", order=["a", "b"]) == "confirmed"
    assert status(cases, case="hard", lost_from="easy", label="b", near=0.3, tolerance=1e-9) == "confirmed"


# ---- divergence ----------------------------------------------------------------------------------------------------


def diverging() -> Results:
    wild = curve("wild", [1.0, 1e9], 0) + curve("wild", [1.0, math.nan], 1) + curve("half", [1.0, 1e9])
    tame = curve("tame", [1.0, 0.5, 0.2], 0) + curve("half", [1.0, 0.6, 0.3], 1)
    states = [state("wild", "diverged", 1, 0), state("wild", "diverged", 1, 1), state("half", "diverged", 1, 0)]
    return Results(wild + tame, [*states, state("half", "finished", 2, 1), state("tame", "finished", 2)], CLIENTS)


def blown_up(lost: int, seeds: int) -> Results:
    """'wild' has 0.1 in round 1 and blows up in round 2 with some of its seeds, 'tame' has 0.1 in round 3."""
    states = [state("wild", "diverged" if seed < lost else "finished", 2, seed) for seed in range(seeds)]
    wild = [row for seed in range(seeds) for row in curve("wild", [1.0, 0.1, 1e9 if seed < lost else 0.1], seed)]
    tame = curve("tame", [1.0, 0.5, 0.2, 0.1])
    return Results(wild + tame, [*states, state("tame", "finished", 3)], CLIENTS)


@pytest.mark.parametrize(("lost", "seeds"), [(1, 1), (2, 3), (3, 3)])
def test_a_run_that_diverged_did_not_reach_a_target(lost: int, seeds: int) -> None:
    found = {"": blown_up(lost, seeds)}
    claim = make_claim(says="so", measure="error", order=["wild", "tame"], target=0.1)
    verdict = judge(claim, found, quick=False)
    assert (verdict.status, verdict.found) == ("not confirmed", "wild: diverged, tame: 3")
    assert status(found, order=["tame", "wild"], target=0.1) == "not confirmed", "there is nothing to compare with"
    assert status(found, label="wild", target=0.1, above=99) == "confirmed", "it ended by itself, not too early"


def test_one_seed_of_three_that_diverged_is_outvoted_and_of_two_the_other_counts() -> None:
    for seeds in (2, 3):
        assert status(blown_up(1, seeds), label="wild", target=0.1, near=1, tolerance=1e-12) == "confirmed"
    halfway = Results(curve("a", [1.0, 0.1, 1e9], 0) + curve("a", [1.0, 1.0, 1.0], 1), [state("a", "diverged", 2)])
    claim = make_claim(says="so", measure="error", label="a", target=0.1, below=9)
    assert judge(claim, {"": halfway}, quick=False).found == "a: did not reach"


def test_beside_the_papers_number_it_counts_where_it_was() -> None:
    (line,) = compare(Reported(measure="error", target=0.1, values={"wild": 1}), {"": blown_up(3, 3)})
    assert line.found == "1"


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ({"label": "wild", "diverges": True}, True),
        ({"label": "tame", "diverges": True}, False),
        ({"label": "tame", "diverges": False}, True),
        ({"label": "wild", "diverges": False}, False),
        ({"label": "half", "diverges": True}, False),
        ({"label": "half", "diverges": False}, False),
        ({"order": ["tame", "wild"]}, False),  # to be ahead of what diverged confirms nothing
        ({"order": ["wild", "tame"]}, False),
        ({"order": ["tame", "wild"], "round": 2}, False),  # it had no second round
        ({"order": ["wild", "tame"], "round": 2}, False),
        ({"order": ["tame", "wild"], "target": 0.5}, False),
        ({"label": "wild", "below": 1e300}, False),
    ],
)
def test_what_diverged_counts(claim: dict[str, Any], holds: bool) -> None:
    assert status(diverging(), **claim) == ("confirmed" if holds else "not confirmed")


def test_what_is_still_under_way_is_not_judged() -> None:
    rows = curve("a", [1.0, 0.5], 0) + curve("a", [1.0], 1)
    done, run = state("a", "finished", 1, 0), state("a", "running", 0, 1)
    assert status(Results(rows, [done, run]), label="a", near=0.5, tolerance=1e-12) == "confirmed"
    assert status(Results(rows[2:], [run]), label="a", target=0.5, above=1.0) == "not run"
    assert status(Results(rows[2:], [run]), label="a", diverges=False) == "not run"


@pytest.mark.parametrize("under_way", ["running", "stopped"])
@pytest.mark.parametrize(
    "claim", [{"below": 1.0}, {"round": 1, "below": 1.0}, {"target": 0.5, "below": 9}, {"diverges": False}]
)
def test_without_a_finished_seed_that_is_what_is_lacking(under_way: str, claim: dict[str, Any]) -> None:
    found = Results(curve("a", [1.0, 0.5]) + curve("b", [1.0, 0.5]), [state("a", under_way, 0)])
    verdict = judge(so(label="a", **claim), {"": found}, quick=False)
    assert (verdict.status, verdict.found) == ("not run", "no finished seed of a")
    (line,) = compare(Reported(measure="error", values={"a": 7}), {"": found})
    assert line.found == "not run"


# ---- targets and reported numbers ----------------------------------------------------------------------------------


def test_the_first_row_that_reaches_it_counts_also_if_it_is_lost_again() -> None:
    history = curve("a", [1.0, 0.1, 5.0, 0.05])
    assert first_reached(history, "error", 0.1) == 1
    assert first_reached(history, "error", 0.07) == 3, "no interpolation between rows"
    assert first_reached(history, "error", 0.01) == NEVER
    assert first_reached(history, "accuracy", 0.5) is None


def test_what_a_row_counts_along_each_axis() -> None:
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
    file = PaperFile(name)
    assert set(file.form(quick=True)) <= set(file.form())
    for variant in file.paper.variants:
        assert can_be_read(file, variant, quick=False) | can_be_read(file, variant, quick=True)


@pytest.mark.parametrize("name", shipped())
def test_what_a_run_folder_records_of_the_claims_reads_back(name: str) -> None:
    whole = read(name)
    table = whole.model_dump(exclude_none=True)
    assert parse(tomllib.loads(tomli_w.dumps(table)), name) == whole


def test_the_keys_of_a_claim_decide_its_kind() -> None:
    kinds = {
        Bounded: {"label": "a", "above": 1.0},
        Near: {"labels": ["a", "b"], "near": 1.0, "tolerance": 0.5},
        WithinFactor: {"labels": ["a", "b"], "within_factor": 2.0},
        Order: {"order": ["a", "b"], "target": 0.1},
        Diverges: {"label": "a", "diverges": True},
    }
    for kind, keys in kinds.items():
        claim = make_claim(says="so", **keys)
        assert type(claim) is kind
        assert claim.names == (["a"] if "label" in keys else ["a", "b"])


def can_be_read(file: PaperFile, variant: str, quick: bool) -> bool:
    """Some variants are what one of the forms has, which refuses them."""
    try:
        file.form(quick=quick, variant=variant)
    except InputError as e:
        if "changes nothing" not in str(e):
            raise
        return False
    return True


# ---- two experiments of a paper -------------------------------------------------------------------------------------

MLP = """
name = "toy-mlp"
rounds = 5
[data]
name = "synthetic_binary"
clients = 3
[problem]
name = "logistic"
[[algorithms]]
name = "fedavg"
label = "Ours"
eta = 1.0
"""
CNN = (
    MLP.replace("toy-mlp", "toy-cnn")
    + """
[paper]
title = "On toys"
figure = "Table 3"
[[claims]]
says = "a CNN outperforms an MLP"
beside = "mlp"
measure = "objective"
order = ["Ours", "mlp/Ours"]
"""
)


def two(folder: Path, cnn: str = CNN, mlp: str = MLP) -> PaperFile:
    (folder / "mlp.toml").write_text(mlp)
    (folder / "cnn.toml").write_text(cnn)
    return PaperFile(str(folder / "cnn.toml"))


def test_a_claim_compares_with_another_experiment(tmp_path: Path) -> None:
    file = two(tmp_path)
    own, better = ({"": Results(curve("Ours", [1.0, end], measure="objective"))} for end in (0.5, 0.4))
    assert judge_all(file, own, False, {"mlp": better})[0].status == "not confirmed"
    (verdict,) = judge_all(file, better, False, {"mlp": own})
    assert (verdict.status, verdict.found) == ("confirmed", "Ours: 0.4, mlp/Ours: 0.5")
    (verdict,) = judge_all(file, own, False)
    assert (verdict.status, verdict.found) == ("not run", "needs mlp with the same data and as many rounds")


def test_only_runs_on_the_same_data_are_compared() -> None:
    own = {"rounds": 5, "data.name": "mnist", "problem.model": "cnn"}
    assert comparable(own, own | {"problem.model": "mlp"})
    for key, value in {"rounds": 6, "data.name": "emnist", "data.limit": 100}.items():
        assert not comparable(own, own | {key: value})
        assert not comparable(own | {key: value}, own)


@pytest.mark.parametrize(
    ("of", "to", "message"),
    [
        ('"mlp/Ours"]', '"mlp/Hours"]', "mlp has no algorithm with the label 'Hours'; did you mean 'Ours'"),
        ('["Ours", ', '["cnn/Ours", ', "no algorithm has the label 'cnn/Ours'"),
        ('["Ours", "mlp/Ours"]', '["Ours", "Ours"]', "has beside = 'mlp', which needs labels such as 'mlp/FedAvg'"),
        ('beside = "mlp"', 'beside = "mlp"\nacross = true', "has beside and across, of which one is enough"),
    ],
)
def test_names_of_another_experiment_are_checked(tmp_path: Path, of: str, to: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        two(tmp_path, CNN.replace(of, to))


def test_after_a_number_of_steps_rounds_of_any_length_can_be_compared() -> None:
    long = [row | {"gradients": 4 * row["gradients"]} for row in curve("long", [1.0, 0.4, 0.2])]
    both = Results([*curve("short", [1.0, 0.9, 0.8, 0.7, 0.6]), *long], (), CLIENTS)
    (verdict,) = [judge(so(order=["long", "short"], steps=8), {"": both}, False)]
    assert (verdict.status, verdict.found) == ("confirmed", "long: 0.4, short: 0.6")
    assert judge(so(order=["long", "short"], steps=6), {"": both}, False).found == "no error after 6 steps of long"
    with pytest.raises(ValidationError, match="takes only one of target, round and steps"):
        so(order=["long", "short"], steps=8, round=1)


@pytest.mark.parametrize("name", [name for name in shipped() if "/" in name and not name.startswith("arena/")])
def test_every_claim_of_a_paper_says_where_the_paper_says_it(name: str) -> None:
    file = PaperFile(name)
    assert file.paper.section
    place = r"abstract|Sec\. |Table |Fig|Theorem |Algorithm |Appendix "
    for claim in file.claims:
        assert (re.match(place, file.where(claim)) is not None) == (claim.rank != "ours"), claim.says
