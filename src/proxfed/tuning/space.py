"""Search spaces: the values that a setting may take, and those to try.

log(1e-3, 1)      numbers between the two, on a logarithmic scale
linear(0, 0.9)    numbers between the two, on a linear scale
1..20             whole numbers, both ends included
[0.1, "a", true]  exactly these values
around(30)        from a thirtieth of the study's own value to thirty times it, on a logarithmic scale
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxfed.errors import InputError, finite, require, whole

FORMS = "log(a,b), linear(a,b), around(factor), a..b, or [a, b, ...]"


@dataclass(frozen=True)
class Between:
    """Numbers from `low` to `high`."""

    low: float
    high: float
    log: bool = False

    size = None
    """None: infinitely many values."""

    def at(self, u: float) -> float:
        """The value at u in [0, 1], with four digits; the ends are exact."""
        if u in (0.0, 1.0):
            return float(self.high if u else self.low)
        if self.log:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def points(self, count: int) -> list[Any]:
        """`count` values, evenly spaced; a single one is in the middle."""
        spread = np.linspace(0, 1, count).tolist() if count > 1 else [0.5]
        return list(dict.fromkeys(map(self.at, spread)))

    def __str__(self) -> str:
        return f"{'log' if self.log else 'linear'}({self.low:g},{self.high:g})"


@dataclass(frozen=True)
class Choice:
    """A list of values, in their order."""

    values: tuple[Any, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)

    def at(self, u: float) -> Any:
        """The value at u in [0, 1]."""
        return self.values[min(int(u * self.size), self.size - 1)]

    def points(self, count: int) -> list[Any]:
        """At most `count` of them, evenly spaced; a single one is in the middle."""
        if count >= self.size:
            return list(self.values)
        places = np.linspace(0, self.size - 1, count).round().astype(int) if count > 1 else [self.size // 2]
        return [self.values[k] for k in places]

    def __str__(self) -> str:
        steady = len(self.values) > 2 and all(map(whole, self.values))
        if steady and list(self.values) == list(range(self.values[0], self.values[-1] + 1)):
            return f"{self.values[0]}..{self.values[-1]}"
        return f"[{', '.join(map(str, self.values))}]"


@dataclass(frozen=True)
class Around:
    """From value/factor to value*factor, where value is the study's own."""

    factor: float

    def of(self, value: Any, where: str) -> Between:
        """The space around this value."""
        known = finite(value) and value > 0
        require(known, f"{where}: around({self.factor:g}) needs a number > 0 in the study, which has {value!r}")
        low, high = (float(f"{v:.4g}") for v in (value / self.factor, value * self.factor))
        return Between(low, high, log=True)


Space = Between | Choice
Given = Space | Around


def log(low: float, high: float) -> Between:
    """Numbers between the two, on a logarithmic scale."""
    return _between(low, high, True, f"log({low!r}, {high!r})")


def linear(low: float, high: float) -> Between:
    """Numbers between the two, on a linear scale."""
    return _between(low, high, False, f"linear({low!r}, {high!r})")


def around(factor: float) -> Around:
    """From the study's own value divided by the factor to the value times the factor."""
    require(finite(factor) and factor > 1, f"around({factor!r}): the factor must be a number > 1")
    return Around(float(factor))


def read_space(given: Any, where: str) -> Given:
    """A space as given on the command line or in Python; `where` is the start of an error message."""
    if isinstance(given, (Between, Choice, Around)):
        return given
    if isinstance(given, (Sequence, range, np.ndarray)) and not isinstance(given, str):
        return _choice(list(given), where)
    require(isinstance(given, str), f"{where}: {given!r} is not a search space; allowed are {FORMS}")
    text = given.strip()
    try:
        if match := re.fullmatch(r"(log|linear|around)\((.*)\)", text):
            numbers = [_number(part) for part in match[2].split(",")]
            if match[1] == "around" and len(numbers) == 1:
                return around(numbers[0])
            if match[1] != "around" and len(numbers) == 2:
                return (log if match[1] == "log" else linear)(*numbers)
        if match := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text):
            low, high = int(match[1]), int(match[2])
            require(low < high, f"{text}: the first number must be below the second one")
            return Choice(tuple(range(low, high + 1)))
    except InputError as e:
        raise InputError(f"{where}: {e}") from e
    if text.startswith("["):
        try:
            return _choice(tomllib.loads(f"values = {text}")["values"], where)
        except tomllib.TOMLDecodeError as e:
            raise InputError(f"{where}: {text} is not a TOML list: {e}") from e
    raise InputError(f"{where}: {text!r} is not a search space; allowed are {FORMS}")


def read_values(given: Any, where: str) -> list[Any]:
    """The values of a sweep: a list, a..b, log(a,b,count) or linear(a,b,count)."""
    match = re.fullmatch(r"(log|linear)\((.*),\s*(\d+)\s*\)", given.strip()) if isinstance(given, str) else None
    if match and match[2].count(",") == 1:
        count = int(match[3])
        require(count > 1, f"{where}: {given} has {'only one point' if count else 'no points'}")
        return _listed(read_space(f"{match[1]}({match[2]})", where), count)
    space = read_space(given, where)
    counted = isinstance(space, Choice)
    require(counted, f"{where}: a sweep needs to know how many points: log(a,b,count), linear(a,b,count), or a list")
    return _listed(space, None)


def _listed(space: Given, count: int | None) -> list[Any]:
    assert not isinstance(space, Around)
    return space.points(count or space.size or 1)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as e:
        raise InputError(f"{text.strip()!r} is not a number") from e
    require(math.isfinite(value), f"{text.strip()!r} is not a finite number")
    return value


def _between(low: Any, high: Any, log: bool, text: str) -> Between:
    require(finite(low) and finite(high), f"{text}: both bounds must be finite numbers")
    require(not log or min(low, high) > 0, f"{text}: both bounds must be > 0")
    require(low != high, f"{text} has only one point")
    require(low < high, f"{text}: the first bound must be below the second one")
    return Between(float(low), float(high), log)


def _choice(values: list[Any], where: str) -> Choice:
    values = [v.item() if isinstance(v, np.generic) else v for v in values]
    require(len(values) > 1, f"{where}: {values} has {'only one point' if values else 'no points'}")
    twice = next((v for k, v in enumerate(values) if v in values[:k]), None)
    require(twice is None, f"{where}: {twice!r} is given twice")
    return Choice(tuple(values))
