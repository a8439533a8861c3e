"""Image files: what is written in the published formats is read back, and damage is named."""

from __future__ import annotations

import gzip
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from proxfed.data import check, load
from proxfed.data.cifar import MOSAICS, MOSAICS100, PARTS, cifar10, cifar100
from proxfed.data.directory import data_directory
from proxfed.data.idx import read_idx
from proxfed.data.mnist import emnist_letters, fashion_mnist, mnist, mnist_writers
from proxfed.data.partitions import IID, NaturalPartition
from proxfed.errors import InputError

from support.cli import proxfed
from support.small_experiment import small, write

rng = np.random.default_rng(0)
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def save(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def images(N: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, (N, *shape)).astype(np.uint8)


# ---- idx ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_idx_is_read_as_it_was_written(tmp_path, kind: str, name: str) -> None:
    array = rng.integers(0, 100, (4, 3, 2)).astype(kind)
    save(tmp_path / name, idx(array))
    np.testing.assert_array_equal(read_idx(tmp_path / name, ndim=3), array)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not an idx file"),
        (b"<html>not found</html>", "is not an idx file"),
        (idx(images(4, 3))[:6], "ends inside its header"),
        (idx(images(4, 3))[:-1], "holds 11 bytes of data where its header promises 12"),
        (idx(images(4, 3)) + b"x", "holds 13 bytes of data where its header promises 12"),
        (idx(images(4)), "has 1 dimensions where 2 are expected"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, content: bytes, says: str) -> None:
    save(tmp_path / "a", content)
    with pytest.raises(InputError, match=says):
        read_idx(tmp_path / "a", ndim=2)


def test_a_gzip_file_cut_short_is_refused(tmp_path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(images(40, 30)))[:-20])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_idx(tmp_path / "a.gz", ndim=2)
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0" + b"\xff" * 40)
    with pytest.raises(InputError, match="damaged or cut short"):
        read_idx(tmp_path / "a.gz", ndim=2)


# ---- MNIST and its kind ------------------------------------------------------------------------------------------


def save_mnist(folder: Path, suffix: str = ".gz", prefix: str = "", test: str = "t10k", first: int = 0):
    pictures, labels = images(12, 28, 28), first + np.arange(12, dtype=np.uint8) % 10
    for name, part in (("train", slice(0, 8)), (test, slice(8, 12))):
        save(folder / f"{prefix}{name}-images-idx3-ubyte{suffix}", idx(pictures[part]))
        save(folder / f"{prefix}{name}-labels-idx1-ubyte{suffix}", idx(labels[part]))
    return pictures, labels


@pytest.mark.parametrize(
    ("loader", "folder", "suffix"),
    [
        (mnist, "mnist", ".gz"),
        (mnist, "MNIST/raw", ""),
        (fashion_mnist, "fashion-mnist", ".gz"),
        (fashion_mnist, "FashionMNIST/raw", ""),
    ],
)
def test_mnist_files_become_images_with_a_channel(tmp_path, loader, folder: str, suffix: str) -> None:
    pictures, labels = save_mnist(tmp_path / folder, suffix)
    data = loader(tmp_path)
    assert data.features.dtype == np.uint8
    np.testing.assert_array_equal(data.features, pictures[:8, None])
    np.testing.assert_array_equal(data.test_features, pictures[8:, None])
    assert data.labels.tolist() == labels[:8].tolist()
    assert data.test_labels.tolist() == labels[8:].tolist()
    assert data.classes == 10


def test_images_may_be_written_to(tmp_path) -> None:
    """torch warns about memory that may not."""
    save_mnist(tmp_path / "mnist")
    for name in ("train", "test"):
        save(tmp_path / "cifar100" / f"{name}.bin", records(2, 2, 100).tobytes())
    for data in (mnist(tmp_path), cifar100(tmp_path)):
        for array in (data.features, data.labels, data.test_features, data.test_labels):
            assert array.flags.writeable


def test_images_and_labels_must_be_as_many(tmp_path) -> None:
    save_mnist(tmp_path / "mnist")
    save(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", idx(np.zeros(7, np.uint8)))
    with pytest.raises(InputError, match="8 images, but 7 labels beside it"):
        mnist(tmp_path)


def test_of_a_sample_of_emnist_letters_a_seventh_is_held_out(tmp_path) -> None:
    pictures, labels = images(70, 28, 28), np.arange(70, dtype=np.uint8) % 26 + 1
    folder = tmp_path / "emnist-letters-sample"
    save(folder / "emnist-letters-sample-train-images-idx3-ubyte.gz", idx(pictures))
    save(folder / "emnist-letters-sample-train-labels-idx1-ubyte.gz", idx(labels))
    data = emnist_letters(tmp_path)
    assert (len(data.labels), len(data.test_labels), data.classes) == (60, 10, 27)
    upright = {picture.T.tobytes(): label for picture, label in zip(pictures, labels.tolist(), strict=True)}
    held = [picture.tobytes() for picture in (*data.features, *data.test_features)]
    assert sorted(held) == sorted(upright), "each once, upright"
    assert [upright[picture] for picture in held] == [*data.labels, *data.test_labels]
    np.testing.assert_array_equal(emnist_letters(tmp_path).test_labels, data.test_labels)
    assert data.name == "emnist_letters (sample)"
    some = "70 of the 124,800 training images are there, of which 10 are held out as test images"
    assert data.remark == f"emnist_letters is a sample: {some}"
    save_mnist(tmp_path / "emnist", prefix="emnist-letters-", test="test", first=1)
    assert emnist_letters(tmp_path).remark == "", "the published files come first"


def test_emnist_letters_are_turned_upright_and_keep_their_labels(tmp_path) -> None:
    pictures, labels = save_mnist(tmp_path / "emnist", prefix="emnist-letters-", test="test", first=1)
    data = emnist_letters(tmp_path)
    np.testing.assert_array_equal(data.features[:, 0], pictures[:8].transpose(0, 2, 1))
    np.testing.assert_array_equal(data.test_features[:, 0], pictures[8:].transpose(0, 2, 1))
    assert data.labels.tolist() == labels[:8].tolist()
    assert data.labels.min() == 1
    assert data.classes == 27


def test_writers_are_natural_clients(tmp_path) -> None:
    _, labels = save_mnist(tmp_path / "mnist")
    table = np.zeros((8, 8), np.int32)
    table[:, 0], table[:, 1], table[:, 2] = labels[:8], [0, 0, 0, 0, 4, 4, 4, 4], [7, 300, 7, 300, 9, 9, 9, 9]
    save(tmp_path / "qmnist-writers" / "qmnist-train-labels-idx2-int.gz", idx(table))
    data = load("mnist_writers", NaturalPartition(), tmp_path)
    assert [data.client(i)[1].tolist() for i in range(3)] == [[0, 2], [4, 5, 6, 7], [1, 3]]
    assert load("mnist_writers", directory=tmp_path).sizes.tolist() == [2, 4, 2]
    assert load("mnist_writers", directory=tmp_path, by="series").sizes.tolist() == [4, 4]
    assert load("mnist_writers", IID(4), tmp_path).sizes.tolist() == [2, 2, 2, 2]
    with pytest.raises(InputError, match="by = 'hand' is not one of"):
        mnist_writers(tmp_path, by="hand")  # type: ignore[arg-type]
    table[3, 0] += 1
    save(tmp_path / "qmnist-writers" / "qmnist-train-labels-idx2-int.gz", idx(table))
    with pytest.raises(InputError, match="does not list the classes"):
        mnist_writers(tmp_path)


# ---- CIFAR -------------------------------------------------------------------------------------------------------


def records(N: int, label_bytes: int, classes: int) -> np.ndarray:
    table = images(N, label_bytes + 3072)
    table[:, :label_bytes] = rng.integers(0, classes, (N, label_bytes))
    return table


@pytest.mark.parametrize("folder", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"])
def test_cifar10_batches_follow_one_another(tmp_path, folder: str) -> None:
    batches = [records(3, 1, 10) for _ in range(6)]
    for name, batch in zip([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], batches, strict=True):
        save(tmp_path / folder / f"{name}.bin", batch.tobytes())
    data = cifar10(tmp_path)
    train = np.concatenate(batches[:5])
    assert (data.name, data.remark) == ("cifar10", "")
    assert data.features.shape == (15, 3, 32, 32)
    np.testing.assert_array_equal(data.features.reshape(15, -1), train[:, 1:])
    np.testing.assert_array_equal(data.labels, train[:, 0])
    np.testing.assert_array_equal(data.test_features.reshape(3, -1), batches[5][:, 1:])


def test_cifar10_makes_do_with_some_batches_and_says_so(tmp_path) -> None:
    save(tmp_path / "cifar10" / "data_batch_2.bin", records(3, 1, 10).tobytes())
    with pytest.raises(InputError, match=r"there is no test_batch\.bin"):
        cifar10(tmp_path)
    save(tmp_path / "cifar10" / "test_batch.bin", records(3, 1, 10).tobytes())
    data = cifar10(tmp_path)
    assert data.name == "cifar10 (1 of 5 batches)"
    assert data.remark == "cifar10 is a sample: 1 of the 5 batches of training images are there, 3 images"
    (tmp_path / "cifar10" / "data_batch_2.bin").unlink()
    with pytest.raises(InputError, match=r"there is no data_batch_1\.bin"):
        cifar10(tmp_path)


def test_cifar100_has_fine_classes(tmp_path) -> None:
    train, test = records(4, 2, 100), records(2, 2, 100)
    save(tmp_path / "cifar100" / "train.bin", train.tobytes())
    save(tmp_path / "cifar100" / "test.bin", test.tobytes())
    data = cifar100(tmp_path)
    np.testing.assert_array_equal(data.labels, train[:, 1])
    np.testing.assert_array_equal(data.test_features.reshape(2, -1), test[:, 2:])
    assert data.classes == 100
    assert [state for _, state in check("cifar100", tmp_path)] == ["differs", "differs"]


def test_a_batch_cut_short_is_refused(tmp_path) -> None:
    save(tmp_path / "cifar100" / "train.bin", records(4, 2, 100).tobytes()[:-5])
    with pytest.raises(InputError, match="no whole number of records of 3074 bytes"):
        cifar100(tmp_path)


def save_mosaics(
    folder: Path, parts: Sequence[str], kinds: Sequence[str] = ("labels",), classes: int = 10
) -> np.ndarray:
    """Mosaics of 2x3 images each, of which the last is the test images', with labels of five; all their records."""
    Image = pytest.importorskip("PIL.Image", reason="mosaics are read with Pillow")
    table = records(6 * len(parts), len(kinds), classes)
    for name, batch in zip(parts, table.reshape(len(parts), 6, -1), strict=True):
        canvas = np.empty((64, 96, 3), np.uint8)
        for k, record in enumerate(batch):
            row, column = 32 * (k // 3), 32 * (k % 3)
            canvas[row : row + 32, column : column + 32] = record[len(kinds) :].reshape(3, 32, 32).transpose(1, 2, 0)
        (folder / "webp").mkdir(parents=True, exist_ok=True)
        Image.fromarray(canvas).save(folder / "webp" / f"{name}.webp", lossless=True)
    for k, kind in enumerate(kinds):
        train = np.zeros(30, np.uint8)  # also of batches whose mosaics are not there
        for name, labels in zip(parts[:-1], table[:-6, k].reshape(-1, 6), strict=True):
            first = 6 * (int(name[-1]) - 1)
            train[first : first + 6] = labels
        save(folder / f"train-{kind}-idx1-ubyte.gz", idx(train))
        save(folder / f"test-{kind}-idx1-ubyte.gz", idx(table[-6:, k]))
    return table


SOME10 = ("data_batch_1", "data_batch_2", "test_batch")
COARSE_AND_FINE = ("coarse-labels", "fine-labels")


def test_mosaics_show_the_same_images_as_the_records(tmp_path) -> None:
    table = save_mosaics(tmp_path / "cifar10", SOME10)
    data = cifar10(tmp_path)
    np.testing.assert_array_equal(data.features.reshape(12, -1), table[:12, 1:])
    np.testing.assert_array_equal(data.labels, table[:12, 0])
    np.testing.assert_array_equal(data.test_features.reshape(6, -1), table[12:, 1:])
    np.testing.assert_array_equal(data.test_labels, table[12:, 0])
    path = MOSAICS.find("data_batch_2.webp", tmp_path)
    assert MOSAICS.content(path) == table[6:12].tobytes()
    assert [state for _, state in check("cifar10", tmp_path)].count("differs") == 3


def test_mosaics_of_cifar100_have_both_labels_and_say_that_they_are_a_sample(tmp_path) -> None:
    table = save_mosaics(tmp_path / "cifar100", ("train_1", "train_3", "test"), COARSE_AND_FINE, 100)
    data = cifar100(tmp_path)
    np.testing.assert_array_equal(data.features.reshape(12, -1), table[:12, 2:])
    np.testing.assert_array_equal(data.labels, table[:12, 1])
    np.testing.assert_array_equal(data.test_labels, table[12:, 1])
    assert data.name == "cifar100 (2 of 5 batches)"
    assert data.remark == "cifar100 is a sample: 2 of the 5 batches of training images are there, 12 images"
    assert load("cifar100", IID(2), tmp_path, limit=4).remark == data.remark, "also in the clients' hands"
    assert load("cifar100", IID(2), tmp_path, limit=9000).sizes.sum() == 12, "a limit beyond a sample: all of it"
    with pytest.raises(InputError, match=r"limit = 0 must be a whole number from 1 to 12"):
        load("cifar100", IID(2), tmp_path, limit=0)
    path = MOSAICS100.find("train_3.webp", tmp_path)
    assert MOSAICS100.content(path) == table[6:12].tobytes()
    states = {path.name: state for path, state in check("cifar100", tmp_path)}
    assert states["train_1.webp"] == "unknown", "it can be read, but no sum of it is published"
    assert (states["train_2.webp"], states["test.webp"]) == ("missing", "differs")


def test_all_mosaics_of_cifar100_are_no_sample(tmp_path) -> None:
    table = save_mosaics(tmp_path / "cifar100", (*PARTS, "test"), COARSE_AND_FINE, 100)
    data = cifar100(tmp_path)
    np.testing.assert_array_equal(data.labels, table[:30, 1])
    assert (data.name, data.remark) == ("cifar100", "")


def test_the_records_of_cifar100_come_before_mosaics(tmp_path) -> None:
    save_mosaics(tmp_path / "cifar100", ("train_1", "test"), COARSE_AND_FINE, 100)
    train = records(4, 2, 100)
    save(tmp_path / "cifar100" / "train.bin", train.tobytes())
    data = cifar100(tmp_path)
    np.testing.assert_array_equal(data.labels, train[:, 1])
    assert data.remark == ""
    assert len(data.test_labels) == 6, "what is not there as records is taken from its mosaic"


def test_labels_that_do_not_cover_a_mosaic_are_refused(tmp_path) -> None:
    save_mosaics(tmp_path / "cifar100", ("train_1", "test"), COARSE_AND_FINE, 100)
    save(tmp_path / "cifar100" / "train-fine-labels-idx1-ubyte.gz", idx(np.zeros(5, np.uint8)))
    with pytest.raises(InputError, match=r"train-fine-labels.* has no labels for all 6 images of train_1\.webp"):
        cifar100(tmp_path)


def test_a_run_with_a_sample_says_so_once(tmp_path, capsys) -> None:
    save_mosaics(tmp_path / "data" / "cifar100", ("train_1", "test"), COARSE_AND_FINE, 100)
    table = small(
        rounds=1,
        seeds=[0],
        algorithms=[{"name": "fedavg", "eta": 0.1, "K": 1}],
        data={"name": "cifar100", "partition": {"name": "iid", "num_partitions": 2}},
    )
    table |= {"problem": {"name": "network", "model": "depositum_cnn", "batch": 2}, "cases": {"a": {}, "b": {}}}
    table |= {"reference": False, "regulariser": {"name": "zero"}, "dtype": "float32"}
    path = write(tmp_path / "mine.toml", table)
    _, _, said = proxfed(capsys, "run", str(path), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    assert said.count("cifar100 is a sample: 1 of the 5 batches of training images are there, 6 images") == 1
    _, _, said = proxfed(capsys, "reproduce", str(path), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "r"))
    assert said.count("cifar100 is a sample") == 1


def test_a_damaged_mosaic_is_refused(tmp_path) -> None:
    save_mosaics(tmp_path / "cifar10", SOME10)
    path = tmp_path / "cifar10" / "webp" / "data_batch_1.webp"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="damaged or cut short"):
        cifar10(tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged or cut short"):
        cifar10(tmp_path)


def test_a_mosaic_without_pillow_says_what_to_install(tmp_path, monkeypatch) -> None:
    save(tmp_path / "cifar10" / "webp" / "data_batch_1.webp", b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="needs Pillow"):
        cifar10(tmp_path)
    with pytest.raises(InputError, match="needs Pillow"):
        check("cifar10", tmp_path)


# ---- the real files ----------------------------------------------------------------------------------------------


def at_hand(name: str, file: str):
    there = "PROXFED_DATA" in os.environ and (data_directory() / file).is_file()
    return pytest.param(name, marks=pytest.mark.skipif(not there, reason=f"no {file} in the directory PROXFED_DATA"))


REAL = [
    at_hand("a9a", "a9a/a9a.bz2"),
    at_hand("mnist", "mnist/train-images-idx3-ubyte.gz"),
    at_hand("fashion_mnist", "fashion-mnist/train-images-idx3-ubyte.gz"),
    at_hand("mnist_writers", "qmnist-writers/qmnist-train-labels-idx2-int.gz"),
]
SHAPES = {
    "a9a": ((32561, 123), (16281, 123)),
    "mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28)),
    "fashion_mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28)),
    "mnist_writers": ((60000, 1, 28, 28), (10000, 1, 28, 28)),
}


@pytest.mark.parametrize("name", REAL)
def test_the_published_files_have_their_sums_and_shapes(name: str) -> None:
    assert {state for _, state in check(name)} == {"as published"}
    data = load(name, IID(10))
    assert data.test is not None
    assert (data.features.shape, data.test[0].shape) == SHAPES[name]


@pytest.mark.parametrize("name", REAL[3:])
def test_539_people_wrote_mnist(name: str) -> None:
    data = load(name)
    assert len(data) == 539
    assert (data.sizes.min(), data.sizes.max()) == (19, 131)
    assert load(name, by="series").sizes.tolist() == [30950, 29050]


@pytest.mark.slow
@pytest.mark.parametrize("name", [at_hand("cifar10", "cifar10/webp/test_batch.webp")])
def test_the_mosaics_show_the_published_records(name: str) -> None:
    pytest.importorskip("PIL.Image", reason="mosaics are read with Pillow")
    assert {state for _, state in check(name)} <= {"as published", "missing"}
    assert load(name, IID(2)).features.shape[1:] == (3, 32, 32)
