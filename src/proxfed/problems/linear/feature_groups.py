"""Groups of features by name, as group numbers: the features of a group are kept or zero together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxfed.errors import InputError, nearest, require


def labels_of(names: Sequence[str], groups: Mapping[str, Any]) -> tuple[int, ...]:
    """The group of each feature, (p,), from {group: [features]} or {feature: group}; other features are single."""
    if not isinstance(groups, Mapping) or not groups:
        raise InputError(f"groups = {groups!r} must be a table of groups, such as {{'stage': ['stage=1', 'stage=2']}}")
    owner: dict[str, str] = {}
    for feature, group in _pairs(groups):
        known = feature in names
        require(known, f"groups: there is no feature {feature!r}; {nearest(str(feature), names)}" if not known else "")
        twice = feature in owner
        require(not twice, f"groups: the feature {feature!r} is in {owner.get(feature)!r} and in {group!r}")
        owner[feature] = group
    numbers: dict[tuple[str, str], int] = {}
    keys = [("group", owner[name]) if name in owner else ("alone", name) for name in names]
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _pairs(groups: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(feature, group) in the order of the table."""
    pairs = []
    for key, value in groups.items():
        if isinstance(value, str):
            pairs.append((key, value))
            continue
        words = isinstance(value, Sequence) and len(value) > 0 and all(isinstance(name, str) for name in value)
        require(words, f"groups: {key!r} = {value!r} must be a list of features, or the group of this feature")
        pairs += [(name, key) for name in value]
    return pairs
