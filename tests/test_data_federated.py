"""Who holds what, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from proxfed.data import DATASETS, FILES, Dataset, Federated, check, load
from proxfed.data.digits import digits
from proxfed.data.directory import Collection, Sum, data_directory
from proxfed.data.federated import counts, rows
from proxfed.data.partitions import IID, NaturalPartition
from proxfed.errors import InputError


def clients(*sizes: int, width: int = 3):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(m, width)), rng.normal(size=m)) for m in sizes]


def test_every_client_gets_back_what_it_brought() -> None:
    brought = clients(4, 1, 7)
    data = Federated.from_clients(brought)
    assert len(data) == 3
    assert data.sizes.tolist() == [4, 1, 7]
    assert data.offsets.tolist() == [0, 4, 5, 12]
    for i, (A, b) in enumerate(brought):
        np.testing.assert_array_equal(data.client(i)[0], A)
        np.testing.assert_array_equal(data.client(i)[1], b)


def test_tensors_are_as_good_as_arrays() -> None:
    A, b = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])
    for data in (
        Federated(A, b, torch.tensor([2, 1]), (A, b), classes=2),  # type: ignore[arg-type]
        Federated.from_clients([(A[:2], b[:2]), (A[2:], b[2:])], (A, b), classes=2),  # type: ignore[list-item, arg-type]
    ):
        assert data.client(1)[0].tolist() == [[4, 5]]
        assert data.sizes.tolist() == [2, 1]
        assert data.test is not None
        assert isinstance(data.test[0], np.ndarray)


def test_split_hands_out_the_samples_of_each_part() -> None:
    features, labels = np.arange(10.0)[:, None], np.arange(10)
    dataset = Dataset(features, labels, features[:2], labels[:2], classes=10, name="ten")
    data = Federated.split(dataset, [np.array([7, 1]), np.array([3])])
    assert data.client(0)[1].tolist() == [7, 1]
    assert data.client(1)[0].tolist() == [[3.0]]
    assert data.test is not None
    assert data.test[1].tolist() == [0, 1]
    assert data.name == "ten"
    assert data.classes == 10


def test_classes_are_whole_numbers_and_other_labels_stay_as_they_are() -> None:
    A = np.zeros((3, 1))
    assert Federated.from_clients([(A, np.array([0.0, 2.0, 1.0]))], classes=3).labels.dtype == np.int64
    assert Federated.from_clients([(A, np.array([0, 2, 1], np.uint8))], classes=3).labels.dtype == np.int64
    assert Federated.from_clients([(A, np.array([0.5, -1.0, 1.0]))]).labels.tolist() == [0.5, -1.0, 1.0]


def test_an_empty_client_is_named() -> None:
    with pytest.raises(InputError, match="client 1 holds no samples"):
        Federated.from_clients(clients(2, 0, 3))
    with pytest.raises(InputError, match="client 2 holds no samples"):
        Federated(np.zeros((3, 1)), np.zeros(3), np.array([1, 2, 0]))
    dataset = Dataset(np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(InputError, match="client 0 holds no samples"):
        Federated.split(dataset, [np.array([], np.int64), np.array([0])])
    with pytest.raises(InputError, match="at least one client"):
        Federated.split(dataset, [])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("column", "what"), [(0, "a feature"), (1, "a label")])
def test_a_number_that_is_not_finite_is_located(bad: float, column: int, what: str) -> None:
    brought = clients(4, 5)
    brought[1][column][2] = bad
    with pytest.raises(InputError, match=f"row 2 of client 1 has {what} that is NaN or infinite"):
        Federated.from_clients(brought)


@pytest.mark.parametrize("label", [-1, 3, 0.5])
def test_a_label_that_is_no_class_is_located(label: float) -> None:
    A = np.zeros((2, 1))
    with pytest.raises(InputError, match=r"row 1 of client 1 has label .*, not a whole number in 0..2"):
        Federated.from_clients([(A, np.array([0, 2])), (A, np.array([1, label]))], classes=3)
    with pytest.raises(InputError, match="row 0 of the test set"):
        Federated.from_clients([(A, np.array([0, 2]))], (A, np.array([label, 0])), classes=3)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="samples of client 1 have shape"):
        Federated.from_clients(clients(2) + clients(2, width=4))
    with pytest.raises(InputError, match="client 0 has 2 rows of features but 3 labels"):
        Federated.from_clients([(np.zeros((2, 1)), np.zeros(3))])
    with pytest.raises(InputError, match="the test set"):
        Federated.from_clients(clients(2), test=(np.zeros((2, 4)), np.zeros(2)))
    with pytest.raises(InputError, match="the sizes add up to 4"):
        Federated(np.zeros((3, 1)), np.zeros(3), np.array([4]))
    with pytest.raises(InputError, match="sample 3, but the last one is 2"):
        Federated.split(Dataset(np.zeros((3, 1)), np.zeros(3)), [np.array([3])])
    with pytest.raises(InputError, match="one number a sample"):
        Federated.from_clients([(np.zeros((2, 1)), np.zeros((2, 2)))])


def test_digits_are_the_published_counts() -> None:
    data = digits()
    assert data.features.shape == (1438, 64)
    assert data.test_features is not None
    assert data.test_features.shape == (359, 64)
    assert data.test_labels is not None
    # class counts of the test part of the UCI data, from its documentation
    counts = np.bincount(np.concatenate([data.labels, data.test_labels]), minlength=10)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.features.min() == 0
    assert data.features.max() == 1


def test_digits_can_be_told_apart() -> None:
    """The nearest of the ten class means is right nine times out of ten, if labels belong to their images."""
    data = load("digits", IID(5, seed=3))
    assert data.test is not None
    A, b = data.features, data.labels
    means = np.stack([A[b == k].mean(0) for k in range(10)])
    near = ((data.test[0][:, None] - means) ** 2).sum(2).argmin(1)
    assert (near == data.test[1]).mean() > 0.85


def test_load_says_what_is_wrong() -> None:
    with pytest.raises(InputError, match="there is no dataset 'digit'; did you mean 'digits'"):
        load("digit", IID(2))
    with pytest.raises(
        InputError,
        match=r"digits: needs a partition, such as PARTITIONS\['iid'\]\(num_partitions=10\); there are iid, ",
    ):
        load("digits")
    with pytest.raises(InputError, match="comes with its clients"):
        load("synthetic", IID(2))
    with pytest.raises(InputError, match="unknown option 'alhpa'; did you mean 'alpha'"):
        load("synthetic", alhpa=1.0)
    with pytest.raises(InputError, match="digits: unknown option 'size'; it takes none"):
        load("digits", IID(2), size=3)
    with pytest.raises(InputError, match="own: the option 'path' is missing"):
        load("own")
    with pytest.raises(InputError, match="no column with the owner"):
        load("digits", NaturalPartition())


def test_load_takes_lists_of_indices_and_options() -> None:
    assert load("digits", [np.arange(3), np.arange(3, 10)]).sizes.tolist() == [3, 7]
    assert len(load("synthetic", clients=4, seed=1)) == 4


def test_every_dataset_says_what_it_is() -> None:
    for name, loader in DATASETS.items():
        assert loader.__doc__, name


def test_the_data_directory_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROXFED_DATA", raising=False)
    assert data_directory() == tmp_path / "cache" / "proxfed"
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path / "variable"))
    assert data_directory() == tmp_path / "variable"
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"
    monkeypatch.delenv("PROXFED_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / ".cache" / "proxfed"


A9A = Collection(("a9a", "elsewhere"), "the LIBSVM data page", {"a9a": Sum(hashlib.sha256(b"content").hexdigest())})


def test_a_missing_file_says_which_whence_and_where_to(tmp_path) -> None:
    with pytest.raises(InputError) as error:
        A9A.find("a9a", tmp_path)
    for part in ("no a9a (or .gz, .bz2)", "the LIBSVM data page", str(tmp_path / "a9a"), "PROXFED_DATA"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["a9a/a9a", "a9a/a9a.gz", "a9a/a9a.bz2", "elsewhere/a9a"])
def test_a_file_is_found_in_any_of_its_forms_and_folders(tmp_path, place: str) -> None:
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_bytes(b"")
    assert A9A.find("a9a", tmp_path) == tmp_path / place


@pytest.mark.parametrize(("name", "pack"), [("a9a", bytes), ("a9a.gz", gzip.compress), ("a9a.bz2", bz2.compress)])
def test_sums_are_of_the_content_whatever_the_compression(tmp_path, name: str, pack) -> None:
    assert A9A.check(tmp_path) == []
    (tmp_path / "a9a").mkdir()
    path = tmp_path / "a9a" / name
    path.write_bytes(pack(b"content"))
    assert A9A.check(tmp_path) == [(path, "as published")]
    path.write_bytes(pack(b"contents"))
    assert A9A.check(tmp_path) == [(path, "differs")]


def test_a_damaged_file_differs(tmp_path) -> None:
    (tmp_path / "a9a").mkdir()
    path = tmp_path / "a9a" / "a9a.gz"
    path.write_bytes(gzip.compress(b"content")[:-9])
    assert A9A.check(tmp_path) == [(path, "differs")]


def test_without_a_sum_of_this_form_the_verdict_is_open(tmp_path) -> None:
    packed = gzip.compress(b"content", mtime=0)
    files = Collection(("x",), "", {"a": Sum(compressed=hashlib.md5(packed).hexdigest()), "b": Sum("0" * 32)})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.gz").write_bytes(packed)
    assert [state for _, state in files.check(tmp_path)] == ["as published", "missing"]
    (tmp_path / "x" / "a.gz").write_bytes(gzip.compress(b"content", mtime=1))
    assert [state for _, state in files.check(tmp_path)] == ["unknown", "missing"]


def test_check_names_what_it_knows(tmp_path) -> None:
    with pytest.raises(InputError, match="no published files of a dataset 'minst'; did you mean 'mnist'"):
        check("minst", tmp_path)
    with pytest.raises(InputError, match="there is no train-images-idx3-ubyte"):
        check("mnist", tmp_path)
    assert set(FILES) <= set(DATASETS)


def test_counts_say_who_holds_what() -> None:
    A = np.zeros((3, 1))
    data = Federated.from_clients([(A, np.array([0, 3, 3])), (A, np.array([1, 1, 1]))], classes=4)
    assert counts(data).tolist() == [[1, 0, 0, 2], [0, 3, 0, 0]]
    signs = Federated.from_clients([(A, np.array([1.0, -1.0, 1.0])), (A, np.array([1.0, 1.0, 1.0]))])
    assert counts(signs).tolist() == [[1, 2], [0, 3]]
    with pytest.raises(InputError, match="labels are numbers"):
        counts(Federated.from_clients([(A, np.array([0.5, -1.0, 1.0]))]))


def test_rows_are_flat_floats_and_bytes_become_parts_of_one() -> None:
    images = np.arange(16, dtype=np.uint8).reshape(2, 2, 2, 2) * 17
    data = rows(Federated.from_clients([(images, np.array([0, 1]))], (images[:1], np.array([1])), classes=2))
    np.testing.assert_allclose(data.features, np.arange(16).reshape(2, 8) * 17 / 255, rtol=1e-6)
    assert data.test is not None
    assert data.test[0].shape == (1, 8)
    numbers = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(rows(Federated.from_clients([(numbers, np.zeros(2))])).features, numbers)


# ---- what users bring ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ([30.5, 59.5], r"sizes\[0\] = 30.5 must be a whole number >= 1"),
        ([30, np.nan], r"sizes\[1\] = nan must be a whole number >= 1"),
        ([True, True], r"sizes\[0\] = True must be a whole number >= 1"),
        (["30", "60"], r"sizes\[0\] = '30' must be a whole number >= 1"),
        ([[30], [60]], r"sizes must be one number a client, not of shape \(2, 1\)"),
    ],
)
def test_sizes_are_whole_numbers(sizes: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Federated(np.zeros((90, 2)), np.zeros(90), sizes)


def test_sizes_that_are_whole_floats_are_fine() -> None:
    data = Federated(np.zeros((3, 2)), np.zeros(3), [1.0, 2.0])  # type: ignore[arg-type]
    assert data.sizes.dtype == np.int64
    assert data.sizes.tolist() == [1, 2]


@pytest.mark.parametrize("classes", [None, 2])
@pytest.mark.parametrize("kind", [str, object])
def test_labels_of_words_are_refused_with_the_place(classes: int | None, kind: type) -> None:
    labels = np.array([1, 0, "b"] if kind is object else ["a", "b", "b"], dtype=kind)
    place = "row 1 of client 1 has the label 'b'" if kind is object else "row 0 of client 0 has the label 'a'"
    with pytest.raises(InputError, match=rf"{place}, which is not a number; for classes give 0, 1, \.\.\."):
        Federated(np.zeros((3, 1)), labels, [1, 2], classes=classes)


def test_numbers_in_an_array_of_objects_are_numbers() -> None:
    A, b = np.array([[1, 2.5], [True, 4]], object), np.array([0, 1], object)
    data = Federated(A, b, [1, 1], classes=2)
    assert data.features.tolist() == [[1, 2.5], [1, 4]]
    assert data.features.dtype == np.float64
    assert data.labels.tolist() == [0, 1]


def test_a_column_of_words_is_named() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2.0], "colour": ["red", "blue"]})
    said = r"row 0, column 'colour' holds 'red', which is not a number; proxfed\.tables prepares such columns"
    with pytest.raises(InputError, match=said):
        Federated(frame, [0, 1], [1, 1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"client 1: features: {said}"):
        Federated.from_clients([(np.zeros((1, 2)), np.zeros(1)), (frame, np.zeros(2))])
    with pytest.raises(InputError, match="row 1, column 0 holds None"):
        Federated(np.array([[1.0], [None]], object), [0, 1], [1, 1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"row 0, column 0 holds 'x'"):
        Federated(np.array([["x"], ["y"]]), [0, 1], [1, 1])  # type: ignore[arg-type]


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2), 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([Pairs(), Pairs()], r"client 0 must be a pair \(features, labels\), not a Pairs"),
        ([{"x": np.zeros((2, 2)), "y": np.zeros(2)}], r"client 0 must be a pair \(features, labels\), not a dict"),
        ([(np.zeros((2, 2)), np.zeros(2), 3)], r"client 0 must be a pair \(features, labels\), not a tuple of 3"),
        (
            {"north": (np.zeros((2, 2)), np.zeros(2))},
            r"clients must be a list .* not a dict, which Federated.of takes",
        ),
        (Pairs(), r"clients must be a list of pairs \(features, labels\), not a Pairs"),
        (5, r"clients must be a list of pairs \(features, labels\), not 5"),
        ([(np.zeros((2, 2)), 1)], r"client 0: labels must be one number a sample, not of shape \(\)"),
        ([(5, np.zeros(2))], r"client 0: features must be an array with a row a sample, not of shape \(\)"),
    ],
)
def test_clients_are_pairs(given: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Federated.from_clients(given)


@pytest.mark.parametrize(("partition", "shown"), [(5, "5"), (IID, "<class")])
def test_a_partition_is_an_object(partition: Any, shown: str) -> None:
    with pytest.raises(InputError) as refused:
        load("digits", partition)
    said, _, given = str(refused.value).partition(", not ")
    allowed = "an object such as PARTITIONS['iid'](num_partitions=10), or a list of the indices of each client"
    assert said == f"digits: partition must be {allowed}"
    assert given.startswith(shown)


def test_steps_of_epochs_are_those_of_a_client_of_mean_size() -> None:
    data = Federated(np.zeros((120, 1)), np.zeros(120), [10, 20, 90])
    assert [data.steps(batch) for batch in (7, 8, 40, 41)] == [6, 5, 1, 1]
    assert data.steps(batch=7, epochs=3) == 18
    for bad in ({"batch": 0}, {"batch": 5, "epochs": 0}, {"batch": 5, "epochs": 1.5}):
        key, value = list(bad.items())[-1]
        with pytest.raises(InputError, match=f"^{key} = {value} must be a whole number >= 1$"):
            data.steps(**bad)  # type: ignore[arg-type]


def test_data_are_shown_in_a_line() -> None:
    A = np.zeros((90, 4))
    data = Federated(A, np.arange(90) % 3, [30, 60], (A[:7], np.zeros(7, int)), classes=3, name="mine")
    assert repr(data) == "Federated('mine', 2 clients, 90 samples of shape (4,), 3 classes, 7 test samples)"
    assert repr(Federated(A, np.zeros(90), [90])) == "Federated('data', 1 client, 90 samples of shape (4,))"
    assert repr(Dataset(A, np.zeros(90), name="pile")) == "Dataset('pile', 90 samples of shape (4,))"
    assert len(repr(load("digits", IID(5)))) < 120
