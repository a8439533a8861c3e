"""Units of rows: a fold holds out all rows of a patient, or of a stretch of time, or none of them.

[folds]
group = "patient"                          rows with the same word; ["year", "month"]: the same words in both
block = "day"      length = 28             or rows of the same 28 days, or of the same 28 units of a number

Rows of one patient are correlated, and so are neighbouring hours. If a fold held out only some of them, the score would
be optimistic, because the model was trained on similar rows. A unit lies within one organisation.
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
"""The separator between the words of several columns."""


class Folds(BaseModel):
    """Which rows are held out together."""

    model_config = STRICT

    group: str | list[str] = []
    """Columns that name the unit of a row."""
    block: str = ""
    """A column of dates or numbers, which is divided into stretches ..."""
    length: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """... of this length: days, or units of the number."""
    format: str = "%Y-%m-%d"
    """The format of dates, if `columns` does not give it; "": the column holds numbers."""

    @property
    def groups(self) -> list[str]:
        """The columns of `group`."""
        return [self.group] if isinstance(self.group, str) else self.group

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are required."""
        return (*self.groups, *([self.block] if self.block else []))

    @property
    def about(self) -> str:
        """A unit in words, for people; '' if every row is its own unit."""
        if self.block:
            return f"{self.length:g} {'units' if self.format == '' else 'days'} of {self.block}"
        return " and ".join(self.groups)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        one = f"group = {self.group!r} and block = {self.block!r} exclude each other: give one of them"
        refuse_unless(not (self.groups and self.block), one)
        both = f"block = {self.block!r} and length = {self.length} go together: the column, and the length of a stretch"
        refuse_unless(bool(self.block) == (self.length is not None), both)
        return self


def units(
    folds: Folds,
    columns: Mapping[str, Any],
    cells: Callable[[str], np.ndarray],
    place: Callable[[str, int], str],
    missing: Iterable[Word],
) -> np.ndarray | None:
    """(N,) words: rows with the same word are held out together. None: every row is its own unit.

    `columns` are the schema's, `cells` returns the cells of a column, `place` the position of a cell in messages.
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
    """(N,) days, or the numbers."""
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
    """(N,) the fold of every row: the one that `draw(names, strata)` gives its unit.

    The stratum of a unit is the highest of its rows: a patient is a case if one of the visits is.
    """
    names, which = np.unique(units, return_inverse=True)
    highest = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(highest, which, strata)
    return draw(names, highest)[which]
