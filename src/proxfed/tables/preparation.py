"""From messages to features: parameters are merged once, stored with the model, and applied everywhere.

messages    = [summarise(table) for table in tables]        each organisation, from its own rows
preparation = merge(schema, messages)                       the coordinator
preparation.apply(table)                                    each organisation, and at prediction: (N, p)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from proxfed.errors import InputError, require
from proxfed.tables.column_kinds import Category, Real
from proxfed.tables.interactions import Product, multiplied, products, unscaled
from proxfed.tables.schema import Schema, from_plain
from proxfed.tables.table import Table
from proxfed.tables.views import views
from proxfed.validation import STRICT


class Feature(NamedTuple):
    """A column of the design matrix."""

    name: str
    """'age', 'log(income)', 'pain=typical', 'chol missing'."""
    column: str
    """The column of the table that it is computed from."""


class Parameters(BaseModel):
    """z = (x - centre) / scale, and a missing x becomes `impute`; None: not known, so no x may be missing."""

    model_config = STRICT

    impute: Real | None = None
    centre: Real = 0.0
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class Stored(BaseModel):
    """A preparation in a file."""

    model_config = STRICT

    form: str
    table: dict[str, Any]
    parameters: dict[str, Parameters]
    modes: dict[str, str]
    organisations: list[str]
    left_out: list[str]
    notes: list[str]


FORM = "proxfed preparation 1"


@dataclass(frozen=True, eq=False)
class Preparation:
    """The preparation of every table for a model."""

    schema: Schema
    """The schema of the tables."""
    parameters: dict[str, Parameters]
    """By feature, for numbers, dates and booleans, and for other 0/1 features if they are standardised."""
    modes: dict[str, str]
    """By column: the category that replaces a missing one."""
    organisations: tuple[str, ...]
    """The organisations whose messages it was computed from."""
    left_out: tuple[str, ...] = ()
    """Features left out (if the schema says so) because too little was sent to scale them."""
    notes: tuple[str, ...] = ()
    """Consequences of withheld summaries; the messages say what was withheld."""

    def __post_init__(self) -> None:
        self.features  # noqa: B018  fails early if they are wrong

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """The columns of the design matrix, in order."""
        found: list[Feature] = []
        left_out = frozenset(self.left_out)
        for name, column in self.schema.inputs.items():
            if isinstance(column, Category):
                found += [Feature(f"{name}={c}", name) for c in column.names if c != column.reference]
            else:
                found += [Feature(feature, name) for feature in views(name, column) if feature not in left_out]
            if column.indicator:
                found.append(Feature(f"{name} missing", name))
        names, columns = [f.name for f in found], [f.column for f in found]
        more = products(self.schema.table.interactions, self.schema.inputs, names, columns)
        found += [Feature(each.name, each.column) for each in more]
        twice = next((name for name, count in Counter(f.name for f in found).items() if count > 1), None)
        require(twice is None, f"two features are called {twice!r}: rename one of the columns")
        return tuple(found)

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The last features: products of two others."""
        plain = [feature for feature in self.features if feature.column in self.schema.inputs]
        names, columns = [f.name for f in plain], [f.column for f in plain]
        return tuple(products(self.schema.table.interactions, self.schema.inputs, names, columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def groups(self) -> tuple[int, ...]:
        """(p,) features with the same number come from the same column: the labels of a GroupLasso."""
        columns = dict.fromkeys([*self.schema.inputs, *(each.column for each in self.products)])
        places = {name: k for k, name in enumerate(columns)}
        return tuple(places[feature.column] for feature in self.features)

    def apply(self, table: Table, scaled: bool = True) -> np.ndarray:
        """(N, p) the features of a table; not `scaled`: in the units of its columns, as in `original_scale`."""
        same = table.schema.digest == self.schema.digest
        require(same, f"{table.organisation}: its table was read by another schema than the preparation's")
        parts: list[np.ndarray] = []
        left_out = frozenset(self.left_out)
        for name, column in self.schema.inputs.items():
            values = table.columns[name]
            if isinstance(column, Category):
                parts += self._one_hot(name, column, values, scaled)
            else:
                for feature, view in views(name, column).items():
                    if feature not in left_out:
                        parts.append(self._number(table, feature, name, view(values), scaled))
            if column.indicator:
                parts.append(self._dummy(f"{name} missing", np.isnan(values), scaled))
        return multiplied(np.column_stack(parts), self.products)

    def filled(self, table: Table) -> list[np.ndarray]:
        """(N,) the imputed columns of a table; a number once for each of its features."""
        found = []
        for name, column in self.schema.inputs.items():
            values = table.columns[name]
            if isinstance(column, Category):
                values_of = [float([*column.names].index(self.modes[name]))] if column.impute == "mode" else [np.nan]
            else:
                known = [self.parameters.get(feature, Parameters()).impute for feature in views(name, column)]
                values_of = [np.nan if value is None else value for value in known]
            found += [np.where(np.isnan(values), value, values) for value in values_of]
        return found

    def _one_hot(self, name: str, column: Category, values: np.ndarray, scaled: bool) -> list[np.ndarray]:
        names = list(column.names)
        if column.impute == "mode":
            values = np.where(np.isnan(values), names.index(self.modes[name]), values)
        there = {c: values == k for k, c in enumerate(names) if c != column.reference}
        return [self._dummy(f"{name}={c}", is_c, scaled) for c, is_c in there.items()]

    def _dummy(self, feature: str, there: np.ndarray, scaled: bool) -> np.ndarray:
        """0/1 features, standardised if the schema says so."""
        of = self.parameters.get(feature)
        plain = there.astype(np.float64)
        return plain if of is None or not scaled else (plain - of.centre) / of.scale

    def _number(self, table: Table, feature: str, name: str, values: np.ndarray, scaled: bool) -> np.ndarray:
        of = self.parameters[feature]
        gaps = np.isnan(values)
        if gaps.any():
            if of.impute is None:
                raise InputError(
                    f"{table.organisation}, column {name!r}: row {gaps.argmax() + 1} is missing, and no organisation "
                    "sent enough to impute it"
                )
            values = np.where(gaps, of.impute, values)
        return (values - of.centre) / of.scale if scaled else values

    def original_scale(self, coef: Any, intercept: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """(coefficients, intercept) in the units of the columns, with the same predictions.

        coef is (p,) or (outputs, p), intercept a number or (outputs,). `apply(table, scaled=False) @ coef + intercept`
        then gives the same predictions as the scaled features. Coefficients of clipped or log-transformed columns are
        for the transformed values; with interactions, a column's own coefficient is its effect at 0 of the other one.
        """
        coef = np.asarray(coef, np.float64)
        require(
            coef.shape[-1:] == (len(self.features),),
            f"coef has shape {coef.shape}, but there are {len(self.features)} features",
        )
        plain = self.names[: len(self.names) - len(self.products)]
        known = [self.parameters.get(name, Parameters()) for name in plain]
        centre, scale = (np.array([getattr(one, field) for one in known]) for field in ("centre", "scale"))
        return unscaled(coef, np.asarray(intercept, np.float64), centre, scale, self.products)

    def plain(self) -> dict[str, Any]:
        """As plain data, to be stored with the model."""
        stored = Stored(
            form=FORM,
            table=self.schema.plain(),
            parameters=self.parameters,
            modes=self.modes,
            organisations=list(self.organisations),
            left_out=list(self.left_out),
            notes=list(self.notes),
        )
        return stored.model_dump(mode="json")

    @classmethod
    def from_plain(cls, plain: Any, where: str = "preparation") -> Preparation:
        """The inverse of `plain`."""
        try:
            stored = Stored.model_validate(plain)
        except ValidationError as e:
            first = e.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"{where}: is not a stored preparation ({place}: {first['msg']})") from e
        require(stored.form == FORM, f"{where}: form = {stored.form!r} is not {FORM!r}")
        schema = from_plain(stored.table, where)
        more = (tuple(part) for part in (stored.organisations, stored.left_out, stored.notes))
        made = cls(schema, stored.parameters, stored.modes, *more)
        there = {*made.parameters, *made.left_out}
        for name, column in schema.inputs.items():
            lacks = [feature for feature in views(name, column) if feature not in there]
            lacks += [name] if isinstance(column, Category) and made.modes.get(name, "") not in column.names else []
            lacks = [] if isinstance(column, Category) and column.impute != "mode" else lacks
            require(not lacks, f"{where}: has no parameters of {lacks[:1]}")
        return made
