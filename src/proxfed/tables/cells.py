"""From cells of files to numbers: NaN is missing, a category is its index, a date is days since its origin.

A cell that does not fit is refused with its position and the expected value. Equal cells are parsed once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from proxfed.errors import InputError
from proxfed.tables.column_kinds import (
    LARGEST,
    Boolean,
    Category,
    Column,
    Date,
    Ignore,
    Notation,
    Number,
    Word,
    canonical,
    words_of,
)

Where = Callable[[int], str]
"""The name of a row of this column in messages: 'clinic.csv, column 'age', row 7'."""
Read = Callable[[Any], float]


class Misfit(Exception):
    """A cell does not fit; the text describes the expected value."""


def parse(column: Column, cells: np.ndarray, where: Where, missing: Iterable[Word] = ()) -> np.ndarray:
    """(N,) float64. `missing` are the words that mean missing in every column of the table."""
    if isinstance(column, Ignore):
        raise TypeError("a column that is ignored has no numbers")
    gaps = [*missing, *column.missing]
    if isinstance(column, Number) and cells.dtype.kind in "iuf":
        values = cells.astype(np.float64)
        values[np.isin(values, number_codes(gaps))] = np.nan
    else:
        values = _each(_reader(column, gaps), cells, where)
    for holds, expected in _conditions(column):
        bad = ~holds(values)
        if column.impute != "refuse":
            bad &= ~np.isnan(values)
        if bad.any():
            raise _refusal(cells, int(bad.argmax()), where, expected)
    return values


def misfits(column: Column, cells: np.ndarray, where: Where, missing: Iterable[Word] = ()) -> dict[int, str]:
    """The message with which `parse` refuses the cell of each row; '' if it accepts the cell."""
    try:
        parse(column, cells, where, missing)
        return {}
    except InputError:
        pass
    missing, found = list(missing), dict[int, str]()
    fine: set[tuple[type, Any]] = set()
    for row, cell in enumerate(cells.tolist()):
        if (type(cell), cell) in fine:
            continue
        try:
            parse(column, cells[row : row + 1], lambda _, row=row: where(row), missing)  # type: ignore[misc]
            fine.add((type(cell), cell))
        except InputError as e:
            found[row] = str(e)
    return found


def is_missing(cell: Any, gaps: set[str]) -> bool:
    """Whether it has no value, or one of the words that mean missing."""
    return cell is None or cell != cell or (not isinstance(cell, (date, bool)) and canonical(cell) in gaps)


def _each(read: Read, cells: np.ndarray, where: Where) -> np.ndarray:
    known: dict[tuple[type, Any], float] = {}
    values = np.empty(len(cells))
    for row, cell in enumerate(cells.tolist()):
        key = (type(cell), cell)  # 1, 1.0 and True are equal, but not the same
        if key not in known:
            try:
                known[key] = read(cell)
            except Misfit as misfit:
                raise _refusal(cells, row, where, str(misfit)) from None
        values[row] = known[key]
    return values


def _refusal(cells: np.ndarray, row: int, where: Where, expected: str) -> InputError:
    cell = cells[row]
    if cell is None or cell != cell:
        held = "is empty"
    else:
        shown = str(cell)
        what = "the formula " if shown.lstrip().startswith("=") else ""
        held = f"holds {what}{shown[:40]!r}"
    return InputError(f"{where(row)} {held}, but {expected} was expected")


# ---- one reader for each kind ---------------------------------------------------------------------------------------


def _reader(column: Number | Boolean | Category | Date, gaps: list[Word]) -> Read:
    words = set(words_of(gaps))
    read = {"number": number_reader, "boolean": _boolean, "category": _category, "date": _date}[column.kind](column)  # type: ignore[operator]
    codes = number_codes(gaps) if isinstance(column, Number) else []

    def one(cell: Any) -> float:
        if is_missing(cell, words):
            return math.nan
        value = read(cell)
        return math.nan if value in codes else value

    return one


def number_codes(gaps: Iterable[Word]) -> list[float]:
    """Those of the words that are numbers: -9 is also -9.00."""
    return [float(word) for word in words_of(list(gaps)) if PLAIN.fullmatch(word)]


def _pattern(form: Notation) -> re.Pattern[str]:
    point, between = re.escape(form.decimal), re.escape(form.thousands)
    whole = rf"(?:[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|[0-9]+)" if between else "[0-9]+"
    return re.compile(rf"[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")


PLAIN = _pattern(Notation())


def number_reader(column: Number) -> Read:
    """The number of a cell that is not missing, in a column of numbers."""
    pattern, expected = _pattern(column), _expected_number(column)

    def read(cell: Any) -> float:
        if isinstance(cell, (bool, date)):
            raise Misfit(expected)
        if isinstance(cell, (int, float, Decimal)):
            try:
                return float(cell)
            except OverflowError:
                raise Misfit(expected) from None
        text, sign = _without_currency(str(cell).strip(), column.currency)
        if column.thousands == " ":
            text = text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ")
        if not pattern.fullmatch(text):
            raise Misfit(expected)
        if column.thousands:
            text = text.replace(column.thousands, "")
        return sign * float(text.replace(column.decimal, "."))

    return read


def _without_currency(text: str, currency: str) -> tuple[str, float]:
    """The number without its currency sign, and -1 if it is in brackets, which mark negative numbers in accounts."""
    if not currency:
        return text, 1.0
    owed = text.startswith("(") and text.endswith(")")
    text = text[1:-1].strip() if owed else text
    minus = text[:1] if text[:1] in ("-", "+") and text[1:].lstrip().startswith(currency) else ""
    text = text[len(minus) :].strip()
    text = text.removeprefix(currency) if text.startswith(currency) else text.removesuffix(currency)
    return minus + text.strip(), -1.0 if owed else 1.0


def _expected_number(column: Number) -> str:
    inside = "" if column.range is None else " from {:g} to {:g}".format(*column.range)
    sign = f" in {column.currency}" if column.currency else ""
    written = {".": "", ",": " with a decimal comma"}[column.decimal]
    return f"a number{inside}{sign}{written}" + (f" ({column.unit})" if column.unit else "")


def _boolean(column: Boolean) -> Read:
    values = {word.casefold(): 1.0 for word in words_of(column.yes)}
    values |= {word.casefold(): 0.0 for word in words_of(column.no)}
    expected = f"yes ({', '.join(words_of(column.yes))}) or no ({', '.join(words_of(column.no))})"

    def read(cell: Any) -> float:
        if isinstance(cell, bool):
            return float(cell)
        word = canonical(cell).casefold()
        if word not in values:
            raise Misfit(expected)
        return values[word]

    return read


def _category(column: Category) -> Read:
    names = column.names
    places = {word: float(place) for place, words in enumerate(names.values()) for word in words}
    known = [word for words in names.values() for word in words]
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    instead = {"other": float(len(names) - 1), "missing": math.nan}

    def read(cell: Any) -> float:
        word = canonical(cell)
        if word in places:
            return places[word]
        if column.unseen == "refuse":
            raise Misfit(f"one of {shown}")
        return instead[column.unseen]

    return read


def _date(column: Date) -> Read:
    formats = [column.format] if isinstance(column.format, str) else column.format
    inside = "" if column.range is None else f" from {column.range[0]} to {column.range[1]}"
    expected = f"a date like {date(2001, 12, 31).strftime(formats[0])}{inside}"

    def read(cell: Any) -> float:
        day = day_of(cell, formats, column, expected)
        if column.range is not None and not column.range[0] <= day <= column.range[1]:
            raise Misfit(expected)
        return float((day - column.origin).days)

    return read


def day_of(cell: Any, formats: list[str], column: Date, expected: str) -> date:
    """The date in a cell, by the first format that fits."""
    if isinstance(cell, datetime):
        return cell.date()
    if isinstance(cell, date):
        return cell
    for form in formats:
        try:
            day = datetime.strptime(str(cell).strip(), form).date()
        except (ValueError, OverflowError):
            continue
        return _century(day, column) if "%y" in form else day
    raise Misfit(expected)


def _century(day: date, column: Date) -> date:
    """A two-digit year is in the century of the column's range, if it has one."""
    if column.range is None:
        return day
    for years in (0, -100, 100):
        try:
            other = day.replace(year=day.year + years)
        except ValueError:  # the 29th of February
            continue
        if column.range[0] <= other <= column.range[1]:
            return other
    return day


# ---- conditions on numbers -------------------------------------------------------------------------------------------

Condition = tuple[Callable[[np.ndarray], np.ndarray], str]


def _conditions(column: Column) -> list[Condition]:
    """Conditions on every value; if none may be missing, the comparison with NaN fails."""
    conditions: list[Condition] = []
    if isinstance(column, Number):
        expected = _expected_number(column)
        conditions.append((lambda v: np.abs(v) <= LARGEST, f"{expected} up to {LARGEST:g}"))
        if column.range is not None:
            low, high = column.range
            conditions.append((lambda v: (low <= v) & (v <= high), expected))
        if column.transform != "none" and column.clip is None:
            bound = 0.0 if column.transform == "log" else -1.0
            conditions.append(
                (lambda v: v > bound, f"a number above {bound:g}, as transform = {column.transform!r} needs,")
            )
    elif not isinstance(column, Ignore):
        conditions.append((lambda v: v == v, "a value"))
    return conditions
