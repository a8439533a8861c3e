"""Changing settings by dotted keys: -c on the command line, cases, forms and variants of a file."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from typing import Any

from proxfed.errors import require
from proxfed.registry import Table, label_of

OF_EACH = ("rounds", "topology", "participation")
"""Settings of an experiment that an algorithm may override; in the config.toml of a run, each algorithm has them."""


def override(table: Table, override: str) -> None:
    """Apply key=value with a dotted key, as on the command line."""
    label = _label_at(table, override)
    rest, equals, text = override.removeprefix(label).partition("=")
    key = label + rest
    require(bool(equals) and bool(key), f"-c {override!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    check_not_overruled(table, key, f"-c {override}", "-c ")
    assign(table, key, value, f"-c {override}")


def _label_at(table: Table, override: str) -> str:
    """The 'algorithms.LABEL.' at the start of an override, if it names one; a label may contain '='."""
    entries = [a for a in table.get("algorithms", []) if isinstance(a, dict)]
    starts = [f"algorithms.{entry[word]}." for entry in entries for word in ("label", "name") if word in entry]
    return max((start for start in starts if override.startswith(start)), key=len, default="")


def check_not_overruled(table: Table, key: str, where: str, option: str = "") -> None:
    """Refuse a change of a common setting that the algorithms override."""
    first = key.partition(".")[0]
    overruled = first in OF_EACH and _have_their_own(first, table)
    instead = f"{option}algorithms.NAME.{key}=..., or * for NAME"
    require(not overruled, f"{where}: algorithms have their own {first}; use {instead}")


def _have_their_own(setting: str, table: Table) -> bool:
    """Whether the algorithms' own settings would override the common one."""
    owners = [setting in a for a in table.get("algorithms", []) if isinstance(a, dict)]
    # Without a common graph, algorithms that need one have their own.
    return any(owners) and (all(owners) or setting == "rounds" or (setting == "topology" and setting not in table))


def assign(here: Any, key: str, value: Any, where: str) -> None:
    """Set the value of a dotted key such as algorithms.fedavg.eta; algorithms by label, name, index, or * for all."""
    if isinstance(here, list):
        for place, rest in _places(here, key, where):
            if rest:
                assign(here[place], rest, value, where)
            else:
                here[place] = deepcopy(value)
        return
    first, dot, rest = key.partition(".")
    require(isinstance(here, dict), f"{where}: {first!r} is not inside a table")
    if dot:
        assign(here.setdefault(first, {}), rest, value, where)
    else:
        here[first] = deepcopy(value)


def _places(here: list[Any], key: str, where: str) -> list[tuple[int, str]]:
    """(index, rest of the key) of the list entries that the start of a key names. Labels may contain dots."""
    first, _, rest = key.partition(".")
    if first == "*":
        return [(k, rest) for k in range(len(here))]
    if first.isdigit() and int(first) < len(here):
        return [(int(first), rest)]
    entries = [(k, entry) for k, entry in enumerate(here) if isinstance(entry, dict)]
    names = {str(entry[word]) for _, entry in entries for word in ("label", "name") if word in entry}
    meant = max((name for name in names if f"{key}.".startswith(f"{name}.")), key=len, default=first)
    matches = [k for k, entry in entries if meant in (entry.get("label"), entry.get("name"))]
    known = ", ".join(label_of(entry) for _, entry in entries)
    require(len(matches) == 1, f"{where}: {meant!r} names {len(matches)} entries; known: {known}")
    return [(matches[0], key.removeprefix(meant).removeprefix("."))]
