"""Who holds what: how many samples each client has, and of which classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from proxfed.data.federated import Federated, counts
from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse import SparseRows
from proxfed.errors import InputError
from proxfed.keyed_random import generator


@dataclass(frozen=True, eq=False)
class ClientStats:
    """The clients' samples, counted."""

    sizes: np.ndarray
    """(n,) samples of each client."""
    counts: np.ndarray | None = None
    """(n, classes) samples of each client and class; None: labels are numbers."""
    classes: tuple[str, ...] = ()
    """What the classes are called."""
    checksum: int | None = None
    """Of all samples, labels and weights; None: not known."""
    weights: np.ndarray | None = None
    """(n,) the weights of each client's samples together; None: all samples count the same."""

    @classmethod
    def of(cls, data: Federated) -> ClientStats:
        if isinstance(data, OnDemand):
            return cls(data.sizes)
        checksum, weights = 0, None
        features = data.features.arrays if isinstance(data.features, SparseRows) else (data.features,)
        for array in (*features, data.labels, data.sample_weights):
            checksum = checksum if array is None else crc32(np.ascontiguousarray(array).data, checksum)
        if data.sample_weights is not None:
            weights = data.weight_sums
        if data.classes is not None:
            return cls(data.sizes, counts(data), tuple(map(str, range(data.classes))), checksum, weights)
        if np.isin(data.labels, (-1, 1)).all():
            return cls(data.sizes, counts(data), ("-1", "+1"), checksum, weights)
        return cls(data.sizes, checksum=checksum, weights=weights)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> ClientStats:
        """What `table` made, read back; `where` it was read from is named if it makes no sense."""
        try:
            sizes, classes = np.array(table["sizes"], np.int64), tuple(map(str, table["classes"]))
            cells = None if table["counts"] is None else np.array(table["counts"], np.int64)
            weights = None if table.get("weights") is None else np.array(table["weights"], np.float64)
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(f"{where} is damaged: {e}") from e
        whole = sizes.ndim == 1 and len(sizes) > 0
        fits = cells is None or (cells.shape == (len(sizes), len(classes)) and (cells.sum(axis=1) == sizes).all())
        if not (whole and fits and (weights is None or weights.shape == sizes.shape)):
            raise InputError(f"{where} is damaged: its counts do not add up to its sizes")
        return cls(sizes, cells, classes, table.get("checksum"), weights)

    def table(self) -> dict[str, Any]:
        """As plain lists."""
        cells = None if self.counts is None else self.counts.tolist()
        table = {"sizes": self.sizes.tolist(), "classes": list(self.classes), "counts": cells}
        table |= {} if self.weights is None else {"weights": self.weights.tolist()}
        return table if self.checksum is None else table | {"checksum": self.checksum}

    def same(self, other: ClientStats) -> bool:
        """Whether these are the same samples, as far as both know."""
        mine, theirs = self.table(), other.table()
        return all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys())

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.sizes)

    @property
    def classes_held(self) -> np.ndarray | None:
        """(n,) of how many classes each client has samples."""
        return None if self.counts is None else (self.counts > 0).sum(axis=1)

    def sentence(self) -> str:
        """How many, and how evenly, in words."""
        several = len(self) > 1
        text = f"{len(self):,} client{'s hold' if several else ' holds'} {int(self.sizes.sum()):,} samples"
        if several:
            text += f": {_spread(self.sizes, ' each')}"
        if self.classes_held is not None:
            text += f", from {_spread(self.classes_held)} of the {len(self.classes)} classes"
        return text + "."

    def some(self, most: int) -> np.ndarray:
        """At most so many clients, ascending: drawn at random, since neighbours may be alike, and always the same."""
        if len(self) <= most:
            return np.arange(len(self))
        drawn = generator(0, "clients that are shown").permutation(len(self))[:most]
        return np.sort(drawn)


def _spread(values: np.ndarray, each: str = "") -> str:
    low, high, middle = int(values.min()), int(values.max()), f"{np.median(values):,.1f}".removesuffix(".0")
    return f"{low:,}{each}" if low == high else f"{low:,} to {high:,}{each} (median {middle})"
