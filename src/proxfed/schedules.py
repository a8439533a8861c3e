"""Step sizes: a number, or a function of the round, which counts from 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from proxfed.errors import positive, require, up_to_one
from proxfed.registry import Registry

Step = float | Callable[[int], float]


def at(step: Step, t: int) -> float:
    """The step size of round t."""
    return step(t) if callable(step) else step


def first(step: Step) -> float:
    """The step size of the first round: schedules do not grow, so it is the largest."""
    return at(step, 1)


def positive_step(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite step size > 0."""
    for name in names:
        step = getattr(owner, name)
        require(0 < first(step) < inf, f"{type(owner).__name__}: {name} = {step!r} must be > 0 and finite")


@dataclass(frozen=True)
class ExponentialDecay:
    """start * decay^(t-1)."""

    start: float
    decay: float

    def __post_init__(self) -> None:
        positive(self, "start")
        up_to_one(self, "decay")

    def __call__(self, t: int) -> float:
        return self.start * self.decay ** (t - 1)


@dataclass(frozen=True)
class InverseRoot:
    """start / sqrt(t)."""

    start: float

    def __post_init__(self) -> None:
        positive(self, "start")

    def __call__(self, t: int) -> float:
        return self.start / t**0.5


SCHEDULES: Registry[type] = Registry(
    "schedules", {"exponential": ExponentialDecay, "inverse_root": InverseRoot}, of=Step
)
