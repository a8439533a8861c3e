"""Data of many clients: `load(name, partition)`, the registries of datasets and partitions, and users' own data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.data.a9a import a9a
from proxfed.data.digits import digits
from proxfed.data.federated import Dataset, Federated
from proxfed.data.partitions import PARTITIONS, Partition
from proxfed.data.synthetic import synthetic, synthetic_binary
from proxfed.errors import InputError, nearest, require

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Federated", "Partition", "load"]

DATASETS: dict[str, Callable[..., Dataset | Federated]] = {
    "a9a": a9a,
    "digits": digits,
    "synthetic": synthetic,
    "synthetic_binary": synthetic_binary,
}
"""Loaders. Those that read files take `directory`; a Federated comes with its clients, a Dataset needs a partition."""


def load(
    name: str,
    partition: Partition | Sequence[np.ndarray] | None = None,
    directory: str | Path | None = None,
    **options: Any,
) -> Federated:
    """The named data, handed out to clients by a partition or by given lists of sample indices."""
    require(name in DATASETS, f"there is no dataset {name!r}; {nearest(name, DATASETS)}")
    loader = DATASETS[name]
    known = inspect.signature(loader).parameters
    for option in options:
        allowed = sorted(set(known) - {"directory"})
        require(option in allowed, f"{name}: unknown option {option!r}; {nearest(option, allowed)}")
    if "directory" in known:
        options["directory"] = directory
    data = loader(**options)
    if isinstance(data, Federated):
        require(partition is None, f"{name}: comes with its clients and takes no partition")
        return data
    if partition is None:
        raise InputError(f"{name}: needs a partition, one of {', '.join(PARTITIONS)}")
    parts = partition(data.labels, data.groups) if callable(partition) else partition
    return Federated.split(data, parts)
