"""The differences between the settings of two runs, by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxfed.errors import InputError, option
from proxfed.harness.experiment import canonical
from proxfed.registry import Table, label_of

DESCRIPTIVE_KEYS = ("description", "targets", "better", "paper", "reported", "claims")
"""Descriptive keys of an experiment, on which no row depends."""


def result_settings(table: Table) -> Table:
    """The settings that rows depend on, without descriptive keys."""
    own = [{k: v for k, v in entry.items() if k != "tuned"} for entry in table.get("algorithms", ())]
    return {k: v for k, v in table.items() if k not in DESCRIPTIVE_KEYS} | ({"algorithms": own} if own else {})


def flat(table: Mapping[str, Any], prefix: str = "", called: str = "label") -> Table:
    """A flat table with dotted keys; list entries are named by their label, or by their name (`called`)."""
    settings: Table = {}
    for key, value in table.items():
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            value = _named(value, called)
        if isinstance(value, Mapping):
            settings |= flat(value, f"{prefix}{key}.", called)
        else:
            settings[f"{prefix}{key}"] = value
    return settings


def _named(entries: list[Mapping[str, Any]], called: str) -> dict[str, Mapping[str, Any]]:
    names = [str(entry.get(called, entry.get("name", place))) for place, entry in enumerate(entries)]
    places = map(str, range(len(entries)))  # if names are not unique, as for regularisers of two blocks
    return dict(zip(names if len({*names}) == len(names) else places, entries, strict=True))


def by_key(table: Table) -> Table:
    """The settings that rows depend on: first the list of algorithms, then everything by dotted key."""
    settings = {
        key: _file_name(value)
        for key, value in flat(result_settings(table) | {"problem": canonical(table["problem"])}).items()
    }
    labels = [label_of(entry) for entry in table["algorithms"]]
    return {"algorithms": labels} | {key: settings[key] for key in sorted(settings)}


def changed(then: Table, now: Table) -> dict[str, tuple[Any, Any]]:
    """The settings that both have, with different values, so that defaults may be left out in one."""
    return other_values(by_key(then), by_key(now))


def other_values(before: Table, after: Table) -> dict[str, tuple[Any, Any]]:
    """`changed` for settings by key."""
    return {key: (before[key], after[key]) for key in before if key in after and before[key] != after[key]}


def first_difference(then: Table, now: Table) -> str | None:
    """The first difference between two tables with all defaults, in a few words."""
    return first_changed(by_key(then), by_key(now))


def first_changed(before: Table, after: Table) -> str | None:
    """`first_difference` for settings by key."""
    for key in before | after:
        if key not in before or key not in after or before[key] != after[key]:
            old, new = (repr(table[key]) if key in table else "not set" for table in (before, after))
            return f"{key} was {old}, now {new}"
    return None


def _file_name(value: Any) -> Any:
    """Only the file name of a plug-in, whose file may have moved."""
    file, colon, attribute = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{Path(file).name}:{attribute}" if colon and file.endswith(".py") else value


def settings_mismatch(path: Path, difference: str) -> InputError:
    ways = f"{option('force', True)} replaces it, or choose another {option('out')}"
    return InputError(f"the run in {path} has other settings: {difference}; {ways}")
