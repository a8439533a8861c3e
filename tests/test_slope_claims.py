"""Claims of a slope: the exponent that is fitted, along a run and across labels, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from proxfed.harness.results import Results
from proxfed.papers.claims import judge
from proxfed.papers.paper_schema import Slope, make_claim


def _rows(label: str, values: dict[int, float], seed: int = 0) -> list[dict[str, Any]]:
    return [{"algorithm": label, "seed": seed, "round": t, "gap": value} for t, value in values.items()]


def _claim(**keys: Any) -> Any:
    return make_claim(**({"says": "it falls", "measure": "gap"} | keys))


POWER = Results(_rows("A", {0: 5.0} | {t: 3.0 * t**-1.5 for t in (1, 2, 5, 9)}))
EXPONENTIAL = Results(_rows("A", {t: 3.0 * math.exp(-0.2 * t) for t in range(0, 20, 4)}))


@pytest.mark.parametrize(("results", "exponential", "exponent"), [(POWER, False, -1.5), (EXPONENTIAL, True, -0.2)])
def test_the_exponent_is_fitted_along_a_run(results: Results, exponential: bool, exponent: float) -> None:
    inside = _claim(label="A", slope=[exponent - 1e-9, exponent + 1e-9], exponential=exponential)
    assert isinstance(inside, Slope)
    verdict = judge(inside, {"": results}, quick=False)
    assert verdict.status == "confirmed"
    assert verdict.found == f"A: slope {exponent:g}"
    outside = _claim(label="A", slope=[exponent + 0.01, 0.0], exponential=exponential)
    assert judge(outside, {"": results}, quick=False).status == "not confirmed"


def test_only_the_rows_in_a_window_count() -> None:
    values = {t: t**-2.0 if t <= 8 else 8**-2.0 for t in range(1, 17)}
    falls = _claim(label="A", slope=[-2.001, -1.999], until=8)
    stays = _claim(label="A", slope=[-0.001, 0.001], since=8)
    for claim in (falls, stays):
        assert judge(claim, {"": Results(_rows("A", values))}, quick=False).status == "confirmed"


def test_seeds_count_by_the_median() -> None:
    rows = [row for seed, q in enumerate((-1.0, -1.1, -7.0)) for row in _rows("A", {t: t**q for t in (1, 2, 4)}, seed)]
    assert judge(_claim(label="A", slope=[-1.11, -1.09]), {"": Results(rows)}, quick=False).status == "confirmed"


def test_the_exponent_is_fitted_across_labels_and_cases() -> None:
    results = {f"B = {B}": Results(_rows(f"B = {B}", {0: 1.0, 10: 2.0 / B})) for B in (4, 16, 64)}
    claim = _claim(labels=["B = 4", "B = 16", "B = 64"], at=[4, 16, 64], across=True, slope=[-1.001, -0.999])
    verdict = judge(claim, results, quick=False)
    assert verdict.status == "confirmed"
    assert verdict.found.startswith("slope -1 (B = 4: 0.5, ")
    steeper = _claim(labels=["B = 4", "B = 16", "B = 64"], at=[4, 16, 64], across=True, slope=[-3, -2])
    assert judge(steeper, results, quick=False).status == "not confirmed"


def test_what_cannot_be_fitted_is_not_confirmed_or_not_run() -> None:
    zero = Results(_rows("A", {1: 1.0, 2: 0.0}))
    assert judge(_claim(label="A", slope=[-9, 9]), {"": zero}, quick=False).status == "not confirmed"
    one = Results(_rows("A", {0: 1.0, 1: 0.5}))
    assert judge(_claim(label="A", slope=[-9, 9]), {"": one}, quick=False).status == "not run"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"label": "A", "slope": [1, -1]}, "must not be the larger one"),
        ({"label": "A", "slope": [-1, 1], "target": 0.1}, "takes no target"),
        ({"label": "A", "slope": [-1, 1], "round": 3}, "a round only with at"),
        ({"labels": ["A", "B"], "slope": [-1, 1], "at": [1]}, "a number for each label"),
        ({"labels": ["A", "B"], "slope": [-1, 1], "at": [2, 2]}, "not all the same"),
        ({"labels": ["A", "B"], "slope": [-1, 1], "at": [0, 2]}, "must be > 0"),
        ({"label": "A", "slope": [-1, 1], "tolerance": 2}, "takes no 'slope'"),
        ({"label": "A", "slope": [-1, 1], "factor": 2}, "takes no 'factor'"),
    ],
)
def test_a_slope_that_means_nothing_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        _claim(**keys)
