"""Kinds of columns (numbers, categories, yes or no, dates) and their preparation for a model.

[columns.age]     kind = "number"     unit = "years"    range = [0, 120]
[columns.chol]    kind = "number"     missing = [0]     impute = "median"      range = [0, 700]   indicator = true
[columns.bmi]     kind = "number"     polynomial = 2                 or knots = [20, 25, 30, 35]: a cubic spline
[columns.hour]    kind = "number"     period = 24                    sine and cosine: 23 is next to 0
[columns.income]  kind = "number"     currency = "$"    thousands = ","        transform = "log1p"
[columns.pain]    kind = "category"   categories = {typical = 1, other = [2, 3, 4]}   unseen = "refuse"
[columns.smokes]  kind = "boolean"    yes = ["ja"]      no = ["nein"]
[columns.visit]   kind = "date"       format = "%d/%m/%Y"    origin = 2000-01-01    parts = ["days", "month"]
[columns.id]      kind = "ignore"
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from proxfed.validation import STRICT, refuse_unless

Real = Annotated[float, Field(allow_inf_nan=False)]
Word = str | int | Real
"""A value in a file; 1, 1.0 and "1" are the same word."""
Words = Word | list[Word]
LARGEST = 1e100
"""Larger numbers are refused: the sum of their squares could overflow."""
Interval = Annotated[list[Real], Field(min_length=2, max_length=2)]


def canonical(word: Word) -> str:
    """The normal form of a word: without spaces around it, and whole numbers without a trailing .0."""
    text = ("true" if word else "false") if isinstance(word, bool) else str(word).strip()
    whole, point, zeros = text.partition(".")
    plain = whole.removeprefix("-")
    digits = plain.isascii() and plain.isdecimal() and (plain == "0" or plain[0] != "0")
    return whole if point and digits and not zeros.strip("0") else text


def words_of(words: Words) -> list[str]:
    """One or several words, in normal form."""
    return [canonical(word) for word in (words if isinstance(words, list) else [words])]


Naming = list[Word] | dict[str, Words]
"""Categories or classes in order: a list, or names with the words for each."""


def numbered(given: Naming) -> dict[str, tuple[str, ...]]:
    """Names in order, each with its words; in a list, each name is its own word."""
    if isinstance(given, dict):
        return {name: tuple(words_of(words)) for name, words in given.items()}
    return {name: (name,) for name in words_of(given)}


def check_naming(what: str, given: Naming, fewest: int) -> None:
    """Requires enough names, and no word that belongs to two of them."""
    refuse_unless(len(given) >= fewest, f"{what} must name at least {fewest}")
    groups = given.values() if isinstance(given, dict) else given
    counted = Counter(word for words in groups for word in words_of(words))
    twice = next((word for word, count in counted.items() if count > 1), None)
    refuse_unless(twice is None, f"{what}: {twice!r} appears twice")


class Part(BaseModel):
    """A part of the file."""

    model_config = STRICT


class Notation(Part):
    """How numbers are written."""

    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    """The separator of groups of three digits, if any."""
    currency: str = ""
    """A sign before or after the number that is ignored, such as "$" or "%"; (5) is then -5."""

    @model_validator(mode="after")
    def _different(self) -> Self:
        refuse_unless(
            self.decimal != self.thousands, f"decimal and thousands = {self.thousands!r} must be different signs"
        )
        return self


class Base(Part):
    """The keys of all columns."""

    about: str = ""
    unit: str = ""
    missing: list[Word] = []
    """Values of this column that mean missing, besides those of [table]."""
    optional: bool = False
    """Whether a table may lack this column; all its values are then missing."""
    indicator: bool = False
    """Whether to add a feature that is 1 if the value was missing."""


class Number(Base, Notation):
    """A number, which is clipped, transformed, imputed and scaled, in this order."""

    kind: Literal["number"]
    range: Interval | None = None
    """Values outside are refused; the median is searched within."""
    clip: Interval | None = None
    """Values outside are moved to these bounds."""
    transform: Literal["none", "log", "log1p"] = "none"
    polynomial: int = Field(default=1, ge=1, le=5)
    """The degree of a polynomial; each power is a feature."""
    knots: Annotated[list[Real], Field(min_length=3, max_length=9)] | None = None
    """A natural (restricted) cubic spline with these knots: the number itself, and two features fewer than knots."""
    period: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The period of a cyclic number: features are its sine and cosine."""
    impute: Literal["mean", "median", "refuse"] = "mean"
    scale: Literal["standard", "none"] = "standard"
    bins: int = Field(default=64, ge=2, le=4096)
    """Bins of the histogram for the median."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for key in ("range", "clip"):
            ends = getattr(self, key)
            refuse_unless(ends is None or ends[0] < ends[1], f"{key} = {ends} must go from a lower to a higher number")
        refuse_unless(
            self.impute != "median" or self.range is not None or self.clip is not None,
            "impute = 'median' needs range = [low, high] or clip = [low, high], within which the median is searched",
        )
        shapes = [key for key in ("polynomial", "knots", "period") if getattr(self, key) not in (1, None)]
        refuse_unless(len(shapes) < 2, f"{' and '.join(shapes)} exclude each other: give one of them")
        refuse_unless(
            not shapes or self.impute != "median", f"impute = 'median' does not go with {''.join(shapes)}: take 'mean'"
        )
        rising = self.knots is None or all(a < b for a, b in zip(self.knots, self.knots[1:], strict=False))
        refuse_unless(rising, f"knots = {self.knots} must increase")
        ends = self.clip or self.range
        lowest = {"log": 0.0, "log1p": -1.0}.get(self.transform)
        refuse_unless(
            lowest is None or ends is None or ends[0] > lowest or (self.clip is None and self.impute != "median"),
            f"transform = {self.transform!r} needs values above {lowest}, but they may be {ends and ends[0]}",
        )
        return self


class Boolean(Base):
    """Yes or no: a feature that is 1 or 0."""

    kind: Literal["boolean"]
    yes: list[Word] = ["1", "yes", "y", "true", "t"]
    no: list[Word] = ["0", "no", "n", "false", "f"]
    """Case-insensitive, as are the words of `yes`."""
    impute: Literal["mean", "refuse"] = "mean"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_naming("yes and no", {"yes": self.yes, "no": self.no}, 2)
        return self


class Category(Base):
    """One of the agreed categories, with a 0/1 feature for each."""

    kind: Literal["category"]
    categories: Naming
    unseen: Literal["refuse", "other", "missing"] = "refuse"
    """How to treat any other word; "other" adds a category of that name."""
    reference: str = ""
    """The reference category: it has no feature, and the others are compared with it."""
    impute: Literal["zeros", "mode", "refuse"] = "zeros"
    """How to impute a missing value: zeros in all features, or the most frequent category."""

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The categories in their order, each with its words."""
        return numbered(self.categories) | ({"other": ()} if self.unseen == "other" else {})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = numbered(self.categories)
        check_naming("categories", self.categories, 1)
        refuse_unless(
            self.unseen != "other" or "other" not in names,
            "unseen = 'other' adds a category 'other', but categories has one of this name",
        )
        known = ", ".join(names)
        refuse_unless(
            self.reference in ("", *self.names), f"reference = {self.reference!r} is not one of the categories: {known}"
        )
        return self


class Date(Base):
    """A date: days since an agreed one, or parts of it."""

    kind: Literal["date"]
    format: str | list[str] = "%Y-%m-%d"
    """As in Python's strptime; the first that fits."""
    origin: date = date(2000, 1, 1)
    range: Annotated[list[date], Field(min_length=2, max_length=2)] | None = None
    """Dates outside are refused; it also gives the century of two-digit years."""
    parts: list[Literal["days", "year", "month", "weekday"]] = Field(default=["days"], min_length=1)
    impute: Literal["mean", "refuse"] = "mean"
    scale: Literal["standard", "none"] = "standard"

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, value: str | list[str]) -> str | list[str]:
        if not value:
            raise ValueError("it must be one format or several, such as '%d/%m/%Y'")
        for one in [value] if isinstance(value, str) else value:
            try:
                date(2001, 2, 3).strftime(one)
                written = "%" in one
            except ValueError:
                written = False
            if not written:
                raise ValueError("it must be made of day, month and year, such as '%d/%m/%Y'")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ends = self.range
        order = ends is None or ends[0] < ends[1]
        refuse_unless(order, f"range = {[*map(str, ends or ())]} must go from an earlier to a later date")
        refuse_unless(len(set(self.parts)) == len(self.parts), f"parts = {self.parts}: one of them appears twice")
        return self


class Ignore(Part):
    """A column that is ignored."""

    kind: Literal["ignore"]
    about: str = ""
    optional: bool = True


Input = Number | Boolean | Category | Date
"""A column with features."""
Column = Input | Ignore
KINDS: dict[str, type[Column]] = {
    "number": Number,
    "boolean": Boolean,
    "category": Category,
    "date": Date,
    "ignore": Ignore,
}


AnyColumn = Annotated[Column, Field(discriminator="kind")]
