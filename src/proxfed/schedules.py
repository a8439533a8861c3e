"""Step sizes: a number, a function of the round (counted from 1), or "auto" until a run has found it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from proxfed.errors import InputError, finite, plain_numbers, positive, require, up_to_one
from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.types import AUTO, FloatOrAuto

__all__ = [
    "SCHEDULES",
    "ExponentialDecay",
    "InverseRoot",
    "Schedule",
    "Step",
    "at",
    "at_most_lam",
    "first",
    "non_negative_or_auto",
    "positive_or_auto",
    "positive_step",
]

Schedule = Callable[[int], float]
"""The step size of round t."""

Step = float | Schedule | Literal["auto"]


def at(step: Step, t: int) -> float:
    """The step size of round t."""
    if isinstance(step, str):
        raise InputError("a step that is 'auto' has to be found first: run it by `run` or `compare`, or give a number")
    return step(t) if callable(step) else step


def first(step: Step) -> float:
    """The step size of the first round, which is the largest, since schedules do not grow."""
    return at(step, 1)


def positive_step(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite step size > 0, a schedule that begins with one, or "auto"."""
    _checked(owner, names, "a finite number > 0, a schedule such as InverseRoot(0.1), or 'auto'", scheduled=True)


def positive_or_auto(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite number > 0, or "auto"."""
    _checked(owner, names, "a finite number > 0, or 'auto'")


def non_negative_or_auto(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite number >= 0, or "auto"."""
    _checked(owner, names, "a finite number >= 0, or 'auto'", zero=True)


def at_most_lam(owner: Any, name: str, lam: FloatOrAuto) -> None:
    """Check that a local step is at most the penalty length lam; if lam is "auto", it follows from the step."""
    step, who = getattr(owner, name), type(owner).__name__
    if lam == AUTO:
        require(step == AUTO, f"{who}: lam = 'auto' follows from {name}, so {name} = {step!r} must be 'auto', too")
    elif step != AUTO:
        require(first(step) <= lam, f"{who}: {name} = {first(step)!r} must be in (0, lam = {lam:g}]")


def _checked(owner: Any, names: tuple[str, ...], allowed: str, scheduled: bool = False, zero: bool = False) -> None:
    plain_numbers(owner, *names)
    for name in names:
        step = getattr(owner, name)
        value = step(1) if scheduled and callable(step) and not isinstance(step, type) else step
        good = isinstance(step, str) and step == AUTO
        good = good or (finite(value) and (value > 0 or (zero and value == 0)))
        require(good, f"{type(owner).__name__}: {name} = {step!r} must be {allowed}")


@dataclass(frozen=True)
class ExponentialDecay:
    """start * decay^(t-1)."""

    start: float
    """Step size of round 1."""
    decay: float
    """Factor from one round to the next, in (0, 1]."""

    def __post_init__(self) -> None:
        positive(self, "start")
        up_to_one(self, "decay")

    def __call__(self, t: int) -> float:
        return self.start * self.decay ** (t - 1)


@dataclass(frozen=True)
class InverseRoot:
    """start / sqrt(t)."""

    start: float
    """Step size of round 1."""

    def __post_init__(self) -> None:
        positive(self, "start")

    def __call__(self, t: int) -> float:
        return self.start / t**0.5


SCHEDULES: Registry[type] = Registry(
    "schedules", {"exponential": ExponentialDecay, "inverse_root": InverseRoot}, of=Step
)


explain(__name__)
