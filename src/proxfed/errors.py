"""What goes wrong, in two kinds, and the checks that say it in one sentence."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any


class ProxfedError(Exception):
    """Base of the errors that are meant for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(ProxfedError):
    """The request cannot be carried out as it stands: nothing was computed."""

    exit_code = 2


class MissingData(InputError):
    """Files of a data set are not there."""


class RunError(ProxfedError):
    """The request was fine, but something failed on the way; what had been computed is kept."""

    exit_code = 1


class Elsewhere(Exception):
    """The traceback of an error in another process, as text: the cause of the error here."""

    def __str__(self) -> str:
        return f"in another process\n\n{self.args[0]}"


def require(condition: bool, message: str) -> None:
    """Raise InputError(message) unless the condition holds."""
    if not condition:
        raise InputError(message)


def whole(value: Any) -> bool:
    """A whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def real(value: Any) -> bool:
    """A number, perhaps infinite; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    """A number that is neither infinite nor NaN."""
    return real(value) and math.isfinite(value)


def _number(owner: Any, name: str) -> float:
    value = getattr(owner, name)
    require(finite(value), f"{type(owner).__name__}: {name} = {value!r} is not a finite number")
    return value


def positive(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite number > 0."""
    for name in names:
        value = _number(owner, name)
        require(value > 0, f"{type(owner).__name__}: {name} = {value!r} must be > 0")


def non_negative(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a finite number >= 0."""
    for name in names:
        value = _number(owner, name)
        require(value >= 0, f"{type(owner).__name__}: {name} = {value!r} must be >= 0")


def below_one(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a number in [0, 1)."""
    for name in names:
        value = getattr(owner, name)
        require(real(value) and 0 <= value < 1, f"{type(owner).__name__}: {name} = {value!r} must be in [0, 1)")


def up_to_one(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a number in (0, 1]."""
    for name in names:
        value = getattr(owner, name)
        require(real(value) and 0 < value <= 1, f"{type(owner).__name__}: {name} = {value!r} must be in (0, 1]")


def at_least_one(owner: Any, *names: str) -> None:
    """Each named field of `owner` is a whole number >= 1."""
    for name in names:
        value = getattr(owner, name)
        require(whole(value) and value >= 1, f"{type(owner).__name__}: {name} = {value!r} must be a whole number >= 1")


def one_of(owner: Any, name: str, allowed: Iterable[Any]) -> None:
    """The named field of `owner` is one of the allowed values."""
    value, allowed = getattr(owner, name), list(allowed)
    choices = ", ".join(map(repr, allowed))
    require(value in allowed, f"{type(owner).__name__}: {name} = {value!r} is not one of {choices}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an 'unknown name' sentence: the nearest known names, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
