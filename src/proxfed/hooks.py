"""Hooks: functions and objects that are told of every row of a run, and may stop it.

    def show(moment):
        print(moment.label, moment.row["round"], moment.row["objective"])

    run(problem, algorithm, 100, hooks=[show, Patience(10), Target("accuracy", 0.9)])

A hook is any function of a `Moment`; it returns None, or a `Stop` with its reason. One that keeps something from row to
row, or opens and closes something, is a `Hook`: `begin` gives what is called with the rows of one algorithm and one
seed. What stops a run here follows from its rows alone, so a resumed run stops where an uninterrupted one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from proxfed.errors import InputError, finite, require, whole
from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.report.columns import (
    NONE,
    Directions,
    Row,
    RunStatus,
    axis_value,
    better,
    direction,
    number,
    show,
)

__all__ = ["STOPS", "About", "Bytes", "Hook", "Moment", "Patience", "Seconds", "Stop", "StopRule", "Target", "begun"]


@dataclass(frozen=True)
class Stop:
    """What a hook returns to end a run after this round. The run is done; its status and message say why."""

    reason: str
    """Why, in one line."""

    def __post_init__(self) -> None:
        good = isinstance(self.reason, str) and self.reason.strip() != "" and self.reason.isprintable()
        require(good, f"Stop(reason = {self.reason!r}): the reason must be a sentence in one line")


@dataclass(frozen=True)
class About:
    """What a hook is told before the first row of one algorithm with one seed."""

    label: str
    """Of the algorithm."""
    seed: int
    """Of the run."""
    rounds: int
    """The last round, if nothing stops the run."""
    study: str = ""
    """Its name; '' for `run`."""
    case: str = ""
    """Of an experiment with several cases."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the study, as in config.toml; empty for `run`."""
    rows: Sequence[Row] = ()
    """The rows so far, of a run that is resumed: no hook is called with them again."""
    folder: Path | None = None
    """The run folder."""
    directions: Directions = field(default_factory=dict)
    """Which values of the problem's own measures are better, as it says."""


@dataclass(frozen=True)
class Moment:
    """A row of a run, and the model that it is of."""

    label: str
    """Of the algorithm."""
    seed: int
    """Of the run."""
    rounds: int
    """The last round, if nothing stops the run."""
    row: Row
    """Measures by name: round, objective, bytes_up, ..."""
    x: Tensor = field(repr=False)
    """The model, (d,), which the run goes on with: `model` is a copy."""

    @property
    def round(self) -> int:
        return int(self.row["round"])

    @property
    def model(self) -> Tensor:
        """A copy of the model, (d,), which may be kept or changed."""
        return self.x.clone()


Told = Callable[[Moment], "Stop | None"]


class Hook:
    """Base class of hooks with a state, or with a beginning and an end."""

    def check(self) -> None:
        """Refuse what it cannot work without, such as a library that is missing; asked before anything is run."""

    def begin(self, about: About) -> Hook | Told:
        """What is called with the rows of one algorithm and one seed; this object itself if it keeps no state."""
        return self

    def __call__(self, moment: Moment) -> Stop | None:
        return None

    def close(self, status: RunStatus, message: str) -> None:
        """The run has come to this end; called on what `begin` gave, if it has such a method."""


# ---- early stopping --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopRule(Hook):
    """A hook that stops by looking at rows only."""

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        """A function that is called with all rows, from the first on, and says why to stop; or ''.

        `own` says which values of the problem's own measures are better.
        """
        raise NotImplementedError

    def begin(self, about: About) -> Told:
        why = self.rule(about.directions)
        for row in about.rows:
            why(row)

        def look(moment: Moment) -> Stop | None:
            reason = why(moment.row)
            return Stop(reason) if reason else None

        return look

    @property
    def measures(self) -> tuple[str, ...]:
        """What rows must have."""
        return ()


def _value(row: Row, measure: str) -> float:
    """A measure that is not finite is none; one that rows do not have is refused."""
    if measure not in row:
        raise InputError(f"stop: rows have no measure {measure!r}; they have {', '.join(row)}")
    value = number(row, measure)
    return float("nan") if value is None else value


@dataclass(frozen=True)
class Patience(StopRule):
    """Stop after so many rows in which a measure has not improved on its best value."""

    rows: int = 10
    """How many."""
    measure: str = "objective"
    """Its name; which way is better is known."""
    least: float = 0.0
    """An improvement by this much or less is none."""

    def __post_init__(self) -> None:
        require(whole(self.rows) and self.rows >= 1, f"patience = {self.rows!r} must be a whole number >= 1")
        require(isinstance(self.measure, str), f"measure = {self.measure!r} must be the name of a measure")
        require(finite(self.least) and self.least >= 0, f"least = {self.least!r} must be a finite number >= 0")

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        way, best, since = direction(self.measure, own, "patience: measure"), float("nan"), 0

        def improves(value: float) -> bool:
            return value != best and better(way, value, best) and abs(value - best) > self.least

        def why(row: Row) -> str:
            nonlocal best, since
            value = _value(row, self.measure)
            if best != best or (value == value and improves(value)):  # not a number is no best value
                best, since = value, 0
            else:
                since += 1
            enough = since >= self.rows
            return f"{self.measure} has not improved on {best:.6g} for {self.rows} rows" if enough else ""

        return why


@dataclass(frozen=True)
class Target(StopRule):
    """Stop when a measure has reached a value."""

    measure: str
    """Its name; which way is better is known."""
    value: float
    """Reached if the measure is as good or better."""

    def __post_init__(self) -> None:
        require(isinstance(self.measure, str), f"measure = {self.measure!r} must be the name of a measure")
        require(finite(self.value), f"target: {self.measure} = {self.value!r} must be a finite number")

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        way = direction(self.measure, own, "target: measure")

        def why(row: Row) -> str:
            value = _value(row, self.measure)
            there = value == value and better(way, value, self.value)
            return f"{self.measure} {value:.6g} has reached the target {self.value:g}" if there else ""

        return why


@dataclass(frozen=True)
class Seconds(StopRule):
    """Stop after so many seconds in rounds, or so many simulated seconds."""

    seconds: float
    """In all rounds so far; evaluations are not counted."""
    simulated: bool = False
    """On the devices and links of the study's timing."""

    def __post_init__(self) -> None:
        require(finite(self.seconds) and self.seconds > 0, f"seconds = {self.seconds!r} must be a number > 0")

    @property
    def measures(self) -> tuple[str, ...]:
        return ("sim_seconds",) if self.simulated else ()

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        name, words = ("sim_seconds", "simulated time") if self.simulated else ("wall_seconds", "time in rounds")

        def why(row: Row) -> str:
            spent = _value(row, name)
            return f"{words} of {spent:.3g} s exceeds {self.seconds:g} s" if spent >= self.seconds else ""

        return why


@dataclass(frozen=True)
class Bytes(StopRule):
    """Stop when so many bytes have crossed the network, in all directions."""

    bytes: float
    """As rows count them: bytes_up, bytes_down and bytes_edge."""

    def __post_init__(self) -> None:
        require(finite(self.bytes) and self.bytes > 0, f"bytes = {self.bytes!r} must be a number > 0")

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        def why(row: Row) -> str:
            sent = axis_value(row, "bytes") or 0
            much = f"{show(sent, 'bytes')} were sent, of {show(self.bytes, 'bytes')} that are allowed"
            return much if sent >= self.bytes else ""

        return why


STOPS: Registry[type] = Registry("stops", {"patience": Patience, "target": Target, "seconds": Seconds, "bytes": Bytes})


# ---- hooks of one run ------------------------------------------------------------------------------------------------


class Begun(AbstractContextManager["Begun"]):
    """The hooks of one run, from its first row to its end."""

    def __init__(self, told: Sequence[Any], about: About) -> None:
        self.told, self.about = told, about
        self.interrupted = False
        """A hook raised KeyboardInterrupt: the run is to stop as after Ctrl-C."""

    def __call__(self, row: dict[str, Any], x: Tensor) -> Stop | None:
        """All hooks hear of the row; the first reason to stop counts."""
        moment = Moment(self.about.label, self.about.seed, self.about.rounds, MappingProxyType(row), x)
        stops = [self._ask(hook, moment) for hook in self.told]
        return next((stop for stop in stops if stop is not None), None)

    def _ask(self, hook: Any, moment: Moment) -> Stop | None:
        try:
            said = hook(moment)
        except KeyboardInterrupt:
            self.interrupted = True
            return None
        except StopIteration as e:
            return Stop(str(e) or "a hook raised StopIteration")
        if said is None or isinstance(said, Stop):
            return said
        raise InputError(f"the hook {hook!r:.80} returned {said!r:.80}: return None, or Stop(reason)")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.close(RunStatus.INTERRUPTED, f"{type(error).__name__}: {error}")

    def close(self, status: RunStatus, message: str) -> None:
        for hook in self.told:
            if hasattr(hook, "close"):
                hook.close(status, message)


def begun(hooks: Iterable[Any], about: About) -> Begun:
    """The hooks of one algorithm with one seed."""
    return Begun([hook.begin(about) if isinstance(hook, Hook) else hook for hook in hooks], about)


def checked(hooks: Any) -> tuple[Any, ...]:
    """A list of hooks; refused if one of them cannot be called."""
    listed = isinstance(hooks, Sequence) and not isinstance(hooks, str)
    require(listed, f"hooks = {hooks!r:.80} must be a list of functions of a Moment, or of hooks such as Patience(10)")
    for hook in hooks:
        made = callable(hook) and not (isinstance(hook, type) and issubclass(hook, Hook))
        require(made, f"hooks: {hook!r:.80} must be a function of a Moment, or an object such as Patience(10)")
    return tuple(hooks)


def stays_here(hooks: Iterable[Any]) -> bool:
    """Some hook is a plain function, which may collect rows in this process and would not see those of others."""
    return not all(isinstance(hook, Hook) for hook in hooks)


explain(__name__)
