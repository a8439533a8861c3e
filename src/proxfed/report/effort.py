"""How much an algorithm's settings were tuned, in a few words: a comparison is fair where that is the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NONE = "not tuned"
CHANGED = "but changed since"


def effort(algorithm: Mapping[str, Any]) -> str:
    """Of the table of an algorithm in a run's settings: '19 tried, 499 rounds', or 'not tuned'."""
    tuned = algorithm.get("tuned")
    if not isinstance(tuned, Mapping):
        return NONE
    words = f"{tuned.get('configurations', '?')} tried, {tuned.get('rounds', '?')} rounds"
    if not tuned.get("values"):
        return f"{words}, all diverged"
    same = all(_value(algorithm, key) == value for key, value in tuned["values"].items())
    return words if same else f"{words}, {CHANGED}"


def _value(algorithm: Any, key: str) -> Any:
    """What a dotted key names."""
    for word in key.split("."):
        algorithm = algorithm.get(word) if isinstance(algorithm, Mapping) else None
    return algorithm


def fairness(table: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about the effort behind the lines of a comparison; empty if there is nothing to compare."""
    said = [entry["tuning"] for entry in table if "tuning" in entry]
    if len(said) < 2:
        return ""
    if {*said} == {NONE}:
        return (
            "No algorithm was tuned here: settings are as they were given (`proxfed tune` tunes all with equal effort)."
        )
    tried = {words if words.endswith(CHANGED) else words.partition(" tried")[0] for words in said}
    if len(tried) == 1:
        return "All algorithms were tuned with the same number of configurations."
    return "The algorithms were not tuned with the same effort: see the column tuning."
