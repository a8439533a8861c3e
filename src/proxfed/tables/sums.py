"""The one message of an organisation about its table: sums and counts for the preparation, and no row.

It contains only the statistics that the schema's preparation needs: count, mean and squared deviations of a number that
is scaled or imputed by its mean; a histogram for a median; counts for the proportion of yes and for the most frequent
category. Statistics of too few rows are withheld (disclosure.py); `withheld` lists them with the reasons.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from proxfed.errors import InputError, require
from proxfed.tables.column_kinds import LARGEST, Boolean, Category, Column, Date, Number
from proxfed.tables.disclosure import coarsen, reason_to_withhold, suppress_small
from proxfed.tables.table import Table
from proxfed.tables.views import View, ends, views
from proxfed.validation import STRICT, refuse_unless

Count = Annotated[int, Field(ge=0, le=10**12)]


class Part(BaseModel):
    """A part of a message."""

    model_config = STRICT


class Moments(Part):
    """The count and mean of the values of one feature, and the sum of squared deviations from the mean."""

    count: int = Field(ge=1, le=10**12)
    mean: float = Field(ge=-LARGEST, le=LARGEST)
    squares: float = Field(ge=0, le=1e12 * 4 * LARGEST**2)


class Histogram(Part):
    """A histogram over the agreed range and bins, with neighbouring bins merged."""

    last: list[Count]
    """The last bin of each cell."""
    counts: list[Count]

    @model_validator(mode="after")
    def _fits(self) -> Histogram:
        rising = all(a < b for a, b in zip(self.last, self.last[1:], strict=False))
        fits = rising and len(self.last) == len(self.counts) and sum(self.counts) > 0
        refuse_unless(fits, "the cells of a histogram do not fit together")
        return self


class Summary(BaseModel):
    """The message of one organisation."""

    model_config = STRICT

    organisation: str
    schema_digest: str
    """The digest of the schema of its table."""
    rows: Count | None
    """None: withheld."""
    moments: dict[str, Moments] = {}
    """By feature."""
    histograms: dict[str, Histogram] = {}
    """By feature."""
    counts: dict[str, dict[str, Count | None]] = {}
    """By column and category, or 'yes' and 'no' for a boolean or an indicator of gaps; None: withheld."""
    withheld: dict[str, str] = {}
    """By feature or column: the statistics that are not sent."""

    def encode(self) -> bytes:
        """The message as sent: JSON."""
        return self.model_dump_json().encode()

    @property
    def size(self) -> int:
        """The number of bytes sent."""
        return len(self.encode())

    def numbers(self) -> list[tuple[str, str, float]]:
        """Every number in it: (feature or column, statistic, number)."""
        listed: list[tuple[str, str, float]] = [] if self.rows is None else [("", "rows", self.rows)]
        for name, of in self.moments.items():
            listed += [(name, "count", of.count), (name, "mean", of.mean), (name, "squared deviations", of.squares)]
        for name, cells in self.histograms.items():
            listed += [
                (name, f"values up to bin {k}", count) for k, count in zip(cells.last, cells.counts, strict=True)
            ]
        for name, counts in self.counts.items():
            listed += [(name, f"rows with {what}", count) for what, count in counts.items() if count is not None]
        return listed


def decode(message: bytes) -> Summary:
    """A message received from another process."""
    try:
        return Summary.model_validate_json(message)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"]
        raise InputError(f"this is not a summary of a table: {where + ': ' if where else ''}{said}") from e


def summarise(table: Table) -> Summary:
    """The message of an organisation about its table."""
    schema, fewest = table.schema, table.schema.table.fewest
    require(len(table) > 0, f"{table.organisation}: its table has no rows")
    if len(table) < fewest:
        withheld = {"": f"everything: fewer than {fewest} rows"}
        return Summary(organisation=table.organisation, schema_digest=schema.digest, rows=None, withheld=withheld)
    parts = _Parts(fewest)
    dummies = schema.table.standardise_dummies
    for name, column in schema.inputs.items():
        values = table.columns[name]
        if dummies and column.indicator:
            parts.count(f"{name} missing", np.isnan(values).astype(np.float64), ["no", "yes"])
        if isinstance(column, Category):
            if dummies or column.impute == "mode":
                parts.count(name, values, list(column.names))
        elif isinstance(column, Boolean):
            if dummies or column.impute == "mean":
                parts.count(name, values, ["no", "yes"])
        else:
            shown = views(name, column)
            for feature, view in shown.items():
                parts.number(feature, column, values, view, len(shown))
    return Summary(
        organisation=table.organisation,
        schema_digest=schema.digest,
        rows=len(table),
        moments=parts.moments,
        histograms=parts.histograms,
        counts=parts.counts,
        withheld=parts.withheld,
    )


class _Parts:
    """The parts of a message under construction."""

    def __init__(self, fewest: int) -> None:
        self.fewest = fewest
        self.moments: dict[str, Moments] = {}
        self.histograms: dict[str, Histogram] = {}
        self.counts: dict[str, dict[str, int | None]] = {}
        self.withheld: dict[str, str] = {}

    def count(self, name: str, values: np.ndarray, categories: list[str]) -> None:
        there = values[~np.isnan(values)].astype(np.int64)
        found = np.bincount(there, minlength=len(categories)).tolist()
        found[int(np.argmax(found))] += self._hidden_gaps(name, len(values) - len(there))
        self.counts[name] = suppress_small(dict(zip(categories, found, strict=True)), self.fewest)
        hidden = [c for c, count in self.counts[name].items() if count is None]
        if hidden:
            said = [self.withheld[name]] if name in self.withheld else []
            self.withheld[name] = "; ".join([*said, f"how many rows have {', '.join(hidden)}"])

    def _hidden_gaps(self, name: str, gaps: int) -> int:
        """The number of gaps if it is too small to be sent; they then count as the most frequent value."""
        if not 0 < gaps < self.fewest:
            return 0
        self.withheld[name] = f"how many are missing: fewer than {self.fewest}"
        return gaps

    def number(self, feature: str, column: Column, values: np.ndarray, view: View, together: int = 1) -> None:
        """`together`: the number of features sent for the column. Sums of many powers reveal the values of few rows."""
        there = view(values[~np.isnan(values)])
        if reason := reason_to_withhold(there, self.fewest) or _too_few(there, self.fewest * together):
            self.withheld[feature] = f"everything: {reason}"
            return
        gaps = self._hidden_gaps(feature, len(values) - len(there))
        assert isinstance(column, (Number, Date))
        if column.scale == "standard" or column.impute == "mean":
            mean = math.fsum(there) / len(there)
            squares = math.fsum((there - mean) ** 2) * (1 + gaps / len(there))
            self.moments[feature] = Moments(count=len(there) + gaps, mean=mean, squares=squares)
        if column.impute == "median":
            assert isinstance(column, Number)
            counts = np.histogram(np.clip(there, *ends(column)), column.bins, ends(column))[0]
            counts[counts.argmax()] += gaps
            last, cells = coarsen(counts, self.fewest)
            self.histograms[feature] = Histogram(last=last, counts=cells)


def _too_few(values: np.ndarray, fewest: int) -> str:
    return f"fewer than {fewest} values" if len(values) < fewest else ""
