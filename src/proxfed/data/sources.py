"""Converts samples from the usual formats: pairs, frames, datasets of torch, Hugging Face, Flower and LEAF.

Nothing of torch, pandas or Hugging Face is imported: objects are recognised by their methods. The public entry point is
`Federated.of`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from proxfed.data.federated import Federated, as_features, stacked
from proxfed.data.sparse_rows import Features
from proxfed.errors import InputError, require, shown
from proxfed.keyed_random import generator

Prepare = Callable[[Any, Any], tuple[Any, Any]]
"""A client's raw (features, labels) -> (features, labels) for the model."""

LABELS = ("label", "labels", "y", "target")
"""Default names of a label column."""


class ClientSamples(NamedTuple):
    """Samples of a client."""

    features: Features
    labels: np.ndarray
    names: tuple[str, ...] | None = None
    """The names of the columns of features."""
    classes: int | None = None
    """The number of classes according to the source."""


@dataclass(frozen=True)
class Reader:
    """Settings for reading samples from a source."""

    name: str
    """The name of the data in messages."""
    label: str | None
    """The column of labels; None: the first of LABELS that exists."""
    features: str | Sequence[str] | None
    """The columns of features; None: all others."""
    prepare: Prepare | None

    def read(self, given: Any, who: str, without: str | None = None) -> ClientSamples:
        """The samples of one source; `without`: a column that is not a feature."""
        columns = _columns(given)
        if columns is not None:
            found = self._of_columns(columns, who, without)
        elif _is_loader(given):
            found = self._pair(_of_loader(given), who)
        elif hasattr(given, "tensors"):  # torch's TensorDataset: no need to read sample by sample
            found = self._pair(given.tensors, who)
        elif isinstance(given, (tuple, list)):
            found = self._pair(given, who)
        elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "dtype"):
            found = self._of_items([given[i] for i in range(len(given))], who)
        else:
            forms = "a pair (features, labels), a frame, a torch Dataset or DataLoader, or a dataset of Hugging Face"
            raise InputError(f"{self.name}: {who} must be {forms}, not {shown(given)}")
        return self._prepared(found, who)

    def _pair(self, given: Any, who: str) -> ClientSamples:
        if isinstance(given, Mapping):  # a batch by name
            return self._of_columns(Columns({str(k): _array(v) for k, v in given.items()}), who, None)
        several = len(given)
        require(several == 2, f"{self.name}: {who} must give pairs (features, labels), not {several} things")
        return ClientSamples(given[0], given[1])

    def _of_items(self, items: list[Any], who: str) -> ClientSamples:
        require(len(items) > 0, f"{self.name}: {who} holds no samples")
        if isinstance(items[0], Mapping):
            columns = {str(k): _stack([item[k] for item in items]) for k in items[0]}
            return self._of_columns(Columns(columns), who, None)
        pair = isinstance(items[0], (tuple, list)) and len(items[0]) == 2
        require(pair, f"{self.name}: a sample of {who} must be a pair (features, label), not {shown(items[0])}")
        shapes = {np.shape(x) for x, _ in items}
        lengths = f"of {who} differ in shape, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
        require(len(shapes) == 1, f"{self.name}: samples {lengths}: pad them")
        return ClientSamples(_stack([x for x, _ in items]), _stack([y for _, y in items]))

    def _of_columns(self, columns: Columns, who: str, without: str | None) -> ClientSamples:
        label = self.label if self.label is not None else next((name for name in LABELS if name in columns), None)
        there = ", ".join(columns)
        if label is None or label not in columns:
            asked = f"{label!r}" if label is not None else "called " + " or ".join(map(repr, LABELS))
            raise InputError(f"{self.name}: {who} has no column {asked}, only {there}: set label")
        chosen = [self.features] if isinstance(self.features, str) else self.features
        names = [n for n in columns if n not in (label, without)] if chosen is None else list(chosen)
        missing = next((name for name in names if name not in columns), None)
        require(missing is None, f"{self.name}: {who} has no column {missing!r}, only {there}")
        require(len(names) > 0, f"{self.name}: {who} has no features beside its labels")
        parts = [columns[name] for name in names]
        if len(parts) == 1:
            return ClientSamples(parts[0] if np.ndim(parts[0]) > 1 or self.prepare else np.asarray(parts[0])[:, None],
                        columns[label], None, columns.classes.get(label))  # fmt: skip
        for name, part in zip(names, parts, strict=True):
            numbers = np.asarray(part).ndim == 1 and np.asarray(part).dtype.kind in "biuf"
            hint = "choose columns by features; proxfed.tables prepares words"
            require(numbers, f"{self.name}: column {name!r} of {who} is not one number a sample: {hint}")
        return ClientSamples(np.column_stack(parts), columns[label], tuple(names), columns.classes.get(label))

    def _prepared(self, held: ClientSamples, who: str) -> ClientSamples:
        features, labels = held.features, held.labels
        if self.prepare is not None:
            made = self.prepare(features, labels)
            pair = isinstance(made, tuple) and len(made) == 2
            require(pair, f"{self.name}: prepare must return a pair (features, labels), not {shown(made)}")
            features, labels = made
        try:
            features = as_features(_array(features) if not hasattr(features, "tocsr") else features)
        except InputError as e:
            raise InputError(f"{self.name}: {who}: {e}") from e
        labels = np.asarray(_array(labels))
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        fits = features.ndim > 1 and labels.ndim == 1 and len(features) == len(labels)
        have = f"features of shape {features.shape} and labels of shape {labels.shape}"
        require(fits, f"{self.name}: {who} has {have}, but must have a row and one label for each sample")
        return held._replace(features=features, labels=labels)


class Columns(dict[str, Any]):
    """Columns by name, and their declared numbers of classes."""

    classes: dict[str, int]

    def __init__(self, given: Mapping[str, Any], classes: Mapping[str, int] | None = None) -> None:
        super().__init__(given)
        self.classes = dict(classes or {})


def _columns(given: Any) -> Columns | None:
    """The columns of a frame of pandas, polars or Arrow, or a Hugging Face dataset; None for other types."""
    if hasattr(given, "column_names") and hasattr(given, "with_format"):  # Hugging Face's
        found = given.with_format("numpy")[:]
        kinds = getattr(given, "features", None) or {}
        classes = {name: getattr(kind, "num_classes", None) for name, kind in dict(kinds).items()}
        return Columns({name: found[name] for name in given.column_names},
                       {name: int(count) for name, count in classes.items() if count})  # fmt: skip
    names = getattr(given, "column_names", None) or getattr(given, "columns", None)
    if names is None or not hasattr(given, "__getitem__") or hasattr(given, "tocsr"):
        return None
    return Columns({str(name): np.asarray(given[name]) for name in names})


def _is_loader(given: Any) -> bool:
    """torch's DataLoader."""
    return hasattr(given, "dataset") and hasattr(given, "collate_fn")


def _of_loader(loader: Any) -> Any:
    """All samples that it would load, as one batch in the order of its dataset: not shuffled."""
    if hasattr(loader.dataset, "__iter__") and not hasattr(loader.sampler, "__len__"):  # a stream, without an order
        return loader.collate_fn(list(loader.dataset))
    batches = getattr(loader, "batch_sampler", None)
    with _kept_generator():
        if batches is None or hasattr(batches, "sampler"):
            rows = sorted(loader.sampler)
        else:  # the user's own batches
            rows = sorted(i for batch in batches for i in batch)
    return loader.collate_fn([loader.dataset[i] for i in rows])


@contextmanager
def _kept_generator() -> Iterator[None]:
    """Restore torch's generator, which a shuffling loader draws from."""
    import torch

    with torch.random.fork_rng(devices=[]):
        yield


def _array(value: Any) -> Any:
    """A tensor on any device, or a list of tensors, as an array."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, list) and value and hasattr(value[0], "detach"):
        return _stack(value)
    return value if hasattr(value, "dtype") else np.asarray(value)


def _stack(values: list[Any]) -> np.ndarray:
    return np.stack([np.asarray(_array(value)) for value in values])


# ---- clients and test sets -------------------------------------------------------------------------------------------


def federated(
    source: Any,
    labels: Any = None,
    *,
    client: str | Sequence[Any] | np.ndarray | None,
    label: str | None,
    features: str | Sequence[str] | None,
    test: Any,
    held_out: float,
    seed: int,
    classes: int | Literal["auto"] | None,
    prepare: Prepare | None,
    name: str,
) -> Federated:
    """The implementation of `Federated.of`."""
    reader = Reader(name, label, features, prepare)
    if isinstance(source, (str, Path)):
        source, test = _leaf(Path(source).expanduser(), test, name)
    clients: dict[str, Any]
    if client is not None or labels is not None:
        clients = _by_client(reader, source, labels, client)
    else:
        clients = dict(_clients(source, name))
    require(len(clients) > 0, f"{name}: there must be at least one client")
    own_tests = {who: each["test"] for who, each in clients.items() if _has_test(each)}
    held = {
        who: each
        if isinstance(each, ClientSamples)
        else reader.read(each["train"] if _has_test(each) else each, f"client {who}")
        for who, each in clients.items()
    }
    asked = [
        what for what, given in (("test", test is not None), ("held_out", held_out), ("client", own_tests)) if given
    ]
    words = {"test": "test", "held_out": f"held_out = {held_out!r}", "client": "clients with a test set"}
    require(len(asked) < 2, f"{name}: {' and '.join(words[what] for what in asked)}: give one of them")
    tests, shared_test = _tests(reader, own_tests or test, list(held))
    if held_out:
        held, tests = _hold_out(held, held_out, seed, name)
    return _joined(held, tests, shared_test, classes, name)


def _has_test(given: Any) -> bool:
    return isinstance(given, Mapping) and set(given) == {"train", "test"}


def _clients(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(name, samples) of each client."""
    if hasattr(source, "load_partition"):  # flwr-datasets
        count, split = _partitions(source, name)
        for i in range(count):
            yield str(i), source.load_partition(i, split) if split else source.load_partition(i)
    elif isinstance(source, Mapping):
        yield from ((str(who), each) for who, each in source.items())
    elif isinstance(source, (list, tuple)):
        yield from ((str(i), each) for i, each in enumerate(source))
    else:
        whose = "client names the column, or gives the id of each row"
        raise InputError(f"{name}: {shown(source)} does not say which client its samples belong to: {whose}")


def _partitions(source: Any, name: str) -> tuple[int, str | None]:
    """(number, split) of the partitions of Flower's FederatedDataset or Partitioner."""
    if hasattr(source, "num_partitions"):
        return int(source.num_partitions), None
    splits = dict(getattr(source, "partitioners", {}))
    split = "train" if "train" in splits or len(splits) != 1 else next(iter(splits))
    require(split in splits, f"{name}: {shown(source)} has no partitioner of the split 'train'")
    return int(splits[split].num_partitions), split


def _by_client(reader: Reader, source: Any, labels: Any, client: Any) -> dict[str, Any]:
    """The samples of one source, by the client of each row."""
    name = reader.name
    named = isinstance(client, str)
    columns = _columns(source) if named else None
    if named:
        there = columns is not None and client in columns
        only = f", only {', '.join(columns)}" if columns is not None else ": it has no columns"
        require(there, f"{name}: there is no column {client!r}{only}")
    ids = np.asarray(_array(columns[client] if columns is not None else client)) if client is not None else None
    whole = reader.read(source if labels is None else (source, labels), "the source", client if named else None)
    if ids is None:
        raise InputError(f"{name}: the rows have no clients: give client, an id for each row")
    fits = ids.ndim == 1 and len(ids) == len(whole.labels)
    require(fits, f"{name}: client must have an id for each of {len(whole.labels)} rows, not of shape {ids.shape}")
    gaps = [k for k, each in enumerate(ids.tolist()) if each is None or each != each]
    require(not gaps, f"{name}: row {gaps[0] if gaps else 0} has no client")
    found, owner = np.unique(ids, return_inverse=True)
    rows = [np.flatnonzero(owner == k) for k in range(len(found))]
    return {
        str(who): whole._replace(features=whole.features[r], labels=whole.labels[r])
        for who, r in zip(found.tolist(), rows, strict=True)
    }


def _leaf(path: Path, test: Any, name: str) -> tuple[dict[str, Any], Any]:
    """LEAF's JSON: a file, a folder of files, or a folder with the subfolders train and test."""
    require(path.exists(), f"{name}: {str(path)!r} does not exist")
    both = path.is_dir() and (path / "train").is_dir() and (path / "test").is_dir()
    if not both:
        return _users(path, name), test
    require(test is None, f"{name}: {path} has a test set for each client, so test has no meaning")
    return _users(path / "train", name), _users(path / "test", name)


def _users(path: Path, name: str) -> dict[str, Any]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    require(len(files) > 0, f"{name}: there is no .json file in {path}")
    found: dict[str, Any] = {}
    for file in files:
        try:
            users = json.loads(file.read_text())["user_data"]
            pairs = {str(user): (given["x"], given["y"]) for user, given in users.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            form = '{"user_data": {user: {"x": [...], "y": [...]}}}'
            raise InputError(f"{name}: {file} is not a file of LEAF, {form} ({type(e).__name__}: {e})") from e
        twice = next((user for user in pairs if user in found), None)
        require(twice is None, f"{name}: two files in {path} have samples of {twice!r}")
        found |= pairs
    return found


def _tests(reader: Reader, test: Any, clients: list[str]) -> tuple[dict[str, ClientSamples], ClientSamples | None]:
    """(the clients' own test sets, the test set that no client holds)."""
    if test is None or len(test) == 0:
        return {}, None
    if isinstance(test, list):
        count = len(test) == len(clients)
        require(count, f"{reader.name}: test has {len(test)} sets for {len(clients)} clients")
        test = dict(zip(clients, test, strict=True))
    if not isinstance(test, Mapping):
        return {}, reader.read(test, "the test set")
    stranger = next((str(who) for who in test if str(who) not in clients), None)
    require(stranger is None, f"{reader.name}: test has samples of {stranger!r}, which is not one of the clients")
    return {str(who): reader.read(each, f"the test set of client {who}") for who, each in test.items()}, None


def _hold_out(
    held: dict[str, ClientSamples], part: float, seed: int, name: str
) -> tuple[dict[str, ClientSamples], dict[str, ClientSamples]]:
    """(kept, held out): the same fraction of every client's rows, rounded down."""
    require(0 < part < 1, f"{name}: held_out = {part!r} must be at least 0 and below 1")
    kept: dict[str, ClientSamples] = {}
    out: dict[str, ClientSamples] = {}
    for k, (who, own) in enumerate(held.items()):
        m = len(own.labels)
        order = generator(seed, "held out", k).permutation(m)
        for there, rows in ((out, np.sort(order[: int(part * m)])), (kept, np.sort(order[int(part * m) :]))):
            there[who] = own._replace(features=own.features[rows], labels=own.labels[rows])
    require(
        any(len(own.labels) for own in out.values()), f"{name}: held_out = {part} is less than one row of every client"
    )
    return kept, {who: own for who, own in out.items() if len(own.labels)}


def _joined(
    held: dict[str, ClientSamples],
    tests: dict[str, ClientSamples],
    shared_test: ClientSamples | None,
    classes: Any,
    name: str,
) -> Federated:
    clients = list(held)
    first = held[clients[0]]
    for who, own in held.items():
        require(len(own.labels) > 0, f"{name}: client {who} holds no samples")
        same = own.features.shape[1:] == first.features.shape[1:]
        shapes = f"have shape {own.features.shape[1:]}, those of client {clients[0]} {first.features.shape[1:]}"
        require(same, f"{name}: samples of client {who} {shapes}")
    in_test = [*tests.values()] if shared_test is None else [shared_test]
    labels, count = _numbered([*held.values(), *in_test], classes, name)
    test = owners = None
    if in_test:
        test = (stacked([each.features for each in in_test]), np.concatenate(labels[len(held) :]))
    if tests:
        owners = np.repeat([clients.index(who) for who in tests], [len(each.labels) for each in tests.values()])
    data = Federated(
        stacked([own.features for own in held.values()]),
        np.concatenate(labels[: len(held)]),
        np.array([len(own.labels) for own in held.values()]),
        test,
        count,
        name,
        first.names,
    )
    return replace(data, test_clients=owners, client_names=clients)


def _numbered(parts: list[ClientSamples], classes: Any, name: str) -> tuple[list[np.ndarray], int | None]:
    """(the labels of every part as numbers, the number of classes).

    Strings, booleans and whole numbers from 0 are classes; other numbers are a regression.
    """
    labels = [part.labels for part in parts]
    if any(each.dtype.kind in "UO" for each in labels):
        words = {str(value) for each in labels for value in each.tolist()}
        known = {word: k for k, word in enumerate(sorted(words))}
        fits = classes in ("auto", None, len(known))
        require(fits, f"{name}: classes = {classes}, but the labels are {len(known)} words")
        return [np.array([known[str(value)] for value in each.tolist()], np.int64) for each in labels], len(known)
    if classes != "auto":
        return labels, classes
    said = max((part.classes or 0 for part in parts), default=0)
    whole = all(each.dtype.kind in "iub" for each in labels) and all(int(each.min()) >= 0 for each in labels)
    return labels, max(said, 1 + max(int(each.max()) for each in labels)) if whole else None
