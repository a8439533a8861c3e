"""A site's rows and their schema, and how sites agree before the computation.

A site first reveals the schema of its rows: the columns, the shape of a sample, the classes by name, its number of
clients, and their weights if the problem needs them. All schemas together give the common arrangement of rows: columns
in the order of the first site, classes numbered alphabetically over all sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.data.federated import Federated, Samples, Window
from proxfed.data.own import own
from proxfed.errors import InputError, RunError, require
from proxfed.registry import Table
from proxfed.silos.wire.job import Job, problem_of
from proxfed.silos.wire.message import canonical
from proxfed.tables.schema import from_plain
from proxfed.types import Problem


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of one site; labels are numbers, or words that are classes."""

    features: np.ndarray
    """(N, ...)"""
    labels: np.ndarray
    """(N,)"""
    sizes: Sequence[int]
    """Rows per client of the site, in order; usually there is one client."""
    columns: tuple[str, ...] | None = None
    """The names of the columns of features (N, p); None: they have no names."""
    words: tuple[str, ...] | None = None
    """The classes by name, in the order of their numbers; None: labels are numbers."""
    classes: int | None = None
    """The number of classes of numeric labels."""
    test: Samples | None = None
    """Held-out rows of this site."""
    sample_weights: np.ndarray | None = None

    @classmethod
    def of(cls, data: Federated, here: range | None = None, test: Samples | None = None) -> Rows:
        """The rows of some clients of pooled data; for tests and simulations."""
        here = range(len(data)) if here is None else here
        rows = slice(data.offsets[here.start], data.offsets[here.stop])
        weights = None if data.sample_weights is None else data.sample_weights[rows]
        names = None if data.feature_names is None else tuple(data.feature_names)
        sizes = data.sizes[here.start : here.stop].tolist()
        return cls(np.asarray(data.features[rows]), data.labels[rows], sizes, names, None, data.classes, test, weights)

    @classmethod
    def read(cls, path: str | Path, label: str, client: str | None = None, **options: Any) -> Rows:
        """From a file, like the data set 'own' (data/own.py); with a column of clients the site has several."""
        data = own(path, label, client, **options)
        order = slice(None) if data.groups is None else np.argsort(data.groups, kind="stable")
        sizes = [len(data.labels)] if data.groups is None else np.unique(data.groups, return_counts=True)[1].tolist()
        return cls(
            np.asarray(data.features)[order],
            data.labels[order],
            sizes,
            data.feature_names,
            data.class_names,
            data.classes,
            data.test,
        )

    @property
    def offset(self) -> np.ndarray | None:
        """(N,) offsets of the scores; None: there are none."""
        return None

    @property
    def clusters(self) -> np.ndarray | None:
        """(N,) the cluster of each row; None: not known."""
        return None

    def digest(self) -> str:
        """The digest of all rows, which must not change during a run."""
        parts = [self.features, self.labels, self.sample_weights, *(self.test or ())]
        total = sha256(canonical([list(self.sizes), self.columns, self.words, self.classes]))
        for part in parts:
            total.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return total.hexdigest()

    def lines(self) -> np.ndarray:
        """(N, bytes) every row with its label, including held-out rows, to compare tables."""
        parts = [(self.features, self.labels, self.sample_weights, 0)]
        parts += [] if self.test is None else [(np.asarray(self.test[0]), self.test[1], None, 1)]
        return np.concatenate([_bytes(*part) for part in parts])

    def filled(self, agreed: Table) -> np.ndarray | None:
        """The same with missing values imputed as in the job; None: there are none."""
        return None

    def schema(self) -> Table:
        """The schema, which the site reveals before a run."""
        labels = "words" if self.words is not None else "classes" if self.classes is not None else self._numbers()
        return {
            "shape": list(self.features.shape[1:]),
            "bytes": self.features.dtype == np.uint8,
            "columns": None if self.columns is None else list(self.columns),
            "labels": labels,
            "classes": self.classes,
            "words": None if self.words is None else list(self.words),
            "clients": len(self.sizes),
            "test": self.test is not None,
        }

    def _numbers(self) -> str:
        return "signs" if bool(np.isin(self.labels, (-1, 1)).all()) else "numbers"

    def strata(self) -> np.ndarray:
        """(N,) classes, by which folds are stratified; numbers are one stratum. They depend on the table alone."""
        words = self.words is not None or self.classes is not None or self._numbers() == "signs"
        return np.asarray(self.labels).astype(np.int64) if words else np.zeros(len(self.labels), np.int64)

    @property
    def units(self) -> np.ndarray | None:
        """(N,) words: rows with the same word are in the same fold; None: each row is its own unit."""
        return None

    @property
    def divided_by(self) -> str:
        """The kind of these units, on one line."""
        return ""

    def summary(self) -> bytes:
        """The summary of a table, for the common preparation; purely numeric rows need none."""
        raise RunError("the rows of this site are numbers, and have no summary")

    def weights(self) -> list[float]:
        """The total weight of each client's rows: their number if there are no weights."""
        each = np.ones(len(self.labels)) if self.sample_weights is None else self.sample_weights
        ends = np.cumsum(self.sizes)
        return [float(each[end - size : end].sum()) for size, end in zip(self.sizes, ends, strict=True)]

    def federated(self, agreed: Table, window: Window, name: str = "the rows of this site") -> Federated:
        """The rows as clients' data, arranged as agreed."""
        every = _comparable(agreed["columns"]) == _comparable(None if self.columns is None else list(self.columns))
        require(every, f"{name}: the job has not each of its columns once")
        columns: Any = slice(None)
        if agreed["columns"] is not None:
            columns = [(self.columns or ()).index(c) for c in agreed["columns"]]
        test = None
        if self.test is not None:
            test = (np.asarray(self.test[0])[:, columns], self._numbered(self.test[1], agreed))
        return Federated(
            self.features[:, columns],
            self._numbered(self.labels, agreed),
            np.array(self.sizes),
            test,
            agreed["classes"],
            name,
            agreed["columns"],
            self.sample_weights,
            window,
        )

    def _numbered(self, labels: np.ndarray, agreed: Table) -> np.ndarray:
        if self.words is None:
            return labels
        place = np.array([agreed["words"].index(word) for word in self.words])
        return place[labels.astype(np.int64)]


def _bytes(features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, kind: int) -> np.ndarray:
    """(N, bytes) of samples; the last byte is their kind."""
    N = len(labels)
    columns = [features.reshape(N, -1), np.asarray(labels).reshape(N, 1)]
    columns += [np.ones((N, 1)) if weights is None else weights.reshape(N, 1), np.full((N, 1), kind, np.uint8)]
    return np.hstack([np.ascontiguousarray(c).view(np.uint8).reshape(N, -1) for c in columns])


def empty(agreed: Table, window: Window) -> Federated:
    """The server's view of the data: everything but rows."""
    kind = np.uint8 if agreed["bytes"] else np.float64
    return Federated(
        np.empty((0, *agreed["shape"]), kind),
        np.empty(0),
        np.empty(0, np.int64),
        None,
        agreed["classes"],
        "the sites' data",
        agreed["columns"],
        None,
        window,
    )


def without_rows(job: Job) -> Problem:
    """The problem that all jobs of a family share, without rows, as the server has it."""
    return problem_of(job, empty(job.schema, job.window(None)))


def agree(schemas: Mapping[str, Table]) -> Table:
    """The common arrangement of rows; refused with the site that differs, and how."""
    (first, model), *others = schemas.items()
    for site, schema in others:
        _agree_on_table(site, schema, first, model)
        for key in ("columns", "shape", "bytes", "labels"):
            mine, theirs = _comparable(schema.get(key)), _comparable(model.get(key))
            if mine != theirs:
                raise InputError(f"{site}: {_difference(key, schema.get(key), model.get(key), first)}")
    words = sorted({word for schema in schemas.values() for word in schema["words"] or ()})
    counts = [schema["classes"] for schema in schemas.values() if schema["classes"] is not None]
    classes = len(words) if words else max(counts) if counts else None
    shared = {key: model[key] for key in ("columns", "shape", "bytes", "labels")}
    return shared | {"words": words or None, "classes": classes}


def _agree_on_table(site: str, schema: Table, first: str, model: Table) -> None:
    """Refuse two different schemas of tables, with one line per key that differs."""
    if schema.get("table") == model.get("table"):
        return
    both: list[Any] = [said.get("agreement") for said in (schema, model)]
    if not all(isinstance(said, dict) for said in both):
        raise InputError(f"{site}: only one of {site} and {first} has a schema of a table; `proxfed site join` it")
    mine, theirs = (from_plain(said, f"the schema of {name}") for said, name in zip(both, (site, first), strict=True))
    lines = "".join(f"\n  {line}" for line in mine.differences(theirs))
    raise InputError(
        f"{site}: its schema is not that of {first} (`proxfed site join` starts from a common one):{lines}"
    )


def _comparable(value: Any) -> Any:
    """Ignores the order of columns."""
    return sorted(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value


def _difference(key: str, mine: Any, theirs: Any, first: str) -> str:
    if key == "columns" and mine is not None and theirs is not None:
        missing, extra = sorted({*theirs} - {*mine}), sorted({*mine} - {*theirs})
        return (
            f"has no column {missing[0]!r}, unlike {first}" if missing else f"has a column {extra[0]!r}, unlike {first}"
        )
    return f"{key} = {mine!r}, but {first} has {theirs!r}"


def check_schema(schema: Any, site: str) -> Table:
    """A site's schema; refused if it is not a valid one."""
    kinds: dict[str, Any] = {
        "shape": list, "bytes": bool, "columns": (list, type(None)), "labels": str, "classes": (int, type(None)),
        "words": (list, type(None)), "clients": int, "test": bool,
    }  # fmt: skip
    good = isinstance(schema, dict) and all(isinstance(schema.get(key), kind) for key, kind in kinds.items())
    good = good and all(isinstance(k, int) and k >= 0 for k in schema["shape"]) and schema["clients"] >= 1
    good = good and all(isinstance(word, str) for key in ("columns", "words") for word in schema[key] or ())
    require(good, f"{site}: what it tells of its rows is no schema")
    return schema
