"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; empty if there are no lines."""
    if not lines:
        return ""
    rule = "|".join(["", *("---" for _ in head), ""])
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""])


def plain_text(text: str) -> str:
    """Text for a cell, with special characters escaped."""
    return re.sub(r"([|*<\\\[\]])", r"\\\1", " ".join(text.split()))


def from_to(numbers: Iterable[int]) -> str:
    """The smallest and the largest, if they differ."""
    found = {*numbers}
    return " to ".join(f"{number:,}" for number in sorted({min(found), max(found)}))
