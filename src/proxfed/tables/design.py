"""The features and labels of all organisations, ready for a problem."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxfed.data.federated import Federated, Samples
from proxfed.errors import require
from proxfed.tables.merging import merge
from proxfed.tables.preparation import Preparation
from proxfed.tables.sums import Summary, summarise
from proxfed.tables.table import Table, Tables, read_tables


@dataclass(frozen=True, eq=False)
class Design:
    """The data for a fit: prepared tables, their preparation, and the messages sent for it."""

    tables: Tables
    """The tables as read."""
    preparation: Preparation
    """The preparation of every table."""
    messages: tuple[Summary, ...]
    """The message of each organisation for the preparation."""

    @property
    def organisations(self) -> tuple[str, ...]:
        """The clients, in their order."""
        return tuple(table.organisation for table in self.tables.tables)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels; none for numbers and times."""
        target = self.tables.schema.target
        return () if target is None else tuple(target.names)

    @property
    def units(self) -> np.ndarray | None:
        """(N,) for all training rows: rows with the same word are held out together."""
        each = [table.units for table in self.tables.tables if table.units is not None]
        return np.concatenate(each) if each else None

    def federated(self, signed: bool = True) -> Federated:
        """The clients' features and labels.

        With two classes, the second is +1 and the first -1, as in logistic regression; not `signed`: 1 and 0. The time
        of a censored event is negative.
        """
        offset = any(table.offset is not None for table in self.tables.tables)
        require(not offset, "target.offset and target.exposure are for `proxfed glm`: other fits take no offsets")
        two = signed and len(self.classes) == 2
        clients = [self._samples(table, two) for table in self.tables.tables]
        held_out = [self._samples(table, two) for table in self.tables.test]
        test = (
            (np.concatenate([x for x, _ in held_out]), np.concatenate([b for _, b in held_out])) if held_out else None
        )
        classes = None if two or not self.classes else len(self.classes)
        name = self.tables.schema.table.name
        weights = [table.weights for table in self.tables.tables if table.weights is not None]
        return Federated.from_clients(clients, test, classes, name, self.preparation.names, weights or None)

    def _samples(self, table: Table, two: bool) -> Samples:
        labels = table.labels
        assert labels is not None, "design() asks for them"
        if table.events is not None:
            labels = np.copysign(labels, table.events - 0.5)
        return self.preparation.apply(table), 2.0 * labels - 1.0 if two else labels


def design(tables: Tables) -> Design:
    """Every organisation's table summarised, the messages merged, and all that a problem needs.

    Only the messages pass between organisations, here as well as between sites. They do not include held-out rows.
    """
    require(all(table.labels is not None for table in tables.tables), "the tables were read without their target")
    messages = tuple(summarise(table) for table in tables.tables)
    return Design(tables, merge(tables.schema, messages), messages)


def load_tables(schema: str | Path, directory: str | Path | None = None, signed: bool = True) -> Federated:
    """Tables of organisations, described by a schema file and prepared without sharing a row.

    schema   the file (TOML), with the location of the rows
    signed   two classes are -1 and +1, as logistic regression has them; otherwise 0 and 1
    """
    return design(read_tables(schema, directory)).federated(signed)
