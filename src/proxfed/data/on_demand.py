"""Clients whose samples are read on demand: by a function of the client's number, or from one file per client.

Only the clients of a round are read, through an LRU cache of limited size. Computations that need the samples of all
clients are refused (smoothness constants, balanced classes) or skipped (objective and stationarity).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from proxfed.data.column_files import read_npz
from proxfed.data.federated import Federated, Samples, _checked, as_features, flat, stacked
from proxfed.errors import InputError, require, whole
from proxfed.keyed_random import Ids

Read = Callable[[int], Samples]
"""The number of a client -> its (features, labels). Must be thread-safe."""


class _Latest:
    """A thread-safe LRU cache, limited in bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.used = room, 0
        self._kept: OrderedDict[int, Samples] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[_Latest], tuple[int]]:
        return _Latest, (self.room,)  # another process starts with an empty cache

    def get(self, i: int) -> Samples | None:
        with self._lock:
            if i in self._kept:
                self._kept.move_to_end(i)
            return self._kept.get(i)

    def put(self, i: int, samples: Samples) -> None:
        with self._lock:
            if i not in self._kept:
                self._kept[i] = samples
                self.used += sum(part.nbytes for part in samples)
            while self.used > self.room:
                _, old = self._kept.popitem(last=False)
                self.used -= sum(part.nbytes for part in old)


class OnDemand(Federated):
    """Samples of n clients, read client by client. `features` and `labels` are client 0's, for their shape and dtype.

    Parameters
    ----------
    read : callable
        The number of a client -> its (features, labels).
    sizes : sequence of int
        (n,): each client's number of samples.
    test : Samples, optional
        (features, labels) of test samples, which no client holds.
    classes : int, optional
        How many classes there are; None: labels are numbers.
    name : str
        The name of the data in messages.
    feature_names : sequence of str, optional
        (p,) what the columns of features (N, p) are called; None: x0, x1, ...
    cache : int
        Bytes of samples to keep in memory.
    where : callable
        The number of a client -> its name in messages.
    """

    _read: Read
    _where: Callable[[int], str]
    _latest: _Latest

    def __init__(
        self,
        read: Read,
        sizes: Sequence[int] | np.ndarray,
        test: Samples | None = None,
        classes: int | None = None,
        name: str = "data",
        feature_names: Sequence[str] | None = None,
        cache: int = 1 << 28,
        where: Callable[[int], str] = "client {}".format,
    ) -> None:
        require(callable(read), f"{name}: read = {read!r:.40} must be a function of a client's number")
        require(whole(cache) and cache >= 0, f"{name}: cache = {cache!r} must be a whole number >= 0, of bytes")
        given = np.asarray(sizes)
        fits = given.ndim == 1 and given.dtype.kind in "iu" and len(given) > 0
        require(fits, f"{name}: sizes must be a list of whole numbers, one a client")
        own = {"_read": read, "_where": where, "_latest": _Latest(cache), "sizes": given.astype(np.int64)}
        rest = {"classes": classes, "name": name, "features": None, "sample_weights": None, "window": None}
        self.__dict__.update(own | rest)
        empty = np.flatnonzero(self.sizes <= 0)
        if len(empty):
            raise InputError(f"{name}: {where(int(empty[0]))} holds no samples")
        features, labels = self.client(0)
        first = Federated(features, labels, self.sizes[:1], test, classes, name, feature_names)
        self.__dict__.update({key: getattr(first, key) for key in ("features", "labels", "test", "feature_names")})

    @classmethod
    def files(
        cls,
        paths: Sequence[str | Path],
        label: str = "label",
        sizes: Sequence[int] | np.ndarray | None = None,
        test: Samples | None = None,
        classes: int | None = None,
        name: str = "data",
        cache: int = 1 << 28,
    ) -> OnDemand:
        """From one .npz file per client, with the arrays `features` and `label`.

        Without `sizes`, the labels of every file are read once to count them.
        """
        files = [Path(path).expanduser() for path in paths]
        require(len(files) > 0, f"{name}: there must be at least one client")
        counted = [len(_arrays(file, label)[0]) for file in files] if sizes is None else sizes
        require(len(counted) == len(files), f"{name}: {len(files)} files but {len(counted)} sizes")

        def read(i: int) -> Samples:
            features, labels = _arrays(files[i], "features", label)
            return features, labels

        return cls(read, counted, test, classes, name, cache=cache, where=lambda i: str(files[i]))

    def client(self, i: int) -> Samples:
        """(features, labels) of client i."""
        found = self._latest.get(i)
        if found is None:
            found = self._checked_samples(i)
            self._latest.put(i, found)
        return found

    def _checked_samples(self, i: int) -> Samples:
        where = self._where(i)
        try:
            given, labels = self._read(i)
            features, labels = as_features(given), np.asarray(labels)
        except (TypeError, ValueError) as e:
            raise InputError(f"{self.name}: what was read of {where} is not (features, labels): {e}") from e
        except OSError as e:
            raise InputError(f"{self.name}: cannot read {where}: {e.strerror or e}") from e
        m = int(self.sizes[i])
        fits = features.ndim > 1 and len(features) == len(labels) == m
        have = f"features of shape {features.shape} and {np.size(labels)} labels"
        require(fits, f"{self.name}: {where} has {have}, but its size is {m}")
        if self.features is not None:
            shape, first = features.shape[1:], self.features.shape[1:]
            require(shape == first, f"{self.name}: samples of {where} have shape {shape}, those of client 0 {first}")
        return features, _checked(self.name, features, labels, self.classes, lambda row: f"row {row} of {where}")

    def some(self, ids: Ids) -> Federated:
        """The samples of these clients, numbered from 0; they were checked when they were read."""
        parts = [self.client(int(i)) for i in ids]
        features = [A for A, _ in parts] or [self.features[:0]]
        labels = [b for _, b in parts] or [self.labels[:0]]
        out = object.__new__(Federated)
        values = {key: getattr(self, key) for key in Federated.__dataclass_fields__}
        values |= {"features": stacked(features), "labels": np.concatenate(labels)}
        out.__dict__.update(values | {"sizes": self.sizes[np.asarray(ids, np.int64)]})
        return out

    def as_rows(self) -> OnDemand:
        """Each sample as one row of floats."""
        test = None if self.test is None else (flat(self.test[0]), self.test[1])

        def read(i: int) -> Samples:
            features, labels = self._read(i)
            return flat(as_features(features)), labels

        return OnDemand(read, self.sizes, test, self.classes, self.name, None, self._latest.room, self._where)

    def thinned(self, samples: int) -> OnDemand:
        """At most this many samples per client, evenly spaced among its own."""
        sizes = np.minimum(self.sizes, samples)

        def read(i: int) -> Samples:
            features, labels = self.client(i)
            some = np.arange(sizes[i]) * len(labels) // sizes[i]
            return features[some], labels[some]

        return OnDemand(read, sizes, self.test, self.classes, self.name, self.feature_names, 0, self._where)

    def named(self, i: int) -> str:
        """The name of client i in messages."""
        return self._where(i)


def _arrays(file: Path, *names: str) -> list[np.ndarray]:
    columns = read_npz(file, names[0] if len(names) == 1 else None)
    for name in names:
        require(name in columns, f"{file}: has no array {name!r}")
    return [columns[name] for name in names]


def client_files(
    path: str | Path, label: str = "label", classes: int | None = None, test: str | Path | None = None, cache: int = 256
) -> OnDemand:
    """Your own .npz files, one per client, each read when its client takes part; for many clients.

    path      the folder; clients are numbered in the order of their files' names
    label     the array of labels, beside `features`
    classes   the number of classes; None: labels are numbers, as in a regression, or -1/+1
    test      an .npz file of samples that no client holds
    cache     MB of samples to keep in memory
    """
    folder, beside = Path(path).expanduser(), None if test is None else Path(test).expanduser()
    require(folder.is_dir(), f"client_files: path = {str(path)!r} is not a folder")
    require(whole(cache) and cache >= 0, f"client_files: cache = {cache!r} must be a whole number >= 0, of MB")
    files = sorted(file for file in folder.glob("*.npz") if beside is None or file.resolve() != beside.resolve())
    require(len(files) > 0, f"client_files: there is no .npz file in {folder}")
    held_out = None if beside is None else _arrays(beside, "features", label)
    pair = None if held_out is None else (held_out[0], held_out[1])
    return OnDemand.files(files, label, None, pair, classes, folder.stem, cache << 20)
