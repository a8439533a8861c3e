"""Files that are checked by pydantic: what all their parts have in common, and a refusal in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from proxfed.errors import nearest

SENTENCE = "sentence"
"""The type of validation errors whose message is a whole sentence."""

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
"""Unknown keys and values of another type are refused."""


def refuse_unless(condition: bool, message: str) -> None:
    """`require` inside a validator."""
    if not condition:
        raise PydanticCustomError(SENTENCE, "{message}", {"message": message})


def sentence(
    e: ValidationError,
    table: Any,
    known: Callable[[Sequence[str]], Iterable[str]],
    inside: Callable[[str, Any], str] = lambda key, table: "",
) -> str:
    """The first thing that is wrong with a table.

    `known` has the keys that are allowed at the end of a path; `inside` says where a key stands that is unknown at the
    top of the table, if it is further down.
    """
    error = e.errors()[0]
    keys = keys_of(error["loc"], table)
    place = ".".join(keys)
    if error["type"] == SENTENCE:
        return error["msg"]
    if error["type"] == "extra_forbidden":
        below = inside(place, table) if len(keys) == 1 else ""
        own = below.endswith(f".{keys[-1]}")
        down = f"it stands one level down: {below}" if own else f"it is called {below} here"
        hint = down if below else nearest(keys[-1], known(keys[:-1]))
        return f"unknown key {place!r}; {hint}"
    if error["type"] == "missing":
        return f"the key {'.'.join([*keys, str(error['loc'][-1])])!r} is missing"
    said = error["msg"].removeprefix("Value error, ")
    return f"{place} = {error['input']!r} is not allowed: {said[0].lower()}{said[1:]}"


def keys_of(location: Iterable[str | int], here: Any) -> list[str]:
    """Those of a location that are there; where a value may be of several types, pydantic names the type as well."""
    keys = []
    for part in location:
        inside = here if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        if part in inside:
            keys.append(str(part))
            here = here[part]
    return keys
