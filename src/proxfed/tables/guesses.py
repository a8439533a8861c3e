"""Guesses at the kind of a column, from a first look at its cells. They are for review only, never acted on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np

from proxfed.tables.cells import Misfit, day_of, number_reader
from proxfed.tables.column_kinds import Boolean, Date, Number, canonical, words_of

GAPS = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "-", ".", "#N/A", "missing")
"""Words that usually mean missing."""
CODES = (-1, -9, -99, -999, -9999, 99, 999, 9999, 99999, 0)
"""Numbers that often do."""
FORMATS = ("%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%Y-%m-%d %H:%M:%S")
NOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {"thousands": ","},
    {"currency": "$"},
    {"currency": "$", "thousands": ","},
    {"currency": "€"},
    {"currency": "£", "thousands": ","},
    {"currency": "%"},
    {"decimal": ","},
    {"decimal": ",", "thousands": "."},
    {"decimal": ",", "thousands": ".", "currency": "€"},
)
MOST_CATEGORIES = 60
SUBJECTS = '{} different words, each in several rows: subjects? then [folds] group = "..." with this column'
"""The remark on a column that seems to identify subjects."""


class Guess(NamedTuple):
    """The keys of a column's table, and remarks for its owner."""

    keys: dict[str, Any]
    remarks: list[str]


def guess(cells: Iterable[Any], fewest: int) -> Guess:
    """A guess for one column without missing cells; values that fewer than `fewest` rows hold are not written."""
    counted = Counter(cell if isinstance(cell, (date, bool)) else canonical(cell) for cell in cells)
    if not counted:
        return Guess({"kind": "ignore"}, ["no row has a value"])
    found = _boolean(counted) or _date(counted) or _number_like(counted, fewest)
    return found or _category(counted, fewest)


def _boolean(counted: Counter[Any]) -> Guess | None:
    usual = Boolean(kind="boolean")
    known = {word.casefold() for word in words_of([*usual.yes, *usual.no])}
    if len(counted) <= 2 and all(isinstance(cell, bool) or str(cell).casefold() in known for cell in counted):
        return Guess({"kind": "boolean"}, [])
    return None


def _date(counted: Counter[Any]) -> Guess | None:
    if all(isinstance(cell, date) for cell in counted):
        return Guess({"kind": "date"}, [])
    fits = [form for form in FORMATS if all(_is_date(cell, form) for cell in counted)]
    if not fits:
        return None
    remarks = [f"the dates fit {fits[1]} as well: which is it?"] if len(fits) > 1 else []
    if "%y" in fits[0]:
        remarks.append("years have two digits: range = [first, last] says which century")
    return Guess({"kind": "date", "format": fits[0]}, remarks)


def _is_date(cell: Any, form: str) -> bool:
    if isinstance(cell, datetime):
        return False
    try:
        day_of(cell, [form], Date(kind="date"), "")
    except Misfit:
        return False
    return True


def _number_like(counted: Counter[Any], fewest: int) -> Guess | None:
    if any(isinstance(cell, str) and re.fullmatch("0[0-9]+", cell) for cell in counted):
        return None  # 01234 is a code
    for notation in NOTATIONS:
        column = Number.model_validate({"kind": "number", **notation})
        try:
            values = np.array([number_reader(column)(cell) for cell in counted])
        except Misfit:
            continue
        times = np.array(list(counted.values()))
        return Guess({"kind": "number", **notation}, _remarks(values, times, fewest))
    return None


def _remarks(values: np.ndarray, times: np.ndarray, fewest: int) -> list[str]:
    whole = bool((values == np.floor(values)).all())
    if whole and len(values) <= 10 and times.sum() > 3 * len(values):
        return [f"{len(values)} different whole numbers: are they codes of categories?"]
    remarks = [
        f"{times[values == code].sum()} rows hold {code}, far from all others: missing = [{code}]?"
        for code in CODES
        if times[values == code].sum() >= fewest and _stands_apart(code, values[values != code])
    ]
    if whole and len(values) == times.sum() > 20:
        remarks.append("every row has another whole number: is it an identifier, to be ignored?")
    return remarks


def _stands_apart(code: float, others: np.ndarray) -> bool:
    if len(others) < 2:
        return False
    if code < 0:
        return bool((others >= 0).all() or others.min() > code + 0.5 * np.ptp(others))
    if code == 0:
        return bool(others.min() >= 0.1 * np.median(others) > 0)
    return bool(others.max() < code / 1.5)


def _category(counted: Counter[Any], fewest: int) -> Guess:
    often = sorted(str(cell) for cell, count in counted.items() if count >= fewest)
    rare = len(counted) - len(often)
    if not often or len(counted) > MOST_CATEGORIES:
        subjects = len(counted) > 20 and min(counted.values()) > 1
        free = f"{len(counted)} different words: free text, or names?"
        return Guess({"kind": "ignore"}, [SUBJECTS.format(len(counted)) if subjects else free])
    keys = {"kind": "category", "categories": often}
    if not rare:
        return Guess(keys, [])
    return Guess({**keys, "unseen": "other"}, [f"{rare} words that fewer than {fewest} rows have are not written here"])
