"""A9A: the UCI census data "Adult" as 123 binary features, +1 for an income above 50,000 (J. Platt, 1998)."""

from __future__ import annotations

from pathlib import Path

from proxfed.data.directory import find
from proxfed.data.federated import Dataset
from proxfed.data.libsvm import read_libsvm

SOURCE = "the LIBSVM data page (binary classification: a9a)"


def a9a(directory: str | Path | None = None) -> Dataset:
    """A9A: 32,561 / 16,281 samples, 123 binary features, labels -1/+1."""
    (features, labels), (test_features, test_labels) = (
        read_libsvm(find("a9a", [name, f"{name}.bz2", f"{name}.gz"], SOURCE, directory), n_features=123)
        for name in ("a9a", "a9a.t")
    )
    return Dataset(features, labels, test_features, test_labels, name="a9a")
