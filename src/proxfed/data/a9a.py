"""A9A: the UCI census data "Adult" as 123 binary features, +1 for an income above 50,000 (J. Platt, 1998)."""

from __future__ import annotations

from pathlib import Path

from proxfed.data.directory import Collection, Sum
from proxfed.data.federated import Dataset
from proxfed.data.libsvm import read_libsvm

A9A = Collection(
    folders=("a9a",),
    source="the LIBSVM data page (binary classification, a9a)",
    sums={
        "a9a": Sum("f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        "a9a.t": Sum("1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    },
    url="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}",
)


def a9a(directory: str | Path | None = None) -> Dataset:
    """A9A: 32,561 / 16,281 samples, 123 binary features, labels -1/+1."""
    (features, labels), (test_features, test_labels) = (
        read_libsvm(A9A.find(name, directory), n_features=123, sparse=False) for name in ("a9a", "a9a.t")
    )
    return Dataset(features, labels, test_features, test_labels, name="a9a")
