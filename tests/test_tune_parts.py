"""The parts of a tuning: spaces, points, rungs, validation data and what is judged."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

from proxfed import FedAvg, Federated, InputError, Study, tune
from proxfed.algorithms import CompressedDownlink, FedADMM
from proxfed.compressors import ErrorBoundedQuantiser
from proxfed.data.digits import digits
from proxfed.report.summary import effort, fairness
from proxfed.tuning.criterion import DIVERGED, Judge, Score
from proxfed.tuning.halving import Ladder, Rung, ladder
from proxfed.tuning.held_out import chosen_rows, hold_out
from proxfed.tuning.keys import algorithm_keys, changed, present
from proxfed.tuning.points import size, spread
from proxfed.tuning.space import Between, Choice, linear, log, read_space, read_values
from proxfed.tuning.trials import Search, Trial

from support import toy_problems as toy

# ---- spaces ----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e3), st.floats(1.5, 1e6), st.integers(2, 40))
def test_log_points_are_evenly_spread_in_their_logarithms(low: float, factor: float, count: int) -> None:
    points = log(low, low * factor).points(count)
    assert points[0] == low
    assert points[-1] == low * factor
    assert points == sorted({*points})
    np.testing.assert_allclose(
        points, np.geomspace(low, low * factor, len(points)), rtol=1e-3 if len(points) == count else 1
    )


@given(st.integers(-20, 20), st.integers(1, 60), st.integers(1, 80))
def test_whole_numbers_are_all_there_or_evenly_spread(low: int, more: int, count: int) -> None:
    space = read_space(f"{low}..{low + more}", "here")
    points = space.points(count)
    assert points == sorted({*points})
    assert all(isinstance(p, int) and low <= p <= low + more for p in points)
    assert len(points) == min(count, more + 1)


def test_what_is_written_is_read() -> None:
    assert read_space("log(1e-3, 1)", "") == Between(1e-3, 1.0, True) == log(1e-3, 1)
    assert read_space(" linear(-1,1)", "") == linear(-1, 1)
    assert read_space('[0.1, "a", true]', "") == Choice((0.1, "a", True))
    assert read_space("around(10)", "").of(0.5, "") == Between(0.05, 5.0, True)
    assert read_space(np.array([0.5, 1.0]), "") == Choice((0.5, 1.0))
    assert str(read_space("2..7", "")) == "2..7"
    assert read_values("log(0.01,1,3)", "") == [0.01, 0.1, 1.0]
    assert read_values("linear(0,1,3)", "") == [0.0, 0.5, 1.0]
    assert read_values(range(3), "") == [0, 1, 2]


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("log(0,1)", "both bounds must be > 0"),
        ("log(-1,1)", "both bounds must be > 0"),
        ("log(1,1)", "has only one point"),
        ("linear(2,1)", "below the second"),
        ("linear(1,x)", "'x' is not a number"),
        ("linear(1,inf)", "'inf' is not a finite number"),
        ("3..3", "below the second"),
        ("[0.1]", "has only one point"),
        ("[]", "has no points"),
        ("[1, 1]", "1 is given twice"),
        ("[1, ", "not a TOML list"),
        ("around(1)", "must be a number > 1"),
        ("exp(1,2)", "is not a search space; allowed are log(a,b)"),
        (3, "is not a search space"),
    ],
)
def test_spaces_that_mean_nothing_are_refused(space: object, says: str) -> None:
    with pytest.raises(InputError, match=r"^over FedAvg\.eta: ") as e:
        read_space(space, "over FedAvg.eta")
    assert says in str(e.value)


# ---- points ----------------------------------------------------------------------------------------------------------


def test_several_settings_are_spread_as_a_halton_sequence_is() -> None:
    """As scipy has it, without its first point, which lies in a corner."""
    spaces = {"a": linear(0, 1), "b": linear(0, 1), "c": linear(0, 1)}
    ours = np.array([list(point.values()) for point in spread(spaces, 30)])
    np.testing.assert_allclose(ours, qmc.Halton(3, scramble=False).random(31)[1:], atol=1e-4)


def test_few_choices_are_all_tried_and_no_point_twice() -> None:
    spaces = {"a": Choice((1, 2, 3)), "b": Choice(("x", "y"))}
    assert size(spaces) == 6
    assert len(spread(spaces, 6)) == len(spread(spaces, 100)) == 6
    some = spread(spaces, 5)
    assert len({tuple(point.items()) for point in some}) == len(some) == 5


# ---- rungs -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(2, 60), st.integers(1, 3))
def test_a_ladder_keeps_to_its_budget_and_uses_it(rounds: int, times: int, seeds: int) -> None:
    budget = times * rounds * seeds
    steps = ladder(budget, rounds, seeds)
    spent, at = 0, 0
    for rung in steps.rungs:
        spent += seeds * rung.configurations * (rung.round - at)
        at = rung.round
    assert spent == steps.cost() <= budget
    assert at == rounds
    counts = [rung.configurations for rung in steps.rungs]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 2
    assert all(a.round < b.round for a, b in zip(steps.rungs, steps.rungs[1:], strict=False))
    assert budget - spent < seeds * 3 * rounds, "another configuration, promoted to the end, would have been possible"


def test_the_usual_ladder() -> None:
    """20 * 10 + 6 * 20 + 2 * 60 = 440 rounds; 21 configurations, of which 7 are promoted, would take 470."""
    assert str(ladder(450, 90)) == "20 to round 10, 6 to round 30, 2 to round 90"


@pytest.mark.parametrize(
    ("budget", "most", "says"),
    [
        (450, 2, "2 to round 90"),
        (450, 5, "5 to round 90"),
        (450, 6, "6 to round 30, 2 to round 90"),
        (450, 9, "9 to round 30, 3 to round 90"),  # 9 * 30 + 3 * 60 = 450
        (450, 10, "10 to round 10, 3 to round 30, 1 to round 90"),  # 10 * 30 + 3 * 60 = 480 would be too many
        (450, 15, "15 to round 10, 5 to round 30, 1 to round 90"),
        (450, 99, "20 to round 10, 6 to round 30, 2 to round 90"),  # not all of them are tried
    ],
)
def test_few_configurations_go_as_far_as_the_budget_takes_them(budget: int, most: int, says: str) -> None:
    steps = ladder(budget, 90, most=most)
    assert str(steps) == says
    assert steps.cost() <= budget


@pytest.mark.parametrize("budget", [1, 99, 100, 150])
def test_a_budget_for_less_than_a_choice_is_refused(budget: int) -> None:
    """Three configurations to round 33 and one of them on to round 100: 3 * 33 + 67 = 166."""
    with pytest.raises(InputError, match=r"budget = \d+ rounds per algorithm is too little: .* need at least 166"):
        ladder(budget, 100)


@pytest.mark.parametrize(
    ("lost", "at", "more"),
    [
        ("", 15, ""),
        ("ab", 15, ""),  # what they cost is spent, and the last rung keeps its 30 rounds
        ("ab", 8, "d"),  # of 14 rounds that they saved 10 are enough for one other
        ("abc", 15, "def"),  # nobody is left: three others, at the cost of the last rung
        ("abcdef", 15, "def"),  # nor are any rounds
    ],
)
def test_who_diverges_is_replaced_but_not_at_the_cost_of_later_rungs(lost: str, at: int, more: str) -> None:
    good, first = Score(False, 0.0, 0.0, 0.0), 5

    class Told(Search):
        """Which configurations diverge, and in which round, is told instead of run."""

        def __init__(self) -> None:
            self.ladder = Ladder((Rung(9, first), Rung(3, 15), Rung(1, 45)))
            self.found = {label: Trial("A", label, {}, (good,), (first,), first) for label in "abcdefghi"}
            self.tried = SimpleNamespace(seeds=[0])

        def _measured(self, labels: Sequence[str], round: int) -> dict[str, tuple[Score, int]]:
            return {label: (DIVERGED, at) if label in lost else (good, round) for label in labels}

    told = Told()
    on = told._fill(told.ladder.rungs[1], {"A": list("abcdefghi")}, lambda fresh: None)
    assert "".join(on["A"]) == "abc" + more


def test_a_finalist_that_falls_apart_is_not_chosen() -> None:
    """It stood at 80 % when it was promoted, and at 12 % at the end. There are no rounds left for the runner-up, which
    is chosen for what it was on the rung before."""

    def score(accuracy: float) -> Score:
        return Judge("accuracy").score([rows([0.1, accuracy])], False, 3)

    class Told(Search):
        def __init__(self, end: float) -> None:
            self.ladder = Ladder((Rung(3, 15), Rung(1, 45)))
            standing = {"a": 0.8, "b": 0.7, "c": 0.3}
            self.found = {x: Trial("A", x, {}, (score(value),), (15,), 15) for x, value in standing.items()}
            self.tried, self.end = SimpleNamespace(seeds=[0]), end

        def _measured(self, labels: Sequence[str], round: int) -> dict[str, tuple[Score, int]]:
            return {label: (score(self.end), round) for label in labels}

    for end, chosen in ((0.12, "b"), (0.44, "b"), (0.46, "a"), (0.9, "a")):
        told = Told(end)
        on = told._fill(told.ladder.rungs[1], {"A": list("abc")}, lambda fresh: None)
        assert on == {"A": ["a"]}
        assert min(told.found.values(), key=lambda trial: trial.order).label == chosen


# ---- validation data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_validation_rows_are_training_rows_and_never_test_rows(part: float) -> None:
    """Every row of the clients is either trained with or validated on, and none of the test rows is there."""
    data = digits()
    clients = Federated.split(data, np.array_split(np.arange(len(data.labels)), [3, 4, 300, 800]))
    numbered = np.arange(float(len(clients.labels)))[:, None]
    marked = Federated(
        numbered, clients.labels, clients.sizes, (-1.0 - np.arange(5.0)[:, None], clients.labels[:5]), 10
    )
    held = hold_out(marked, part)
    assert held.test is not None
    trained, validated = {*held.features.ravel()}, {*held.test[0].ravel()}
    assert not trained & validated
    assert trained | validated == {*numbered.ravel()}, "all rows, and no test row"
    for i in range(len(marked)):
        own, rest = marked.client(i)[0].ravel(), held.client(i)[0].ravel()
        assert {*rest} <= {*own}
        assert len(rest) == max(1, len(own) - round(part * len(own)))
    np.testing.assert_array_equal(marked.labels[held.test[0].ravel().astype(int)], held.test[1])
    assert (chosen_rows(marked, part) == chosen_rows(marked, part)).all()


def test_rows_keep_their_weights() -> None:
    numbered = np.arange(12.0)[:, None]
    data = Federated(numbered, np.ones(12), [8, 4], sample_weights=1 + numbered[:, 0])
    for fewer in (hold_out(data, 0.25), data.thinned(3)):
        np.testing.assert_array_equal(fewer.sample_weights, 1 + fewer.features[:, 0])


def test_clients_of_one_row_keep_it() -> None:
    single = Federated(np.eye(3), np.arange(3), np.ones(3, int), None, 3)
    with pytest.raises(InputError, match="has enough rows"):
        hold_out(single, 0.5)


# ---- judging ---------------------------------------------------------------------------------------------------------


def rows(values: list[float], measure: str = "accuracy") -> list[dict]:
    return [{"round": 5 * k, "bytes_up": 10 * k, measure: value} for k, value in enumerate(values)]


def test_the_order_of_scores() -> None:
    """What reaches the target sooner, then what ends better, then what was better on the way; divergence is worst."""
    judge = Judge("accuracy", 0.9, "bytes")
    soon, late = rows([0.1, 0.95, 0.91]), rows([0.1, 0.5, 0.99])
    never, slow = rows([0.1, 0.7, 0.8]), rows([0.1, 0.2, 0.8])
    ordered = [judge.score([history], False, 3) for history in (soon, late, never, slow)]
    ordered.append(judge.score([soon], True, 3))
    assert ordered == sorted(ordered)
    assert len({*ordered}) == 5
    assert [score.cost for score in ordered] == [10, 20, inf, inf, inf]
    assert judge.shown(ordered[0]) == "10 B"
    assert judge.shown(ordered[2]) == "not reached (0.8)"
    assert judge.shown(ordered[-1]) == "diverged"


@pytest.mark.parametrize(("last", "reached"), [(0.91, True), (0.87, True), (0.85, False), (0.12, False)])
def test_what_leaves_the_target_again_has_only_passed_it(last: float, reached: bool) -> None:
    """By more than 5 % of the way from the start, 0.1, to the target, 0.9."""
    assert Judge("accuracy", 0.9).score([rows([0.1, 0.95, last])], False, 3).cost == (5 if reached else inf)
    assert Judge("objective", -0.9).score([rows([-0.1, -0.95, -last], "objective")], False, 3).cost == (
        5 if reached else inf
    )


def test_a_measure_of_which_less_is_better_and_values_that_are_none() -> None:
    judge = Judge("objective")
    good, bad = (judge.score([rows(v, "objective")], False, 3) for v in ([1.0, -2.0], [1.0, -1.0]))
    assert good < bad
    assert judge.value(good) == -2.0
    assert judge.score([rows([1.0, float("nan")], "objective")], False, 3).diverged
    assert judge.close(good._replace(value=-1.86), good), "5 % of the 3 that it gained"
    assert not judge.close(good._replace(value=-1.84), good)


def test_the_median_over_seeds() -> None:
    judge = Judge("objective")
    histories = [rows([1.0, v], "objective") for v in (0.1, 0.3, 0.2)]
    assert judge.value(judge.score(histories, False, 3)) == 0.2


# ---- effort ----------------------------------------------------------------------------------------------------------


def test_effort_in_words() -> None:
    tuned = {"configurations": 9, "rounds": 50, "values": {"eta": 0.1, "compressor.k": 3}}
    assert effort({"eta": 0.1}) == "not tuned"
    assert effort({"eta": 0.1, "compressor": {"k": 3}, "tuned": tuned}) == "9 tried, 50 rounds"
    assert effort({"eta": 0.2, "compressor": {"k": 3}, "tuned": tuned}) == "9 tried, 50 rounds, but changed since"
    assert effort({"eta": 0.2, "tuned": tuned | {"values": {}}}) == "9 tried, 50 rounds, all diverged"
    entries = [{"tuning": words} for words in ("9 tried, 50 rounds", "9 tried, 44 rounds")]
    assert "same number" in fairness(entries)
    assert "not tuned with the same effort" in fairness([*entries, {"tuning": "not tuned"}])
    assert "No algorithm was tuned" in fairness([{"tuning": "not tuned"}] * 2)
    assert fairness(entries[:1]) == ""


# ---- settings of algorithms whose steps are to be found --------------------------------------------------------------


def test_steps_that_are_to_be_found_stay_so_when_another_setting_changes() -> None:
    down = CompressedDownlink(FedADMM("auto", "auto", 5), ErrorBoundedQuantiser(0.1))
    study = Study(toy.problem(), {"a": FedADMM("auto", "auto", 5), "b": FedAvg("auto", 5), "c": down}, 3)
    assert [present(study.complete["a"], key) for key in ("eta_l", "K")] == ["auto", 5]
    assert changed(study, "a", {"K": 3}).algorithm == FedADMM("auto", "auto", 3)
    assert changed(study, "a", {"eta": 0.5}).algorithm == FedADMM(0.5, "auto", 5)
    assert changed(study, "a", {"eta": 0.5, "eta_l": "auto"}).algorithm == FedADMM(0.5, "auto", 5)
    assert changed(study, "b", {"eta": 0.5}).algorithm == FedAvg(0.5, 5)
    assert algorithm_keys(study, "*.eta", "here") == [("a", "eta"), ("b", "eta"), ("c", "eta")]
    fixed = changed(study, "c", {"eta": 0.5, "eta_l": 0.1}).algorithm
    assert fixed == CompressedDownlink(FedADMM(0.5, 0.1, 5), ErrorBoundedQuantiser(0.1))
    with pytest.raises(InputError, match=r"around\(10\) needs a number > 0 in the study, which has 'auto'"):
        tune(study, {"b.eta": "around(10)"}, 60)
