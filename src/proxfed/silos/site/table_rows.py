"""Tables with words and gaps, prepared jointly: each site sends a summary without rows, and all use one preparation.

hello      the table's schema, in addition to every site's entries
summary    counts, means and histograms by the rules of the schema (tables/sums.py)
job        the preparation from all summaries together (tables/merging.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from proxfed.data.federated import Federated, Samples, Window
from proxfed.errors import require
from proxfed.registry import Table as Tables
from proxfed.silos.site.rows import Rows, _bytes
from proxfed.silos.wire.message import canonical
from proxfed.tables import Preparation, decode, merge, read_tables, summarise
from proxfed.tables.schema import from_plain
from proxfed.tables.table import Table

FARTHEST = 100.0
"""The largest root mean square of a scaled column: a preparation that exceeds it does not fit the sites' tables."""


@dataclass(frozen=True, eq=False)
class TableRows(Rows):
    """The table of one site; its features are known after the agreement."""

    table: Table | None = None
    held_out: Table | None = None

    @classmethod
    def read_table(cls, path: Path, site: str, organisation: str = "") -> TableRows:
        """From the file of a schema, which names the files: all rows are this site's, or only those of one
        organisation."""
        found = read_tables(path)
        tables, tests = (
            [table for table in part if organisation in ("", table.organisation)] for part in (found.tables, found.test)
        )
        said = f"{path}: [source] names the tables of {len(found.tables)} organisations"
        require(len(tables) == 1, f"{said}, and this site is one (data.organisation = {organisation!r})")
        table = replace(tables[0], organisation=site)
        held_out = replace(tests[0], organisation=site) if tests else None
        require(table.labels is not None, f"{path}: has no [target]")
        names = found.schema.target.names if found.schema.target is not None else ()
        classes = len(names) if len(names) > 2 else None
        labels = _labels(table, len(names))
        features = np.empty((len(labels), 0))
        return cls(features, labels, [len(labels)], None, None, classes, None, table.weights, table, held_out)

    @property
    def offset(self) -> np.ndarray | None:
        return None if self.table is None else self.table.offset

    @property
    def clusters(self) -> np.ndarray | None:
        return None if self.table is None else self.table.clusters

    def digest(self) -> str:
        total = sha256(super().digest().encode())
        for part in (self.table, self.held_out):
            for name, values in ({} if part is None else part.columns).items():
                total.update(canonical(name) + np.ascontiguousarray(values).tobytes())
            if part is not None and part.offset is not None:
                total.update(np.ascontiguousarray(part.offset).tobytes())
            if part is not None and part.clusters is not None:
                total.update(canonical([str(name) for name in part.clusters.tolist()]))
        return total.hexdigest()

    def lines(self) -> np.ndarray:
        return self._lines(lambda table: [*table.columns.values()])

    def filled(self, agreed: Tables) -> np.ndarray | None:
        """The columns of the table, not its features, which a job may scale or leave out."""
        preparation = Preparation.from_plain(agreed["preparation"])
        return self._lines(preparation.filled)

    def _lines(self, columns_of: Callable[[Table], list[np.ndarray]]) -> np.ndarray:
        assert self.table is not None
        parts = [(part, kind) for kind, part in enumerate((self.table, self.held_out)) if part is not None]
        labels = [np.column_stack([np.asarray(x) for x in (p.labels, p.events) if x is not None]) for p, _ in parts]
        columns = [np.column_stack([*columns_of(part), y]) for (part, _), y in zip(parts, labels, strict=True)]
        return np.concatenate([
            _bytes(c, np.zeros(len(c)), part.weights, kind) for (part, kind), c in zip(parts, columns, strict=True)
        ])  # fmt: skip

    def strata(self) -> np.ndarray:
        assert self.table is not None
        if self.table.events is not None:
            return np.asarray(self.table.events).astype(np.int64)
        target = self.table.schema.target
        named = target is not None and bool(target.names)
        return np.asarray(self.table.labels).astype(np.int64) if named else np.zeros(len(self.table), np.int64)

    @property
    def units(self) -> np.ndarray | None:
        assert self.table is not None
        return self.table.units

    @property
    def divided_by(self) -> str:
        assert self.table is not None
        rule = self.table.schema.folds
        return "" if self.units is None else canonical(rule.model_dump(mode="json", exclude_defaults=True)).decode()

    def schema(self) -> Tables:
        assert self.table is not None
        said = super().schema() | {"shape": [], "test": self.held_out is not None}
        return said | {"table": self.table.schema.digest, "agreement": self.table.schema.plain()}

    def summary(self) -> bytes:
        assert self.table is not None
        return summarise(self.table).encode()

    def federated(self, agreed: Tables, window: Window, name: str = "the rows of this site") -> Federated:
        assert self.table is not None
        prepared = Preparation.from_plain(agreed["preparation"])
        signed = agreed["classes"] is None
        test = None if self.held_out is None else self._samples(prepared, self.held_out, signed)
        features, labels = self._samples(prepared, self.table, signed)
        far = np.sqrt(np.square(features).mean(0)).max(initial=0.0)
        require(far <= FARTHEST, f"{name}: a column would have the scale {far:.3g} after the job's preparation")
        own = np.array(self.sizes), test, agreed["classes"], name, agreed["columns"], self.sample_weights, window
        return Federated(features, labels, *own)

    def _samples(self, prepared: Preparation, table: Table, signed: bool) -> Samples:
        target = table.schema.target
        return prepared.apply(table), _labels(table, 0 if target is None or not signed else len(target.names))


def _labels(table: Table, classes: int) -> np.ndarray:
    """Labels in the problems' convention: two classes as -1 and +1, censored times as negative numbers."""
    labels = np.asarray(table.labels)
    if table.events is not None:
        return np.copysign(labels, table.events - 0.5)
    return 2.0 * labels - 1.0 if classes == 2 else labels


def prepared(agreed: Tables, schemas: Mapping[str, Tables], summaries: Mapping[str, bytes]) -> Tables:
    """The agreement of sites with tables, from their schemas and summaries."""
    plain = next(iter(schemas.values()))["agreement"]
    told = {site: decode(summary) for site, summary in summaries.items()}
    for site, summary in told.items():
        require(summary.organisation == site, f"{site} sent the summary of {summary.organisation!r}")
    found = merge(from_plain(plain, "the sites' schema"), list(told.values()))
    return agreed | of_preparation(found)


def of_preparation(found: Preparation) -> Tables:
    """The preparation as a table of the job."""
    return {"preparation": found.plain(), "columns": list(found.names), "shape": [len(found.names)]}
