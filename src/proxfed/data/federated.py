"""Data before and after splitting: `Dataset`, samples without clients, and `Federated`, samples by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import InputError, require, shown, whole

Samples = tuple[Features, np.ndarray]
"""(features, labels)"""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples that are not yet split among clients.

    Features are floats, possibly as SparseRows, or uint8 images (N, C, H, W) of 0..255. Labels are whole numbers
    0..classes-1, or floats when `classes` is None: a regression, or -1/+1.
    """

    features: Features
    """(N, ...)"""
    labels: np.ndarray
    """(N,)"""
    test_features: Features | None = None
    """(M, ...): features of the test samples."""
    test_labels: np.ndarray | None = None
    """(M,)"""
    classes: int | None = None
    """How many classes there are; None: labels are numbers."""
    name: str = "data"
    """What messages call it."""
    groups: np.ndarray | None = None
    """(N,): the id of each sample's owner (a writer, a hospital), for the partition `natural`."""
    feature_names: tuple[str, ...] | None = None
    """(p,) what the columns of features (N, p) are called; None: x0, x1, ..."""
    sample_weights: np.ndarray | None = None
    """(N,) how much each sample counts; None: all the same."""
    class_names: tuple[str, ...] | None = None
    """What the classes 0, 1, ... are called, where they are words; None: by their numbers."""
    remark: str = ""
    """A remark that a run prints, for example that these are only some of the published samples."""

    @property
    def test(self) -> Samples | None:
        """The test samples (features, labels); None: there are none."""
        if self.test_features is None or self.test_labels is None:
            return None
        return self.test_features, self.test_labels

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {_about(len(self.labels), self)})"


class Window(NamedTuple):
    """A range of the n clients; the samples of the other clients are remote."""

    first: int
    """The number of the first local client."""
    weights: np.ndarray
    """(n,): p_i of all clients, including the remote ones; they sum to one."""


@dataclass(frozen=True, eq=False, repr=False)
class Federated:
    """Samples sorted by client: client i holds the rows offsets[i]:offsets[i+1]. Validated on construction."""

    features: Features
    """(N, ...)"""
    labels: np.ndarray
    """(N,)"""
    sizes: np.ndarray
    """(n,): the number of rows of each client."""
    test: Samples | None = None
    """The test samples (features, labels)."""
    classes: int | None = None
    """How many classes there are; None: labels are numbers."""
    name: str = "data"
    """What messages call it."""
    feature_names: Sequence[str] | None = None
    """(p,) what the columns of features (N, p) are called; None: x0, x1, ..."""
    sample_weights: np.ndarray | None = None
    """(N,): the relative weight of each sample; None: all equal."""
    window: Window | None = None
    """Which clients these are, if others are remote; None: all clients. A window may be empty."""
    remark: str = ""
    """The remark of the dataset."""
    test_clients: np.ndarray | None = None
    """(M,): the client of each test sample, -1 for none. None: test samples do not belong to clients."""
    client_names: Sequence[str] | None = None
    """(n,) what the clients are called; None: by their numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", as_features(self.features))  # tensors are welcome
        object.__setattr__(self, "labels", np.asarray(self.labels))
        object.__setattr__(self, "sizes", _checked_sizes(np.asarray(self.sizes), self.name))
        if self.window is None:
            require(len(self.sizes) > 0, f"{self.name}: there must be at least one client")
        else:
            self._check_window(*self.window)
        empty = np.flatnonzero(self.sizes <= 0)
        if len(empty):
            raise InputError(f"{self.name}: client {empty[0]} holds no samples")
        rows = int(np.sum(self.sizes))
        require(
            len(self.features) == len(self.labels) == rows,
            f"{self.name}: {len(self.features)} rows of features and {len(self.labels)} labels, "
            f"but the sizes add up to {rows}",
        )
        for labels in [self.labels] if self.test is None else [self.labels, np.asarray(self.test[1])]:
            require(labels.ndim == 1, f"{self.name}: labels must be one number a sample, not of shape {labels.shape}")
        labels = _checked(self.name, self.features, self.labels, self.classes, self._place)
        object.__setattr__(self, "labels", labels)
        if self.test is not None:
            features, labels = as_features(self.test[0]), np.asarray(self.test[1])
            require(
                len(features) == len(labels) and features.shape[1:] == self.features.shape[1:],
                f"{self.name}: the test set has features {features.shape} and {len(labels)} labels, "
                f"but a sample of the clients has shape {self.features.shape[1:]}",
            )
            labels = _checked(self.name, features, labels, self.classes, lambda row: f"row {row} of the test set")
            object.__setattr__(self, "test", (features, labels))
        if self.feature_names is not None:
            self._check_names(self.feature_names)
        if self.sample_weights is not None:
            self._check_weights(np.asarray(self.sample_weights))
        if self.test_clients is not None:
            self._check_test_clients(np.asarray(self.test_clients))
        if self.client_names is not None:
            self._check_client_names(list(self.client_names))

    def _check_test_clients(self, owners: np.ndarray) -> None:
        rows, n = 0 if self.test is None else len(self.test[1]), len(self.sizes)
        fits = owners.shape == (rows,) and owners.dtype.kind in "iu"
        require(fits, f"{self.name}: test_clients must be {rows} numbers of clients, one a test sample")
        outside = owners[(owners < -1) | (owners >= n)]
        require(not len(outside), f"{self.name}: test_clients names client {outside[:1]}, but there are {n}")
        object.__setattr__(self, "test_clients", owners.astype(np.int64))

    def _check_client_names(self, names: list[str]) -> None:
        n = len(self.sizes)
        fits = len(names) == n == len(set(names)) and all(isinstance(name, str) for name in names)
        require(fits, f"{self.name}: client_names must be {n} different words, one a client")
        object.__setattr__(self, "client_names", tuple(names))

    def _check_window(self, first: int, weights: np.ndarray) -> None:
        p, last = np.asarray(weights, np.float64), first + len(self.sizes)
        fits = p.ndim == 1 and 0 <= first <= last <= len(p)
        require(fits, f"{self.name}: clients {first}..{last - 1} are not among the {len(p)} that have weights")
        good = bool((p > 0).all()) and abs(float(p.sum()) - 1) < 1e-9
        require(good, f"{self.name}: the clients' weights must be above 0 and sum to one")
        object.__setattr__(self, "window", Window(int(first), p))

    def _check_weights(self, weights: np.ndarray) -> None:
        numbers = weights.dtype.kind in "fiub" and weights.shape == (rows := len(self.labels),)
        require(numbers, f"{self.name}: sample_weights must be {rows} numbers, one a sample, not {_shown(weights)}")
        weights = weights.astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise InputError(f"{self.name}: {self._place(bad[0])} has the weight {weights[bad[0]]}; it must be >= 0")
        nothing = np.flatnonzero(self._sums(weights) == 0)
        if len(nothing):
            raise InputError(f"{self.name}: all samples of client {nothing[0]} have weight 0")
        object.__setattr__(self, "sample_weights", weights)

    def _check_names(self, names: Sequence[str]) -> None:
        words = not isinstance(names, str) and all(isinstance(name, str) for name in names)
        require(words, f"{self.name}: feature_names = {names!r} must be a list of words")
        shape = self.features.shape[1:]
        require(shape == (len(names),), f"{self.name}: {len(names)} feature_names do not fit samples of shape {shape}")
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        require(twice is None, f"{self.name}: two features are called {twice!r}")
        object.__setattr__(self, "feature_names", tuple(names))

    def __len__(self) -> int:
        """The number of local clients."""
        return len(self.sizes)

    def __repr__(self) -> str:
        n = len(self)
        clients = f"{n} client{'s' * (n != 1)}"
        return f"{type(self).__name__}({self.name!r}, {clients}, {_about(int(self.sizes.sum()), self)})"

    @property
    def here(self) -> range:
        """The numbers of the local clients among all."""
        first = 0 if self.window is None else self.window.first
        return range(first, first + len(self.sizes))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, in order."""
        p = int(np.prod(self.features.shape[1:]))
        return tuple(f"x{j}" for j in range(p)) if self.feature_names is None else tuple(self.feature_names)

    @property
    def offsets(self) -> np.ndarray:
        """(n+1,): the first row of each client, and the end of the last one's rows."""
        return np.concatenate(([0], np.cumsum(self.sizes))).astype(np.int64)

    @property
    def weight_sums(self) -> np.ndarray:
        """(n,): the total weight of each client's samples; without weights, their number."""
        return self.sizes if self.sample_weights is None else self._sums(self.sample_weights)

    def _sums(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self.offsets[:-1])

    def client(self, i: int) -> Samples:
        """(features, labels) of client i, as views."""
        start, stop = self.offsets[i : i + 2]
        return self.features[start:stop], self.labels[start:stop]

    def steps(self, batch: int, epochs: int = 1) -> int:
        """The number of minibatch steps in `epochs` passes over a client of mean size, the same for all clients.

        Larger clients make fewer passes over their data with these steps, smaller clients more.
        """
        for key, value in (("batch", batch), ("epochs", epochs)):
            require(whole(value) and value >= 1, f"{key} = {value!r} must be a whole number >= 1")
        return epochs * ceil(float(np.mean(self.sizes)) / batch)

    def thinned(self, samples: int) -> Federated:
        """At most this many samples per client, evenly spaced among its own."""
        sizes = np.minimum(self.sizes, samples)
        kept = np.concatenate(
            [start + np.arange(k) * m // k for start, m, k in zip(self.offsets[:-1], self.sizes, sizes, strict=True)]
        )
        return self.keep(kept)

    def _place(self, row: int) -> str:
        """The name of a row in messages."""
        i = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"row {row - self.offsets[i]} of client {i}"

    @classmethod
    def of(
        cls,
        source: Any,
        labels: Any = None,
        *,
        client: Any = None,
        label: str | None = None,
        features: str | Sequence[str] | None = None,
        test: Any = None,
        held_out: float = 0.0,
        seed: int = 0,
        classes: int | Literal["auto"] | None = "auto",
        prepare: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        name: str = "data",
    ) -> Federated:
        """Convert samples from the usual formats.

        Parameters
        ----------
        source : Any
            A list of clients, a dict of them by name, Flower's FederatedDataset, or a file or folder of LEAF; a client
            is a pair (features, labels), a frame with a column of labels, a torch Dataset or DataLoader, or a dataset
            of Hugging Face, or {"train": ..., "test": ...} of these. Or one of these for all clients, with `client`.
        labels : array, optional
            Labels of the rows, if the source is an array of features.
        client : str or array, optional
            The client of each row of a single source: a column, or an id per row.
        label : str, optional
            The column of labels; None: 'label', 'labels', 'y' or 'target'.
        features : str or sequence of str, optional
            The columns of features; None: all others.
        test : Any, optional
            Test samples that no client holds, in one of these forms; or each client's own, as a list or a dict by
            name.
        held_out : float
            The fraction of every client's rows that becomes its test set, drawn with `seed`.
        seed : int
            Seed of the draw of held-out rows.
        classes : int or None
            The number of classes; None: labels are numbers. "auto": strings, booleans and whole numbers from 0 are
            classes, other numbers are a regression.
        prepare : callable, optional
            Converts a client's raw (features, labels) to numbers, for example a tokeniser.
        name : str
            The name of the data in messages.

        Returns
        -------
        Federated
        """
        from proxfed.data.sources import federated

        return federated(
            source, labels, client=client, label=label, features=features, test=test, held_out=held_out, seed=seed,
            classes=classes, prepare=prepare, name=name,
        )  # fmt: skip

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[Samples],
        test: Samples | None = None,
        classes: int | None = None,
        name: str = "data",
        feature_names: Sequence[str] | None = None,
        sample_weights: Sequence[np.ndarray] | None = None,
    ) -> Federated:
        """From the clients' own (A_i, b_i), and optionally the weights of their samples."""
        listed = isinstance(clients, Sequence)
        hint = ", which Federated.of takes" if isinstance(clients, Mapping) else ""
        pair = "(features, labels)"
        require(listed, f"{name}: clients must be a list of pairs {pair}, not {shown(clients)}{hint}")
        require(len(clients) > 0, f"{name}: there must be at least one client")
        for i, given in enumerate(clients):
            several = f" of {len(given)}" if isinstance(given, (tuple, list)) else ""
            fits = several == " of 2"
            require(fits, f"{name}: client {i} must be a pair {pair}, not {shown(given)}{several}")
        pairs = [_pair(A, b, f"{name}: client {i}") for i, (A, b) in enumerate(clients)]
        shape = pairs[0][0].shape[1:]
        for i, (A, b) in enumerate(pairs):
            require(len(A) > 0, f"{name}: client {i} holds no samples")
            require(
                A.shape[1:] == shape,
                f"{name}: samples of client {i} have shape {A.shape[1:]}, those of client 0 {shape}",
            )
            require(len(A) == len(b), f"{name}: client {i} has {len(A)} rows of features but {len(b)} labels")
        features, labels = stacked([A for A, _ in pairs]), np.concatenate([b for _, b in pairs])
        sizes = np.array([len(b) for _, b in pairs], np.int64)
        weights = None
        if sample_weights is not None:
            own = [np.asarray(w) for w in sample_weights]
            fit = len(own) == len(pairs) and all(w.shape == (m,) for w, m in zip(own, sizes, strict=True))
            require(fit, f"{name}: sample_weights must be an array for each client, with a number for each sample")
            weights = np.concatenate(own)
        return cls(features, labels, sizes, test, classes, name, feature_names, weights)

    def as_rows(self) -> Federated:
        """Each sample as one row of floats; bytes become 0..1 in float32."""
        test = None if self.test is None else (flat(self.test[0]), self.test[1])
        return replace(self, features=flat(self.features), test=test)

    def keep(self, kept: np.ndarray) -> Federated:
        """These rows only, ascending; clients that keep none are left out."""
        holders, sizes = np.unique(np.repeat(np.arange(len(self)), self.sizes)[kept], return_counts=True)
        weights = None if self.sample_weights is None else self.sample_weights[kept]
        names = None if self.client_names is None else [self.client_names[i] for i in holders]
        owners = self.test_clients
        if owners is not None and len(holders) < len(self):
            number = np.full(len(self) + 1, -1)  # the last entry belongs to no client
            number[holders] = np.arange(len(holders))
            owners = number[owners]
        return replace(
            self, features=self.features[kept], labels=self.labels[kept], sizes=sizes, sample_weights=weights,
            test_clients=owners, client_names=names,
        )  # fmt: skip

    @classmethod
    def split(cls, dataset: Dataset, parts: Sequence[np.ndarray]) -> Federated:
        """Split a dataset: client i gets the samples with the indices parts[i]."""
        sizes = np.array([len(part) for part in parts], np.int64)
        require(len(sizes) > 0, f"{dataset.name}: there must be at least one client")
        order, last = np.concatenate(parts), len(dataset.labels) - 1
        outside = order[(order < 0) | (order > last)]
        if len(outside):
            raise InputError(f"{dataset.name}: a client is given sample {outside[0]}, but the last one is {last}")
        features, labels, given = dataset.features[order], dataset.labels[order], dataset.sample_weights
        weights = None if given is None else np.asarray(given)[order]
        return cls(
            features, labels, sizes, dataset.test, dataset.classes, dataset.name, dataset.feature_names, weights,
            remark=dataset.remark,
        )  # fmt: skip


def counts(data: Federated) -> np.ndarray:
    """(n, classes): each client's number of samples by class; for labels -1/+1 the columns are -1 and +1."""
    here = len(data.labels) == data.sizes.sum()
    require(here, f"{data.name}: samples are read on demand, so there is nothing to count")
    if (found := class_counts(data)) is None:
        raise InputError(f"{data.name}: labels are numbers, not classes, so there is nothing to count")
    return found[1]


def class_counts(data: Federated) -> tuple[tuple[str, ...], np.ndarray] | None:
    """(names of the classes, each client's number of samples by class); None: labels are numbers."""
    if data.classes is not None:
        labels, names = data.labels, tuple(map(str, range(data.classes)))
    elif np.isin(data.labels, (-1, 1)).all():
        labels, names = (data.labels > 0).astype(np.int64), ("-1", "+1")
    else:
        return None
    n, classes = len(data), len(names)
    owners = np.repeat(np.arange(n), data.sizes)
    return names, np.bincount(owners * classes + labels, minlength=n * classes).reshape(n, classes)


def as_features(given: Any) -> Features:
    """An array unchanged, a scipy.sparse matrix as SparseRows; a non-numeric value is refused with its position."""
    if isinstance(given, SparseRows) or hasattr(given, "tocsr"):
        return SparseRows.of(given)
    array = np.asarray(given)
    if (place := _not_a_number(array)) is None:
        return array if array.dtype != object else array.astype(np.float64)
    names = getattr(given, "columns", ())
    column = ", ".join(repr(names[j]) if j < len(names) else str(j) for j in place[1:])
    held = f"row {place[0]}, column {column} holds {_plain(array, place)!r:.40}, which is not a number"
    raise InputError(f"features: {held}; proxfed.tables prepares such columns")


def _not_a_number(array: np.ndarray) -> tuple[int, ...] | None:
    """The position of the first value that is not a number, if there is one."""
    if array.dtype.kind in "biuf":
        return None
    numbers = (isinstance(value, (bool, np.bool_, Real)) for value in array.flat)
    first = next((k for k, good in enumerate(numbers) if not good), None)
    return None if first is None else tuple(map(int, np.unravel_index(first, array.shape)))


def _plain(array: np.ndarray, place: tuple[int, ...]) -> Any:
    """A value as a Python object instead of a numpy type."""
    value = array[place]
    return value.item() if isinstance(value, np.generic) else value


def _pair(features: Any, labels: Any, who: str) -> Samples:
    try:
        A, b = as_features(features), np.asarray(labels)
    except InputError as e:
        raise InputError(f"{who}: {e}") from e
    require(A.ndim > 0, f"{who}: features must be an array with a row a sample, not of shape {A.shape}")
    require(b.ndim == 1, f"{who}: labels must be one number a sample, not of shape {b.shape}")
    return A, b


def stacked(parts: Sequence[Features]) -> Features:
    """All rows stacked; sparse if one of the parts is."""
    if any(isinstance(part, SparseRows) for part in parts):
        return SparseRows.stack([SparseRows.of(part) for part in parts])
    return np.concatenate(parts)


def flat(features: Features) -> Features:
    """Each sample as one row of floats; bytes become 0..1 in float32."""
    if isinstance(features, SparseRows):
        return features
    if features.dtype == np.uint8:
        features = features / np.float32(255)
    return features.reshape(len(features), prod(features.shape[1:]))


def rows(data: Federated) -> Federated:
    """The same data with each sample as one row of floats, for linear models; bytes become 0..1 in float32."""
    return data.as_rows()


def _checked(
    name: str, features: Features, labels: np.ndarray, classes: int | None, place: Callable[[int], str]
) -> np.ndarray:
    """The labels, classes as int64; refused unless finite and in range. `place(row)` names a row in messages."""
    if (word := _not_a_number(labels)) is not None:
        held = f"{place(word[0])} has the label {_plain(labels, word)!r:.40}, which is not a number"
        raise InputError(f"{name}: {held}; for classes give 0, 1, ... (np.unique(labels, return_inverse=True)[1])")
    labels = labels if labels.dtype != object else labels.astype(np.float64)
    for what, values in (("a feature", features), ("a label", labels)):
        bad = _rows_not_finite(values)
        if len(bad):
            raise InputError(f"{name}: {place(bad[0])} has {what} that is NaN or infinite")
    if classes is None:
        return labels
    bad = np.flatnonzero((labels < 0) | (labels >= classes) | (labels != np.floor(labels)))
    if len(bad):
        raise InputError(f"{name}: {place(bad[0])} has label {labels[bad[0]]}, not a whole number in 0..{classes - 1}")
    return labels.astype(np.int64)


def _checked_sizes(sizes: np.ndarray, name: str) -> np.ndarray:
    """As int64."""
    require(sizes.ndim == 1, f"{name}: sizes must be one number a client, not of shape {sizes.shape}")
    numbers = sizes.dtype.kind in "iuf"
    fractions = np.flatnonzero(sizes != np.floor(sizes)) if numbers else np.arange(len(sizes))
    if len(fractions):
        i = int(fractions[0])
        raise InputError(f"{name}: sizes[{i}] = {sizes[i].item()!r} must be a whole number >= 1")
    return sizes.astype(np.int64)


def _about(samples: int, data: Dataset | Federated) -> str:
    """A short description without the samples themselves."""
    parts = [f"{samples} samples of shape {tuple(data.features.shape[1:])}"]
    parts += [] if data.classes is None else [f"{data.classes} classes"]
    parts += [] if data.test is None else [f"{len(data.test[1])} test samples"]
    return ", ".join(parts)


def _shown(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _rows_not_finite(values: Features) -> np.ndarray:
    if isinstance(values, SparseRows):
        return np.searchsorted(values.indptr, np.flatnonzero(~np.isfinite(values.values)), side="right") - 1
    if not np.issubdtype(values.dtype, np.inexact):
        return np.empty(0, np.int64)
    return np.flatnonzero(~np.isfinite(values).reshape(len(values), prod(values.shape[1:])).all(axis=1))
