"""Data of many clients: `load(name, partition)`, the registries of datasets and partitions, and users' own data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxfed.data.a9a import A9A, a9a
from proxfed.data.cifar import CIFAR10, CIFAR100, cifar10, cifar100
from proxfed.data.digits import digits
from proxfed.data.directory import Collection, FileCheck
from proxfed.data.downloads import Arrival, Watch, download, silent
from proxfed.data.federated import Dataset, Federated
from proxfed.data.libsvm import libsvm
from proxfed.data.limits import limited
from proxfed.data.mnist import (
    EMNIST_LETTERS,
    FASHION_MNIST,
    MNIST,
    WRITERS,
    emnist_letters,
    fashion_mnist,
    mnist,
    mnist_writers,
)
from proxfed.data.on_demand import OnDemand, client_files
from proxfed.data.own import own
from proxfed.data.partitions import PARTITIONS, NaturalPartition, Partition
from proxfed.data.sparse_rows import SparseRows
from proxfed.data.synthetic import synthetic, synthetic_binary, synthetic_shifted
from proxfed.errors import InputError, in_terms, nearest, of_kind, require
from proxfed.explained import explain
from proxfed.registry import Registry, build

__all__ = [
    "DATASETS",
    "FILES",
    "PARTITIONS",
    "Dataset",
    "Federated",
    "OnDemand",
    "Partition",
    "SparseRows",
    "check",
    "fetch",
    "load",
    "read",
]

DATASETS: Registry[Callable[..., Dataset | Federated]] = Registry(
    "datasets",
    {
        "a9a": a9a,
        "cifar10": cifar10,
        "cifar100": cifar100,
        "client_files": client_files,
        "digits": digits,
        "emnist_letters": emnist_letters,
        "fashion_mnist": fashion_mnist,
        "libsvm": libsvm,
        "mnist": mnist,
        "mnist_writers": mnist_writers,
        "own": own,
        "synthetic": synthetic,
        "synthetic_binary": synthetic_binary,
        "synthetic_shifted": synthetic_shifted,
    },
)
"""Loaders. Loaders of public files take `directory`; a Federated already has clients, a Dataset must be split."""

FILES: dict[str, tuple[Collection, ...]] = {
    "a9a": (A9A,),
    "cifar10": (CIFAR10,),
    "cifar100": (CIFAR100,),
    "emnist_letters": (EMNIST_LETTERS,),
    "fashion_mnist": (FASHION_MNIST,),
    "mnist": (MNIST,),
    "mnist_writers": (MNIST, WRITERS),
}
"""The public files of each dataset."""


IID_OF_TEN = "PARTITIONS['iid'](num_partitions=10)"


def load(
    name: str,
    partition: Partition | str | Mapping[str, Any] | Sequence[np.ndarray] | None = None,
    directory: str | Path | None = None,
    *,
    clients: int | None = None,
    **options: Any,
) -> Federated:
    """Load a dataset by name and split it among clients: load("digits", "iid", clients=10).

    Parameters
    ----------
    name : str
        One of DATASETS.
    partition : Partition, str, dict or sequence of arrays, optional
        How to split the samples: an object of PARTITIONS, its name, a dict such as {"name": "dirichlet_by_class",
        "alpha": 0.5}, or a list with the sample indices of each client. None: by the clients that the data
        themselves name, if they do.
    directory : str or Path, optional
        The data directory; None: PROXFED_DATA.
    clients : int, optional
        The number of clients of a partition given by its name, or of synthetic data.
    **options : Any
        Options of the loader, `limit` and `test_limit`.

    Returns
    -------
    Federated
    """
    if isinstance(partition, (str, Mapping)):
        partition = _by_name(partition, clients)
    elif clients is not None:
        options["clients"] = clients
    return hand_out(read(name, directory, **options), partition, name)


def _by_name(partition: str | Mapping[str, Any], clients: int | None) -> Partition:
    """The partition with this name, or of a table with its settings."""
    table: dict[str, Any] = {"name": partition} if isinstance(partition, str) else dict(partition)
    if clients is not None:
        require("num_partitions" not in table, "clients and partition['num_partitions'] are the same: give one of them")
        table["num_partitions"] = clients
    missing = "num_partitions" not in table and table.get("name") not in ("natural", "sizes")
    require(not missing, f"partition = {partition!r} needs a number of clients, such as load(..., clients=10)")
    made: Partition = build(PARTITIONS, table, "partition")
    return made


def hand_out(
    data: Dataset | Federated, partition: Partition | Sequence[np.ndarray] | None = None, name: str | None = None
) -> Federated:
    """Data split among clients: the data's own clients, or a partition's."""
    name = data.name if name is None else name
    if isinstance(data, Federated):
        require(partition is None, f"{name}: comes with its clients and takes no partition")
        return data
    if partition is None:
        such = in_terms('partition = {name = "iid", num_partitions = 10}', IID_OF_TEN)
        known = f"there are {', '.join(PARTITIONS)}"
        require(data.groups is not None, f"{name}: needs a partition, such as {such}; {known}")
        partition = NaturalPartition()
    listed = isinstance(partition, Sequence) and not isinstance(partition, str)
    if not listed:
        allowed = f"an object such as {IID_OF_TEN}, or a list of the indices of each client"
        of_kind(f"{name}: partition", partition, Callable, allowed)
    parts = partition(data.labels, data.groups) if callable(partition) else partition
    return Federated.split(data, parts)


def read(
    name: str,
    directory: str | Path | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    **options: Any,
) -> Dataset | Federated:
    """The named dataset, unsplit or with its own clients; a random subset of `limit` samples if given."""
    require(name in DATASETS, f"there is no dataset {name!r}; {nearest(name, DATASETS)}")
    loader = DATASETS[name]
    known = inspect.signature(loader).parameters
    allowed = sorted(set(known) - {"directory"})
    if unknown := next((option for option in options if option not in allowed), None):
        hint = nearest(unknown, allowed) if allowed else "it takes none"
        raise InputError(f"{name}: unknown option {unknown!r}; {hint}")
    for option in allowed:
        needed = known[option].default is inspect.Parameter.empty
        require(not needed or option in options, f"{name}: the option {option!r} is missing")
    if "directory" in known:
        options["directory"] = directory
    data = loader(**options)
    return data if limit is None and test_limit is None else limited(data, limit, test_limit)


def check(name: str, directory: str | Path | None = None) -> list[FileCheck]:
    """Compare the existing files of a dataset with their published checksums."""
    _require_public(name)
    verdicts: list[FileCheck] = []
    for files in FILES[name]:
        forms = [files] if files.other_form is None else [files, files.other_form]
        found = [verdict for form in forms for verdict in form.check(directory)]
        verdicts += found or [FileCheck(files.place(directory) / file, "missing") for file in files.sums]
    if all(verdict.state == "missing" for verdict in verdicts):
        files = FILES[name][0]
        raise files.missing(next(iter(files.sums)), directory)
    return verdicts


def fetch(name: str, directory: str | Path | None = None, watch: Watch = silent) -> list[Arrival]:
    """Download the missing files of a dataset; each is verified before it gets its final name."""
    _require_public(name)
    return [arrival for files in FILES[name] for arrival in download(files, directory, watch)]


def _require_public(name: str) -> None:
    require(name in FILES, f"there are no published files of a dataset {name!r}; {nearest(name, FILES)}")


explain(__name__)
