"""The criterion for configurations: a measure at the last round, or the cost of reaching a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import mean, median_low
from typing import Any, NamedTuple

from proxfed.errors import InputError, finite, nearest, require
from proxfed.harness.study import Study
from proxfed.report.columns import COMPUTED, MEASURED, NONE, PROGRESS, Directions, Row, column, direction, show
from proxfed.report.targets import first_reached
from proxfed.types import directions

AXES = ("round", "bytes", "sim_seconds", "steps")
CLOSE = 0.05
"""Configurations within this relative distance of the best are considered equally good."""


class Score(NamedTuple):
    """The score of a configuration: smaller is better, compared part by part."""

    diverged: bool
    cost: float
    """The cost of reaching the target; infinite if it was not reached or not kept; 0 without a target."""
    value: float
    """The measure, with its sign changed if higher is better."""
    average: float
    """Its mean over all rows, to break ties: faster is better."""
    fall: float = 0.0
    """The decrease of the value since the start."""


DIVERGED = Score(True, inf, inf, inf)


def fell_apart(now: Score, before: Score) -> bool:
    """Whether it has lost more than half of its progress since it was promoted."""
    return before.fall > 0 and now.fall < before.fall / 2


class Judge(NamedTuple):
    """A measure, and optionally a target for it."""

    measure: str
    target: float | None = None
    axis: str = "round"
    """The cost to count until the target."""
    validation: float = 0.0
    """The fraction of the training rows held out for validation; 0: none."""
    on_test: bool = False
    """Whether it is measured on the test data."""
    directions: Directions = NONE
    """Which values of the problem's own measures are better."""

    @property
    def _sign(self) -> float:
        return -1.0 if direction(self.measure, self.directions) == "higher" else 1.0

    def score(self, histories: Sequence[Sequence[Row]], diverged: bool, clients: int | None) -> Score:
        """The median score over the seeds' rows; if one seed diverged, the worst possible score."""
        parts = [self._score(history, clients) for history in histories]
        if diverged or not parts or not all(finite(part[1]) for part in parts):
            return DIVERGED
        return Score(False, *(median_low(part[k] for part in parts) for k in range(4)))

    def _score(self, history: Sequence[Row], clients: int | None) -> tuple[float, float, float, float]:
        sign = self._sign
        values = [sign * row[self.measure] for row in history if finite(row.get(self.measure))]
        if not values or not finite(history[-1].get(self.measure)):
            return inf, inf, inf, 0.0
        cost = 0.0
        if self.target is not None:
            reached = first_reached(history, self.measure, self.target, self.axis, clients, self.directions)
            goal = sign * self.target
            passed = values[-1] > goal + CLOSE * max(values[0] - goal, 0.0)  # it has left the target again
            cost = inf if reached is None or passed else float(reached)
        return cost, values[-1], mean(values[1:] or values), values[0] - values[-1]

    def close(self, score: Score, best: Score) -> bool:
        """Whether the score is within 5 % of the best: of the cost to the target, or else of the measure's progress."""
        if score.diverged or best.diverged:
            return False
        if finite(best.cost) and self.target is not None:
            return score.cost <= (1 + CLOSE) * best.cost
        return score.value <= best.value + CLOSE * max(best.fall, 0.0)

    def shown(self, score: Score) -> str:
        """The value of the measure, or the cost to the target, as text."""
        if score.diverged:
            return "diverged"
        kind = column(self.measure).kind
        value = show(self.value(score), kind)
        if self.target is None:
            return value
        return self.written(score.cost) if finite(score.cost) else f"not reached ({value})"

    def value(self, score: Score) -> float | None:
        """The measure, with its original sign."""
        return None if score.diverged else self._sign * score.value

    def number(self, score: Score) -> float | None:
        """The cost to the target, or else the value; None if there is neither."""
        if self.target is None:
            return self.value(score)
        return score.cost if finite(score.cost) else None

    def written(self, number: float | None) -> str:
        """The number with its unit."""
        if number is None:
            return "diverged" if self.target is None else "not reached"
        if self.target is None:
            return show(number, column(self.measure).kind)
        return show(number, column(self.axis).kind) + (" rounds" if self.axis == "round" else "")

    def __str__(self) -> str:
        words = self.measure
        if self.target is not None:
            until = {"round": "rounds", "bytes": "bytes", "sim_seconds": "simulated seconds"}.get(self.axis, self.axis)
            words = f"{until} until {self.measure} {self.target:g}"
        if self.validation:
            return f"{words} on {100 * self.validation:g} % of every client's training rows, held out"
        return f"{words} on {'test data' if self.on_test else 'all training data'}"

    def table(self) -> dict[str, Any]:
        """For records."""
        goal = {} if self.target is None else {"target": self.target, "axis": self.axis}
        return {"measure": self.measure, **goal, "validation": self.validation}


def judge(
    study: Study, measure: str | None, target: str | Mapping[str, Any] | None, axis: str | None, validation: float,
    what: str = "tune", solve: bool = True,
) -> Judge:  # fmt: skip
    """The requested judge, or the default: the first measure on held-out data if there is one, else the objective.

    `validation` is the fraction of the training rows to hold out, 0 to use the test data; `solve`: whether the
    reference solution may be computed.
    """
    own = list(directions(study.problem.f.measures))
    goal = _goal(target)
    if goal is not None:
        same = measure is None or measure == goal[0]
        require(same, f"measure = {measure!r} and target = {goal[0]}={goal[1]:g} are not of one measure")
        measure = goal[0]
    name = measure or _default(study, own, what)
    known = [c for c in (*MEASURED, *own) if c != "consensus"]  # it is smallest if nothing moves
    where = "measure" if goal is None else "target"
    require(name in known, f"{where} = {name!r} cannot be measured here; {nearest(name, known)}")
    direction(name, study.directions, where)
    trained = study.problem.f.train_measures or name not in ("objective", "gap", "stationarity")
    require(trained, f"{where} = {name!r}: this problem does not compute it; set problem.train_measures = true")
    solved = study.reference or (solve and study.problem.f.solvable) or name not in ("gap", "error")
    require(solved, f"{where} = {name!r} needs a reference solution: set reference = true, if the problem has a solver")
    part = validation if name in own else 0.0
    value, on_test = None if goal is None else goal[1], name in own and not part
    return Judge(name, value, _axis(study, goal, axis), part, on_test, study.directions)


def _default(study: Study, own: Sequence[str], what: str) -> str:
    if own:
        return own[0]
    if not study.problem.f.train_measures:
        raise InputError(
            f"there is nothing to {what} by: the problem has neither test data nor an objective; give measure"
        )
    return "objective"


def _goal(target: str | Mapping[str, Any] | None) -> tuple[str, float] | None:
    if target is None:
        return None
    if isinstance(target, str):
        name, _, text = target.partition("=")
        try:
            return name.strip(), float(text)
        except ValueError as e:
            raise InputError(f"target = {target!r} is not of the form MEASURE=NUMBER") from e
    good = isinstance(target, Mapping) and len(target) == 1 and all(map(finite, target.values()))
    require(good, f"target = {target!r} must be a measure and a number, such as {{'accuracy': 0.95}}")
    ((name, value),) = target.items()
    return str(name), float(value)


def _axis(study: Study, goal: tuple[str, float] | None, axis: str | None) -> str:
    timed = study.timing is not None
    if axis is None:
        return "sim_seconds" if timed else "round"
    require(goal is not None, f"axis = {axis!r} needs a target: it is the cost to count until the target")
    known = {*(c.name for c in PROGRESS), *COMPUTED} - {"bytes_total", "wall_seconds"}
    require(axis in known, f"axis = {axis!r} is not one of {', '.join(AXES)}")
    require(
        timed or axis != "sim_seconds", "axis = 'sim_seconds': the study has no [time], so no seconds are simulated"
    )
    return axis
