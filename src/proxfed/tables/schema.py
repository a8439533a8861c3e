"""The schema that participants agree on: their columns, the target, and the rules of disclosure.

[source]          files = "clinics/*.csv"      location of this participant's rows; not part of the agreement
[table]           missing = ["", "?"]          fewest = 5
[target]          column = "outcome"           classes = ["well", "ill"]
[columns.age]     kind = "number"              ... (columns.py)
[folds]           group = "patient"            rows that are held out together (folds.py)
[others]          kind = "ignore"              every column that is not named; without it they are refused
[model]           penalty = "l1"               ... (fit/settings.py)
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from proxfed.errors import InputError, nearest
from proxfed.registry import read_toml
from proxfed.tables.column_kinds import (
    KINDS,
    AnyColumn,
    Ignore,
    Input,
    Naming,
    Notation,
    Word,
    Words,
    check_naming,
    numbered,
)
from proxfed.tables.folds import Folds
from proxfed.validation import SENTENCE, STRICT, keys_of, refuse_unless, sentence


class Section(BaseModel):
    """A part of the file."""

    model_config = STRICT


class Join(Section):
    """Another file with columns for the same rows, joined by a common column."""

    file: str
    on: str
    unmatched: Literal["refuse", "drop"] = "refuse"
    """How to treat rows that the other file does not have."""


class Chosen(Section):
    """Rows in which a column holds one of these words."""

    column: str
    words: Annotated[list[Word], Field(min_length=1)]


class Source(Section):
    """The location and format of the rows. Every participant has its own; it is not part of the agreement."""

    files: str | list[str] | dict[str, str] = []
    """One or several files, with wildcards; or a file per organisation."""
    folder: str = ""
    """Whether files are in the data directory; otherwise they are beside the schema."""
    organisation: str = ""
    """The column that names the organisation; without one each file is an organisation, named like the file."""
    organisations: dict[str, Words] = {}
    """Names, each with its words in that column; other words are refused."""
    names: list[str] | None = None
    """Names of the columns, if the files have no header."""
    separator: str = ","
    encoding: str = "utf-8"
    matrix: str = ""
    """In an .npz file: the array (rows, columns) of numbers ..."""
    matrix_names: str = ""
    """... and the array with the names of its columns."""
    join: list[Join] = []
    drop: list[str] = []
    """Rows without a value in one of these columns (or `organisation`) are left out; otherwise they are refused."""
    smallest: int = Field(default=1, ge=1)
    """Organisations with fewer rows are left out."""
    test: Chosen | None = None
    """Rows held out for testing."""

    @field_validator("separator")
    @classmethod
    def _one_sign(cls, value: str) -> str:
        if len(value) != 1 or value in '"\r\n\0' or not value.isascii():
            raise ValueError("it must be one sign, such as ',' or ';'")
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            codec = codecs.lookup(value)
            "a".encode(value)
        except (LookupError, UnicodeError, ValueError, TypeError) as e:
            raise ValueError("it is not the name of an encoding, such as 'utf-8' or 'latin-1'") from e
        return codec.name

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.organisations:
            refuse_unless(self.organisation != "", "organisations needs organisation, the column that names them")
            check_naming("organisations", dict(self.organisations), 1)
        by_name = isinstance(self.files, dict) and self.organisation != ""
        named = f"files name the organisations already, so organisation = {self.organisation!r} must not be given"
        refuse_unless(not by_name, named)
        given = f"matrix = {self.matrix!r} and matrix_names = {self.matrix_names!r}"
        both = bool(self.matrix) == bool(self.matrix_names)
        refuse_unless(both, f"{given} go together: the array of numbers, and that of the names of its columns")
        return self


class Rules(Section):
    """Settings of the whole table."""

    name: str = "table"
    about: str = ""
    missing: list[Word] = [""]
    """Values that mean missing in every column."""
    fewest: int = Field(default=5, ge=1)
    """Counts below this, and statistics of fewer rows than this, are withheld."""
    interactions: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []
    """Pairs of columns whose products are features, too: the effect of one may depend on the other."""
    standardise_dummies: bool = False
    """Whether 0/1 features (categories, yes or no, indicators of gaps) are centred and scaled like numbers, as in
    glmnet, so that a penalty treats all features alike."""
    untold: Literal["refuse", "drop"] = "refuse"
    """How to treat a feature if no organisation sends enough to scale it; "drop" leaves it out."""


class Target(Section, Notation):
    """The target: a class, a number, or the time until an event."""

    column: str = ""
    classes: Naming | None = None
    """Without them the target is a number."""
    time: str = ""
    event: str = ""
    happened: list[Word] = ["1", "true", "yes"]
    """Words of the event column for an event that happened ..."""
    censored: list[Word] = ["0", "false", "no"]
    """... and for a censored one."""
    missing: list[Word] = []
    transform: Literal["none", "log", "log1p"] = "none"
    """For a number: fit its logarithm, and transform predictions back (to medians, not means)."""
    weight: str = ""
    """The column of row weights; without one all rows have the same weight."""
    offset: str = ""
    """The column added to every score, with a coefficient of 1 (`proxfed glm`)."""
    exposure: str = ""
    """The column with the exposure of a count (time or number at risk): its logarithm is an offset."""
    cluster: str = ""
    """The column of clusters: rows with the same word, such as a patient's number, are dependent."""

    @property
    def kind(self) -> Literal["classes", "number", "survival"]:
        """The kind of target, from the keys that are given."""
        return "survival" if self.time else "number" if self.classes is None else "classes"

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in the table."""
        return (self.time, self.event) if self.time else (self.column,)

    @property
    def besides(self) -> tuple[str, ...]:
        """Columns about a row that are neither target nor input."""
        return tuple(filter(None, (self.weight, self.offset, self.exposure, self.cluster)))

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The classes in order, each with its words."""
        return {} if self.classes is None else numbered(self.classes)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        one = f"column = {self.column!r} and time = {self.time!r}: a target is a column, or a time with its event"
        refuse_unless(bool(self.column) != bool(self.time), one)
        both = f"time = {self.time!r} and event = {self.event!r} go together: give both or none"
        refuse_unless(bool(self.time) == bool(self.event), both)
        if self.classes is not None:
            refuse_unless(not self.time, "time and event have no classes")
            check_naming("classes", self.classes, 2)
        plain = self.transform == "none" or self.kind == "number"
        refuse_unless(plain, f"transform = {self.transform!r} is for a target that is a number")
        both = f"offset = {self.offset!r} and exposure = {self.exposure!r} exclude each other: give one of them"
        refuse_unless(not (self.offset and self.exposure), both)
        check_naming("happened and censored", {"happened": self.happened, "censored": self.censored}, 2)
        return self


class Schema(Section):
    """A whole file. Participants compare its `digest`."""

    source: Source = Source()
    table: Rules = Rules()
    target: Target | None = None
    columns: dict[str, AnyColumn] = {}
    others: AnyColumn | None = None
    folds: Folds = Folds()
    """Rows that are always held out together."""
    model: dict[str, Any] = {}
    """Settings of the fit (fit/settings.py); like [source], not part of the agreement."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        used = {*self.target.columns, *self.target.besides} if self.target is not None else set()
        own = used | {self.source.organisation} if self.source.organisation else used
        for name in own & self.columns.keys():
            what = "the target" if name in used else "the organisation"
            ignored = isinstance(self.columns[name], Ignore)
            refuse_unless(ignored, f"columns.{name} is {what}, so it cannot be a column that predicts as well")
        return self

    @cached_property
    def inputs(self) -> dict[str, Input]:
        """The columns that have features, in the order of the file."""
        return {name: column for name, column in self.columns.items() if not isinstance(column, Ignore)}

    @cached_property
    def besides(self) -> frozenset[str]:
        """Columns that a table may have and that are not inputs."""
        source, target = self.source, () if self.target is None else (*self.target.columns, *self.target.besides)
        ignored = (name for name, column in self.columns.items() if isinstance(column, Ignore))
        chosen = () if source.test is None else (source.test.column,)
        joined = (join.on for join in source.join)
        used = (*target, source.organisation, *chosen, *source.drop, *joined, *self.folds.columns)
        return frozenset((*filter(None, used), *ignored)) - self.inputs.keys()

    def expanded(self, names: Iterable[str]) -> Schema:
        """The schema with every unnamed column of a table written out as in [others], in alphabetical order."""
        if self.others is None or isinstance(self.others, Ignore):
            return self
        more = sorted(set(names) - self.columns.keys() - self.besides)
        columns = self.columns | dict.fromkeys(more, self.others)
        return self._with(columns=columns, others=None)

    def at(self, **source: Any) -> Schema:
        """The same agreement with another [source], such as files to predict."""
        placed = parse_schema({"source": source}, "schema").source
        return self._with(source=placed)

    def without_indicators(self) -> Schema:
        """The same without indicators of missing values."""
        plain = {
            name: column if isinstance(column, Ignore) else column.model_copy(update={"indicator": False})
            for name, column in self.columns.items()
        }
        return self._with(columns=plain)

    def _with(self, **changed: Any) -> Schema:
        """A new schema without [model]; a copy would keep the cached properties of this one."""
        kept = {name: getattr(self, name) for name in type(self).model_fields if name != "model"}
        return Schema(**kept | changed)

    def plain(self) -> dict[str, Any]:
        """The agreement as plain data, for messages and a model's file: everything but the location of the rows.

        Columns, classes and categories are lists of (name, value): JSON with sorted keys keeps their order.
        """
        return self._agreement(exclude_defaults=True)

    @cached_property
    def digest(self) -> str:
        """Equal for participants that agree. Columns may be in any order; classes and categories have a fixed order."""
        agreement = self._agreement()
        words = json.dumps(agreement | {"columns": sorted(agreement["columns"])}, sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def _agreement(self, **options: Any) -> dict[str, Any]:
        dumped = self.model_dump(mode="json", exclude={"source", "model"}, **options)
        for place, key in _named(dumped):
            if isinstance(place.get(key), dict):
                place[key] = [*map(list, place[key].items())]
        return dumped

    def differences(self, other: Schema) -> list[str]:
        """The differences from another schema, key by key: 'columns.age.range = [0, 120], not [0, 130]'."""
        ours, theirs = (dict(_flat(schema._agreement())) for schema in (self, other))
        keys = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        return [f"{key} = {_said(ours.get(key))}, not {_said(theirs.get(key))}" for key in keys]


def _said(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)


def read_schema(path: str | Path) -> Schema:
    """The schema in a TOML file; its tables are beside it, or in the data directory."""
    path = Path(path).expanduser()
    return parse_schema(read_toml(path), str(path))


def parse_schema(table: dict[str, Any], where: str = "schema") -> Schema:
    """The same from a table; `where` is its name in messages."""
    try:
        return Schema.model_validate(table)
    except ValidationError as e:
        raise InputError(f"{where}: {_sentence(e, table)}") from e


def from_plain(plain: dict[str, Any], where: str = "schema") -> Schema:
    """The inverse of `plain`."""
    plain = deepcopy(plain)
    for place, key in [*_named(plain)][::-1]:  # columns last: the others are inside them
        if _pairs(place.get(key)):
            place[key] = dict(place[key])
    try:
        return Schema.model_validate_json(json.dumps(plain))
    except ValidationError as e:
        raise InputError(f"{where}: {_sentence(e, plain)}") from e


def _named(plain: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """(table, key) of everything whose order matters: columns, classes and categories."""
    columns = plain.get("columns", {})
    yield plain, "columns"
    inside = (
        [value for _, value in columns] if _pairs(columns) else [*columns.values()] if isinstance(columns, dict) else []
    )
    for table in (plain.get("target"), plain.get("others"), *inside):
        if isinstance(table, dict):
            yield from ((table, key) for key in ("classes", "categories"))


def _pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 and isinstance(v[0], str) for v in value)


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested tables; classes and categories are not split."""
    if isinstance(value, dict) or place == "columns":
        for key, inside in value.items() if isinstance(value, dict) else value:
            yield from _flat(inside, f"{place}.{key}" if place else key)
    else:
        yield place, value


def _sentence(e: ValidationError, table: Any) -> str:
    error = e.errors()[0]
    place = ".".join(keys_of(error["loc"], table))
    if error["type"] == SENTENCE:
        return f"{place}: {error['msg']}" if place else error["msg"]
    if error["type"] == "union_tag_not_found":
        return f"{place}: the key 'kind' is missing, one of {', '.join(KINDS)}"
    if error["type"] == "union_tag_invalid":
        kind = error["input"]["kind"]
        return f"{place}.kind = {kind!r} is not one of {', '.join(KINDS)}; {nearest(str(kind), KINDS)}"
    return sentence(e, table, lambda path: _known(path, table))


PARTS: dict[str, type[BaseModel]] = {"source": Source, "table": Rules, "target": Target, "folds": Folds}


def _known(path: Sequence[str], table: Any) -> Iterable[str]:
    """The keys that are allowed at the end of a path such as columns.age."""
    if not path:
        return Schema.model_fields
    if path[0] in PARTS:
        inner: dict[str, type[BaseModel]] = {"join": Join, "test": Chosen}
        return inner.get(path[1] if len(path) > 1 else "", PARTS[path[0]]).model_fields
    column = table["others"] if path[0] == "others" else table["columns"][path[1]]
    return KINDS[column["kind"]].model_fields
