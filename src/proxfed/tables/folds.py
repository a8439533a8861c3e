"""Rows that belong together: folds hold out all rows of a patient, or of a stretch of time, or none of them.

[folds]
group = "patient"                          rows with the same word; ["year", "month"]: the same words in both
block = "day"      length = 28             or rows of the same 28 days, or of the same 28 units of a number

Rows of one patient resemble each other, and so do neighbouring hours. If a fold held out some of them only, the model
would be judged on rows that it has nearly seen. A unit lies within one organisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from proxfed.errors import InputError
from proxfed.tables.cells import is_missing, parse
from proxfed.tables.column_kinds import Date, Ignore, Number, Word, canonical, words_of
from proxfed.validation import STRICT, refuse_unless

BETWEEN = "\x1f"
"""Stands between the words of several columns."""


class Folds(BaseModel):
    """Which rows are held out together."""

    model_config = STRICT

    group: str | list[str] = []
    """Columns whose words name the unit that a row belongs to."""
    block: str = ""
    """A column of dates or numbers, which is cut into stretches ..."""
    length: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """... of this length: days, or units of the number."""
    format: str = "%Y-%m-%d"
    """How dates are written, if `columns` does not say it; "": the column holds numbers."""

    @property
    def groups(self) -> list[str]:
        """The columns of `group`."""
        return [self.group] if isinstance(self.group, str) else self.group

    @property
    def columns(self) -> tuple[str, ...]:
        """All that must be there."""
        return (*self.groups, *([self.block] if self.block else []))

    @property
    def about(self) -> str:
        """What a unit is, for people; '' if every row is its own."""
        if self.block:
            return f"{self.length:g} {'units' if self.format == '' else 'days'} of {self.block}"
        return " and ".join(self.groups)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        one = f"group = {self.group!r} and block = {self.block!r} exclude each other: give one of them"
        refuse_unless(not (self.groups and self.block), one)
        both = f"block = {self.block!r} and length = {self.length} go together: the column, and how long a stretch is"
        refuse_unless(bool(self.block) == (self.length is not None), both)
        return self


def units(
    folds: Folds,
    columns: Mapping[str, Any],
    cells: Callable[[str], np.ndarray],
    place: Callable[[str, int], str],
    missing: Iterable[Word],
) -> np.ndarray | None:
    """(N,) words: rows with the same one are held out together. None: every row stands for itself.

    `columns` are those of the schema, `cells` gives the cells of a column, `place` says where one of them is.
    """
    if not folds.columns:
        return None
    gaps = set(words_of(list(missing)))
    for name in folds.columns:
        own = gaps | set(words_of(getattr(columns.get(name), "missing", [])))
        row = next((k for k, cell in enumerate(cells(name).tolist()) if is_missing(cell, own)), None)
        if row is not None:
            raise InputError(f"{place(name, row)} is missing, so [folds] does not know with which rows it belongs")
    if folds.block:
        return np.array([f"{k:.0f}" for k in np.floor(_along(folds, columns, cells, place) / (folds.length or 1))])
    words = zip(*([canonical(cell) for cell in cells(name).tolist()] for name in folds.groups), strict=True)
    return np.array([BETWEEN.join(each) for each in words])


def _along(
    folds: Folds, columns: Mapping[str, Any], cells: Callable[[str], np.ndarray], place: Callable[[str, int], str]
) -> np.ndarray:
    """(N,) days, or the number."""
    name = folds.block
    column = columns.get(name)
    if column is None or isinstance(column, Ignore):
        plain = Number(kind="number", impute="refuse")
        column = plain if folds.format == "" else Date(kind="date", format=folds.format, impute="refuse")
    refused = f"folds.block = {name!r} is a column of kind {column.kind!r}, and must be a date or a number"
    if not isinstance(column, (Date, Number)):
        raise InputError(refused)
    return parse(column, cells(name), lambda row: place(name, row))


def together(units: np.ndarray, strata: np.ndarray, draw: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """(N,) the fold of every row: that which `draw(names, strata)` gives its unit.

    A unit is of the highest stratum that one of its rows is of: a patient is a case if one of the visits is.
    """
    names, which = np.unique(units, return_inverse=True)
    highest = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(highest, which, strata)
    return draw(names, highest)[which]
