"""Data as people have them become the same Federated, whatever held them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from proxfed import Federated
from proxfed.data import SparseRows
from proxfed.errors import InputError

RNG = np.random.default_rng(0)
SIZES = {"north": 6, "south": 4, "east": 5}
X = RNG.normal(size=(15, 3))
Y = RNG.integers(0, 3, 15)
Y[:3] = 0, 1, 2
IDS = np.repeat(list(SIZES), list(SIZES.values()))
PAIRS = {who: (X[who == IDS], Y[who == IDS]) for who in SIZES}


def same(found: Federated, expected: Federated) -> None:
    assert np.array_equal(found.features, expected.features)
    assert np.array_equal(found.labels, expected.labels)
    assert found.sizes.tolist() == expected.sizes.tolist()
    assert found.classes == expected.classes == 3


class Items(Dataset):
    """Only what torch asks of a Dataset."""

    def __init__(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(self.pair[1])

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return torch.from_numpy(self.pair[0][i]), int(self.pair[1][i])


class Stream(IterableDataset):
    def __init__(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        self.pair = pair

    def __iter__(self) -> Any:
        return iter(zip(torch.from_numpy(self.pair[0]), self.pair[1].tolist(), strict=True))


def tensors(pair: tuple[np.ndarray, np.ndarray]) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, pair))


def shuffled(pair: tuple[np.ndarray, np.ndarray]) -> DataLoader:
    return DataLoader(Items(pair), batch_size=4, shuffle=True, drop_last=True)


class Columns:
    """What `Federated.of` asks of a dataset of Hugging Face."""

    def __init__(self, columns: dict[str, Any], formatted: bool = False) -> None:
        self.columns, self.formatted = columns, formatted
        self.column_names = list(columns)

    @property
    def features(self) -> dict[str, Any]:
        class Label:
            num_classes = 3

        return {name: Label() if name == "label" else object() for name in self.columns}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def with_format(self, kind: str) -> Columns:
        assert kind == "numpy"
        return Columns(self.columns, True)

    def __getitem__(self, rows: slice) -> dict[str, np.ndarray]:
        assert self.formatted
        return {name: np.asarray(column)[rows] for name, column in self.columns.items()}


def columns(pair: tuple[np.ndarray, np.ndarray]) -> Columns:
    return Columns({"pixels": pair[0], "label": pair[1]})


class Named(Items):
    """Samples that are dicts, as Hugging Face's are in torch's format."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return {"pixels": x, "label": y}


FORMS = {
    "dicts": Named,
    "a loader of dicts": lambda pair: DataLoader(Named(pair), batch_size=2),
    "pairs": lambda pair: pair,
    "tensors": lambda pair: tuple(map(torch.from_numpy, pair)),
    "lists": lambda pair: (pair[0].tolist(), pair[1].tolist()),
    "TensorDataset": tensors,
    "Dataset": Items,
    "Subset": lambda pair: Subset(Items(pair), range(len(pair[1]))),
    "DataLoader": lambda pair: DataLoader(tensors(pair), batch_size=2),
    "shuffled": shuffled,
    "stream": lambda pair: DataLoader(Stream(pair), batch_size=2),
    "Hugging Face": columns,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_client_is_the_same_data(form: Any) -> None:
    expected = Federated.from_clients(list(PAIRS.values()), classes=3)
    before = torch.get_rng_state()
    same(Federated.of([form(pair) for pair in PAIRS.values()]), expected)
    by_name = Federated.of({who: form(pair) for who, pair in PAIRS.items()})
    same(by_name, expected)
    assert by_name.client_names == tuple(SIZES)
    assert torch.equal(torch.get_rng_state(), before)


FRAME = pandas.DataFrame(X, columns=["age", "pulse", "dose"]).assign(ill=Y, site=IDS)


@pytest.mark.parametrize("frame", [FRAME, polars.from_pandas(FRAME), pyarrow.Table.from_pandas(FRAME)], ids=str)
def test_a_frame_with_a_column_of_clients(frame: Any) -> None:
    found = Federated.of(frame, label="ill", client="site")
    order = ["east", "north", "south"]
    same(found, Federated.from_clients([PAIRS[who] for who in order], classes=3))
    assert found.client_names == tuple(order)
    assert found.feature_names == ("age", "pulse", "dose")
    two = Federated.of(frame, label="ill", client="site", features=["dose", "age"])
    assert np.array_equal(two.features, found.features[:, [2, 0]])


def test_arrays_with_an_id_for_each_row() -> None:
    order = RNG.permutation(15)
    ids = IDS[order].tolist()
    found = Federated.of(X[order], Y[order], client=ids)
    assert found.client_names == ("east", "north", "south")
    for i, who in enumerate(found.client_names):
        rows = [k for k, each in zip(order, ids, strict=True) if each == who]
        assert np.array_equal(found.client(i)[0], X[rows])
    same(Federated.of(Items((X[order], Y[order])), client=ids), found)


def test_a_sampler_says_which_samples_are_a_clients() -> None:
    parts = [[4, 2, 9], [0, 14]]
    loaders = [DataLoader(tensors((X, Y)), sampler=SubsetRandomSampler(part)) for part in parts]
    found = Federated.of(loaders, classes=3)
    same(found, Federated.from_clients([(X[sorted(part)], Y[sorted(part)]) for part in parts], classes=3))


def test_a_loader_that_pads() -> None:
    texts = [[3, 1], [4], [1, 5, 9]]

    def pad(items: list[Any]) -> Any:
        longest = max(len(tokens) for tokens, _ in items)
        return torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in items]), [y for _, y in items]

    samples = list(zip(texts, [0, 1, 1], strict=True))
    found = Federated.of([DataLoader(samples, collate_fn=pad)] * 2)
    assert found.features[:3].tolist() == [[3, 1, 0], [4, 0, 0], [1, 5, 9]]
    assert found.features.dtype.kind == "i"
    with pytest.raises(InputError, match=r"samples of client 0 differ in shape, such as \(1,\) and \(2,\): pad them"):
        Federated.of([Words(samples)])


class Words(Dataset):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]


def test_sparse_features_stay_sparse() -> None:
    found = Federated.of([(scipy.sparse.csr_matrix(A), b) for A, b in PAIRS.values()])
    assert isinstance(found.features, SparseRows)
    assert np.array_equal(found.features.toarray(), X)


# ---- Flower, Hugging Face, LEAF --------------------------------------------------------------------------------------


class Partitioner:
    num_partitions = 3

    def load_partition(self, i: int) -> Columns:
        return columns(list(PAIRS.values())[i])


class Partitions:
    """What `Federated.of` asks of Flower's FederatedDataset."""

    partitioners: ClassVar = {"train": Partitioner()}

    def load_partition(self, i: int, split: str) -> Columns:
        return self.partitioners[split].load_partition(i)


@pytest.mark.parametrize("source", [Partitions(), Partitioner()])
def test_partitions_of_flower(source: Any) -> None:
    same(Federated.of(source), Federated.from_clients(list(PAIRS.values()), classes=3))


def test_the_real_datasets_of_hugging_face() -> None:
    library = pytest.importorskip("datasets", reason="the library `datasets` is not installed")
    labels = library.ClassLabel(names=["a", "b", "c"])
    kinds = library.Features({"pixels": library.Sequence(library.Value("float64")), "label": labels})
    held = {
        who: library.Dataset.from_dict({"pixels": A.tolist(), "label": b.tolist()}, features=kinds)
        for who, (A, b) in PAIRS.items()
    }
    single = [(A.astype(np.float32), b) for A, b in PAIRS.values()]  # what the library makes of floats
    same(Federated.of(held), Federated.from_clients(single, classes=3))
    parts = {who: given.train_test_split(0.25, seed=0) for who, given in held.items()}
    found = Federated.of(parts)
    assert len(found.labels) + len(found.test[1]) == 15
    whole = library.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "site": IDS.tolist()})
    assert Federated.of(whole, client="site").client_names == ("east", "north", "south")


def test_the_real_partitions_of_flower() -> None:
    library = pytest.importorskip("datasets", reason="the library `datasets` is not installed")
    whole = library.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "site": IDS.tolist()})
    flower = pytest.importorskip("flwr_datasets.partitioner", reason="the library `flwr-datasets` is not installed")
    partitioner = flower.NaturalIdPartitioner("site")
    partitioner.dataset = whole
    assert sorted(Federated.of(partitioner, features="x").sizes.tolist()) == [4, 5, 6]


def leaf(pairs: dict[str, Any]) -> str:
    users = {who: {"x": np.asarray(A).tolist(), "y": np.asarray(b).tolist()} for who, (A, b) in pairs.items()}
    counts = [len(user["y"]) for user in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users})


def test_leaf(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(leaf(PAIRS))
    expected = Federated.from_clients(list(PAIRS.values()), classes=3)
    same(Federated.of(tmp_path / "all.json"), expected)
    for part in ("train", "test"):
        (tmp_path / "both" / part).mkdir(parents=True)
    for k, (who, pair) in enumerate(PAIRS.items()):
        (tmp_path / "both" / "train" / f"{k}.json").write_text(leaf({who: pair}))
    few = {who: (A[:2], b[:2]) for who, (A, b) in PAIRS.items() if who != "south"}
    (tmp_path / "both" / "test" / "0.json").write_text(leaf(few))
    found = Federated.of(str(tmp_path / "both"))
    same(found, expected)
    assert found.test_clients.tolist() == [0, 0, 2, 2]
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(InputError, match=r"other\.json is not a file of LEAF"):
        Federated.of(tmp_path / "other.json")


def test_texts_are_prepared_by_the_user(tmp_path: Path) -> None:
    lines = {"hamlet": (["to be", "or no"], ["o", "t"]), "ophelia": (["my lo"], ["r"])}
    (tmp_path / "text.json").write_text(leaf(lines))

    def codes(x: Any, y: Any) -> tuple[Any, Any]:
        return [[ord(c) - 32 for c in text] for text in x], [ord(c) - 97 for c in y]

    found = Federated.of(tmp_path / "text.json", prepare=codes, classes=26)
    assert found.features.tolist()[2] == [ord(c) - 32 for c in "my lo"]
    assert found.features.dtype.kind == "i"
    assert found.labels.tolist() == [14, 19, 17]


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "found", "classes"),
    [
        (["b", "a", "b"], [1, 0, 1], 2),
        ([True, False, True], [1, 0, 1], 2),
        ([0, 2, 1], [0, 2, 1], 3),
        ([0.0, 2.0, 1.0], [0, 2, 1], None),
        ([-1, 1, 1], [-1, 1, 1], None),
    ],
)
def test_what_labels_are(labels: Any, found: Any, classes: int | None) -> None:
    data = Federated.of([(np.ones((3, 2)), labels)])
    assert data.labels.tolist() == found
    assert data.classes == classes
    if classes == 3:
        assert Federated.of([(np.ones((3, 2)), labels)], classes=None).classes is None
        assert Federated.of([(np.ones((3, 2)), labels)], classes=7).classes == 7


# ---- test sets -------------------------------------------------------------------------------------------------------


def test_test_sets_of_clients() -> None:
    few = {who: (A[:2], b[:2]) for who, (A, b) in PAIRS.items()}
    given = [
        Federated.of(PAIRS, test=few),
        Federated.of(PAIRS, test=list(few.values())),
        Federated.of({who: {"train": PAIRS[who], "test": few[who]} for who in PAIRS}),
    ]
    for data in given:
        assert data.test_clients.tolist() == [0, 0, 1, 1, 2, 2]
        assert np.array_equal(data.test[0], np.concatenate([A for A, _ in few.values()]))
    nobodys = Federated.of(PAIRS, test=(X[:4], Y[:4]))
    assert nobodys.test_clients is None
    assert len(nobodys.test[1]) == 4


def test_a_part_of_every_client_is_held_out() -> None:
    data = Federated.of(PAIRS, held_out=0.4)
    assert data.sizes.tolist() == [4, 3, 3]
    assert data.test_clients.tolist() == [0, 0, 1, 2, 2]
    for i, (A, _) in enumerate(PAIRS.values()):
        both = np.concatenate([data.client(i)[0], data.test[0][data.test_clients == i]])
        assert np.array_equal(np.sort(both, axis=0), np.sort(A, axis=0))
    again, other = Federated.of(PAIRS, held_out=0.4), Federated.of(PAIRS, held_out=0.4, seed=1)
    assert np.array_equal(again.features, data.features)
    assert not np.array_equal(other.features, data.features)


def test_clients_that_are_left_out_take_their_test_samples_along() -> None:
    data = Federated.of(PAIRS, held_out=0.4).keep(np.arange(4, 10))  # without the first
    assert data.client_names == ("south", "east")
    assert data.test_clients.tolist() == [-1, -1, 0, 1, 1]


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a number": ([1, 2], {}, "client 0 must be a pair"),
    "an array": (X, {}, "does not say which client its samples belong to"),
    "a frame": (FRAME, {}, "does not say which client its samples belong to"),
    "three": ([(X, Y, Y)], {}, "client 0 must give pairs"),
    "lengths": ([(X, Y[:3])], {}, r"features of shape \(15, 3\) and labels of shape \(3,\)"),
    "no file": ("nowhere.json", {}, "'nowhere.json' does not exist"),
    "no column": (FRAME, {"client": "town"}, "no column 'town', only age"),
    "no labels": (FRAME, {"client": "site"}, "no column called 'label' or"),
    "words": (
        FRAME.assign(drug="a"),
        {"client": "site", "label": "ill"},
        "column 'drug' of the source is not one number",
    ),
    "shapes": ([(X, Y), (X[:, :2], Y)], {}, r"client 1 have shape \(2,\), those of client 0 \(3,\)"),
    "nobody": ({}, {}, "at least one client"),
    "a stranger": (PAIRS, {"test": {"west": (X, Y)}}, "test has samples of 'west'"),
    "two tests": (PAIRS, {"test": (X, Y), "held_out": 0.2}, "test and held_out = 0.2: give one of them"),
    "held out": (PAIRS, {"held_out": 1.5}, "held_out = 1.5 must be"),
    "ids": (X, {"labels": Y, "client": [1, 2]}, r"an id for each of 15 rows, not of shape \(2,\)"),
    "no ids": (X, {"labels": Y}, "the rows have no clients"),
    "an empty one": ([(X, Y), (X[:0], Y[:0])], {}, "client 1 holds no samples"),
    "NaN": ([(X * np.nan, Y)], {}, "NaN or infinite"),
    "a gap": (X, {"labels": Y, "client": [None, *range(14)]}, "row 0 has no client"),
}


@pytest.mark.parametrize(("source", "options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_one_sentence(source: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        Federated.of(source, **options)
    assert "\n" not in str(refusal.value)
