"""The settings of an experiment's file that a paper leaves open: those whose comment begins with 'ours:'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any


def open_settings(table: Mapping[str, Any], text: str) -> list[tuple[str, str, str]]:
    """(key, value, why) of each; `table` is the parsed TOML `text`."""
    found, inside, seen = [], "", Counter[str]()
    for line in text.splitlines():
        if header := re.match(r"\[\[?([^\[\]]+)\]\]?\s*(#.*)?$", line):
            key = header[1].replace('"', "")
            inside = f"{key}.{_name_of(table, key, seen[key])}." if line.startswith("[[") else f"{key}."
            seen[key] += 1
        if setting := re.match(r"\s*([^=#\"]+?|\"[^\"]+\")\s*=\s*(.+?)\s*#\s*ours:\s*(.+?)\s*$", line):
            found.append((inside + setting[1].replace('"', ""), setting[2], setting[3]))
    return found


def _name_of(table: Mapping[str, Any], key: str, place: int) -> str:
    """The name of an entry of a list of tables: its label, its name or its index."""
    here: Any = table
    for part in key.split("."):
        here = here[part]
    entry = here[place]
    return str(entry.get("label", entry.get("name", place + 1)))
