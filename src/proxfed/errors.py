"""The two kinds of errors, and checks with one-sentence messages."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, Final

__all__ = [
    "Elsewhere",
    "InputError",
    "MissingData",
    "ProxfedError",
    "RunError",
    "at_least_one",
    "below_one",
    "finite",
    "in_terms",
    "nearest",
    "non_negative",
    "of_kind",
    "on_command_line",
    "one_of",
    "option",
    "plain_numbers",
    "positive",
    "real",
    "require",
    "shown",
    "up_to_one",
    "whole",
]


class ProxfedError(Exception):
    """Base of the errors that are meant for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(ProxfedError):
    """The request is invalid: nothing was computed."""

    exit_code = 2


class MissingData(InputError):
    """Files of a data set are missing."""


class RunError(ProxfedError):
    """The request was valid, but something failed during the run; the results so far are kept."""

    exit_code = 1


class Elsewhere(Exception):
    """The traceback of an error in another process, as text: the cause of the error here."""

    def __str__(self) -> str:
        return f"in another process\n\n{self.args[0]}"


def require(condition: bool, message: str) -> None:
    """Raise InputError(message) unless the condition holds."""
    if not condition:
        raise InputError(message)


_command_line: ContextVar[bool] = ContextVar("command_line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Within this context messages name settings in the terms of the command line."""
    before = _command_line.set(True)
    try:
        yield
    finally:
        _command_line.reset(before)


def in_terms(command_line: str, python: str) -> str:
    """The text for the caller: the command line's or Python's."""
    return command_line if _command_line.get() else python


def option(name: str, value: Any = None) -> str:
    """A setting in the caller's terms: '--force' on the command line, 'force=True' or 'out' in Python."""
    return in_terms(f"--{name}", name if value is None else f"{name}={value!r}")


def whole(value: Any) -> bool:
    """Whether it is a whole number; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def real(value: Any) -> bool:
    """Whether it is a number, perhaps infinite; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    """Whether it is a number, neither infinite nor NaN."""
    return real(value) and math.isfinite(value)


def plain_numbers(owner: Any, *names: str) -> None:
    """Convert NumPy numbers in the named fields of `owner` to Python numbers."""
    for name in names:
        value = getattr(owner, name)
        own: tuple[type, ...] = (bool, int, float)
        if isinstance(value, Real) and type(value) not in own:
            object.__setattr__(owner, name, int(value) if isinstance(value, Integral) else float(value))


def _number(owner: Any, name: str) -> float:
    plain_numbers(owner, name)
    value = getattr(owner, name)
    require(finite(value), f"{type(owner).__name__}: {name} = {value!r} is not a finite number")
    return value


def positive(owner: Any, *names: str) -> None:
    """Check that each named field of `owner` is a finite number > 0."""
    for name in names:
        value = _number(owner, name)
        require(value > 0, f"{type(owner).__name__}: {name} = {value!r} must be > 0")


def non_negative(owner: Any, *names: str) -> None:
    """Check that each named field of `owner` is a finite number >= 0."""
    for name in names:
        value = _number(owner, name)
        require(value >= 0, f"{type(owner).__name__}: {name} = {value!r} must be >= 0")


def below_one(owner: Any, *names: str) -> None:
    """Check that each named field of `owner` is a number in [0, 1)."""
    plain_numbers(owner, *names)
    for name in names:
        value = getattr(owner, name)
        require(real(value) and 0 <= value < 1, f"{type(owner).__name__}: {name} = {value!r} must be in [0, 1)")


def up_to_one(owner: Any, *names: str) -> None:
    """Check that each named field of `owner` is a number in (0, 1]."""
    plain_numbers(owner, *names)
    for name in names:
        value = getattr(owner, name)
        require(real(value) and 0 < value <= 1, f"{type(owner).__name__}: {name} = {value!r} must be in (0, 1]")


def at_least_one(owner: Any, *names: str) -> None:
    """Check that each named field of `owner` is a whole number >= 1; convert 2.0 and NumPy integers to ints."""
    plain_numbers(owner, *names)
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, float) and value.is_integer():
            object.__setattr__(owner, name, value := int(value))
        require(whole(value) and value >= 1, f"{type(owner).__name__}: {name} = {value!r} must be a whole number >= 1")


def one_of(owner: Any, name: str, allowed: Iterable[Any]) -> None:
    """Check that the named field of `owner` is one of the allowed values."""
    value, allowed = getattr(owner, name), list(allowed)
    choices = ", ".join(map(repr, allowed))
    require(value in allowed, f"{type(owner).__name__}: {name} = {value!r} is not one of {choices}")


def of_kind(key: str, value: Any, kind: Any, allowed: str) -> None:
    """Check that `value` is an object of this kind, and not a class."""
    if not isinstance(value, kind) or isinstance(value, type):
        raise InputError(f"{key} must be {allowed}, not {shown(value)}")


def shown(value: Any) -> str:
    """A wrong value for a message: short values as they are, others by their type, since a repr may be very long."""
    short = value is None or isinstance(value, (str, int, float, type))
    return f"{value!r:.80}" if short else f"a {type(value).__name__}"


_STEP, _LOCAL = ("eta", "alpha"), ("K", "tau", "T0")
OTHER_NAMES: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("lr", "learning_rate", "step", "step_size"), _STEP),
    **dict.fromkeys(("local_steps", "steps", "epochs", "local_epochs"), _LOCAL),
    **dict.fromkeys(("batch_size", "minibatch"), ("batch",)),
    **dict.fromkeys(("num_clients", "n_clients", "clients"), ("clients", "num_partitions")),
    **dict.fromkeys(("num_rounds", "n_rounds", "iterations"), ("rounds",)),
}
"""Names of other libraries, and their counterparts here."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an 'unknown name' sentence: its name here, the nearest known name, or all known names."""
    known = sorted(known)
    if others := OTHER_NAMES.get(word):
        here = next((name for name in others if name in known), None)
        return f"it is called {here!r} here" if here else f"known: {', '.join(known)}"
    close = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
