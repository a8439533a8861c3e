"""What configurations are judged by: a measure at the last round, or what it took to reach a target."""

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
"""What is within this of the best is as good as it."""


class Score(NamedTuple):
    """The smaller the better, from the first part to the last."""

    diverged: bool
    cost: float
    """To the target; infinite if it was not reached, or was left again; 0 without a target."""
    value: float
    """Of the measure, with its sign changed where higher is better."""
    average: float
    """The same over all rows, for ties: what is faster is better."""
    fall: float = 0.0
    """By how much the value is below that of the start."""


DIVERGED = Score(True, inf, inf, inf)


def fell_apart(now: Score, before: Score) -> bool:
    """Since it was promoted, it has lost more than half of what it had gained until then."""
    return before.fall > 0 and now.fall < before.fall / 2


class Judge(NamedTuple):
    """A measure, and perhaps a target of it."""

    measure: str
    target: float | None = None
    axis: str = "round"
    """What is counted until the target."""
    validation: float = 0.0
    """Part of the training rows that is held out to measure on; 0: none."""
    on_test: bool = False
    """It is measured on the test data."""
    directions: Directions = NONE
    """Which values of the problem's own measures are better."""

    @property
    def _sign(self) -> float:
        return -1.0 if direction(self.measure, self.directions) == "higher" else 1.0

    def score(self, histories: Sequence[Sequence[Row]], diverged: bool, clients: int | None) -> Score:
        """Of the rows of each seed: the median over the seeds; if one of them diverged, the worst there is."""
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
            passed = values[-1] > goal + CLOSE * max(values[0] - goal, 0.0)  # it is beyond it again
            cost = inf if reached is None or passed else float(reached)
        return cost, values[-1], mean(values[1:] or values), values[0] - values[-1]

    def close(self, score: Score, best: Score) -> bool:
        """Within 5 % of the best: of what it took to reach the target, or else of what the measure has gained."""
        if score.diverged or best.diverged:
            return False
        if finite(best.cost) and self.target is not None:
            return score.cost <= (1 + CLOSE) * best.cost
        return score.value <= best.value + CLOSE * max(best.fall, 0.0)

    def shown(self, score: Score) -> str:
        """The value of the measure, or what it took to reach the target."""
        if score.diverged:
            return "diverged"
        kind = column(self.measure).kind
        value = show(self.value(score), kind)
        if self.target is None:
            return value
        return self.written(score.cost) if finite(score.cost) else f"not reached ({value})"

    def value(self, score: Score) -> float | None:
        """As it was measured."""
        return None if score.diverged else self._sign * score.value

    def number(self, score: Score) -> float | None:
        """What it took to reach the target, or else the value; None where there is neither."""
        if self.target is None:
            return self.value(score)
        return score.cost if finite(score.cost) else None

    def written(self, number: float | None) -> str:
        """Such a number with its unit."""
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
            return f"{words} on {100 * self.validation:g} % of every client's training rows, held out for it"
        return f"{words} on {'test data' if self.on_test else 'all training data'}"

    def table(self) -> dict[str, Any]:
        """For records."""
        goal = {} if self.target is None else {"target": self.target, "axis": self.axis}
        return {"measure": self.measure, **goal, "validation": self.validation}


def judge(
    study: Study, measure: str | None, target: str | Mapping[str, Any] | None, axis: str | None, validation: float,
    what: str = "tune", solve: bool = True,
) -> Judge:  # fmt: skip
    """The judge that was asked for, or the study's own: on held-out data if it has such a measure, else the objective.

    `validation` is the part of the training rows that is held out, 0 for the test data; `solve` whether the reference
    solution may be computed for it.
    """
    own = list(directions(study.problem.f.measures))
    goal = _goal(target)
    if goal is not None:
        same = measure is None or measure == goal[0]
        require(same, f"measure = {measure!r} and target = {goal[0]}={goal[1]:g} are not of one measure")
        measure = goal[0]
    name = measure or _default(study, own, what)
    known = [c for c in (*MEASURED, *own) if c != "consensus"]  # it is least where nothing moves
    where = "measure" if goal is None else "target"
    require(name in known, f"{where} = {name!r} cannot be measured here; {nearest(name, known)}")
    direction(name, study.directions, where)
    trained = study.problem.f.train_measures or name not in ("objective", "gap", "stationarity")
    require(trained, f"{where} = {name!r}: this problem leaves it out; set problem.train_measures = true")
    solved = study.reference or (solve and study.problem.f.solvable) or name not in ("gap", "error")
    require(solved, f"{where} = {name!r} needs a reference solution: set reference = true, where there is a solver")
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
    require(goal is not None, f"axis = {axis!r} says what is counted until a target: give a target too")
    known = {*(c.name for c in PROGRESS), *COMPUTED} - {"bytes_total", "wall_seconds"}
    require(axis in known, f"axis = {axis!r} is not one of {', '.join(AXES)}")
    require(
        timed or axis != "sim_seconds", "axis = 'sim_seconds': the study has no [time], so no seconds are simulated"
    )
    return axis
