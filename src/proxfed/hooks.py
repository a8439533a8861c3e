"""Hooks: functions and objects that are called with every row of a run, and may stop it.

    def show(moment):
        print(moment.label, moment.row["round"], moment.row["objective"])

    run(problem, algorithm, 100, hooks=[show, Patience(10), Target("accuracy", 0.9)])

A hook is any function of a `Moment`; it returns None, or a `Stop` with its reason. Subclass `Hook` for hooks that keep
a state between rows, or open and close a resource: `begin` returns the function for one algorithm and one seed. The
stop rules here depend on the rows alone, so a resumed run stops at the same round as an uninterrupted one.
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
    """Returned by a hook to end a run after this round. The run counts as done; its message gives the reason."""

    reason: str
    """The reason, in one line."""

    def __post_init__(self) -> None:
        good = isinstance(self.reason, str) and self.reason.strip() != "" and self.reason.isprintable()
        require(good, f"Stop(reason = {self.reason!r}): the reason must be a sentence in one line")


@dataclass(frozen=True)
class About:
    """Information for a hook before the first row of one algorithm with one seed."""

    label: str
    """The label of the algorithm."""
    seed: int
    """The seed of the run."""
    rounds: int
    """The last round, if nothing stops the run."""
    study: str = ""
    """The name of the study; '' for `run`."""
    case: str = ""
    """The case, in an experiment with several."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the study, as in config.toml; empty for `run`."""
    rows: Sequence[Row] = ()
    """The rows so far, if the run is resumed; hooks are not called with them again."""
    folder: Path | None = None
    """The run folder."""
    directions: Directions = field(default_factory=dict)
    """Which values of the problem's own measures are better."""


@dataclass(frozen=True)
class Moment:
    """A row of a run, and the model that it measures."""

    label: str
    """The label of the algorithm."""
    seed: int
    """The seed of the run."""
    rounds: int
    """The last round, if nothing stops the run."""
    row: Row
    """Measures by name: round, objective, bytes_up, ..."""
    x: Tensor = field(repr=False)
    """The run's own model, (d,), which must not be changed: `model` is a copy."""

    @property
    def round(self) -> int:
        return int(self.row["round"])

    @property
    def model(self) -> Tensor:
        """A copy of the model, (d,), which you may keep or change."""
        return self.x.clone()


Told = Callable[[Moment], "Stop | None"]


class Hook:
    """Base class of hooks that keep a state or need to be closed."""

    def check(self) -> None:
        """Refuse what it cannot work without, such as a library that is missing; asked before anything is run."""

    def begin(self, about: About) -> Hook | Told:
        """The function to call with the rows of one algorithm and one seed; this object itself if it has no state."""
        return self

    def __call__(self, moment: Moment) -> Stop | None:
        return None

    def close(self, status: RunStatus, message: str) -> None:
        """Called when the run has ended, on the object that `begin` returned, if it has this method."""


# ---- early stopping --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopRule(Hook):
    """A hook that stops a run depending on its rows only."""

    def rule(self, own: Directions = NONE) -> Callable[[Row], str]:
        """A function that is called with every row, from the first on, and returns the reason to stop, or ''.

        `own` maps the problem's own measures to their better direction.
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
        """The measures that rows must have."""
        return ()


def _value(row: Row, measure: str) -> float:
    """The value of a measure, NaN if it is not finite; refused if rows do not have the measure."""
    if measure not in row:
        raise InputError(f"stop: rows have no measure {measure!r}; they have {', '.join(row)}")
    value = number(row, measure)
    return float("nan") if value is None else value


@dataclass(frozen=True)
class Patience(StopRule):
    """Stop when a measure has not improved on its best value for `rows` rows."""

    rows: int = 10
    """How many."""
    measure: str = "objective"
    """The name of the measure; its direction is known."""
    least: float = 0.0
    """The smallest improvement: a change of this much or less does not count."""

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
            if best != best or (value == value and improves(value)):  # NaN is never the best value
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
    """The name of the measure; its direction is known."""
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
    """Stop after a time in rounds, or a simulated time."""

    seconds: float
    """The limit in seconds, over all rounds; evaluations are not counted."""
    simulated: bool = False
    """Whether to use simulated time, on the devices and links of the study's timing."""

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
    """Stop when this many bytes have been sent over the network, in all directions."""

    bytes: float
    """The limit for bytes_up + bytes_down + bytes_edge of the rows."""

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
    """The hooks of one run, from the first row to the end."""

    def __init__(self, told: Sequence[Any], about: About) -> None:
        self.told, self.about = told, about
        self.interrupted = False
        """Whether a hook raised KeyboardInterrupt: the run stops as after Ctrl-C."""

    def __call__(self, row: dict[str, Any], x: Tensor) -> Stop | None:
        """Call all hooks with the row; the first reason to stop counts."""
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
    """The hooks as a tuple; refused if one of them cannot be called."""
    listed = isinstance(hooks, Sequence) and not isinstance(hooks, str)
    require(listed, f"hooks = {hooks!r:.80} must be a list of functions of a Moment, or of hooks such as Patience(10)")
    for hook in hooks:
        made = callable(hook) and not (isinstance(hook, type) and issubclass(hook, Hook))
        require(made, f"hooks: {hook!r:.80} must be a function of a Moment, or an object such as Patience(10)")
    return tuple(hooks)


def stays_here(hooks: Iterable[Any]) -> bool:
    """Whether some hook is a plain function, which may collect rows and would miss those of other processes."""
    return not all(isinstance(hook, Hook) for hook in hooks)


explain(__name__)
