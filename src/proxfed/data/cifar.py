"""CIFAR-10 and CIFAR-100 (A. Krizhevsky, 2009): colour images of 32x32 bytes in 10 or 100 classes.

The binary version is read: records of one or two label bytes and 3,072 bytes, red, green and blue. The pickled version
is not, because unpickling a file can run any code. Both datasets can also be read from lossless mosaics of 10,000
images each, row by row: webp/data_batch_1.webp and so on for CIFAR-10, webp/train_1.webp and so on for CIFAR-100; the
labels of all images are then in idx files beside `webp`. If only some of the five exist, a remark says that the data
are a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from proxfed.data.directory import Collection, DamagedFile, Sum, read_bytes
from proxfed.data.federated import Dataset, Samples
from proxfed.data.idx import read_idx
from proxfed.errors import InputError, require

SIDE = 32
PIXELS = 3 * SIDE * SIDE
PAGE = "A. Krizhevsky's page at the University of Toronto, the binary version,"
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
MD5 = {
    "data_batch_1": Sum("5dd7e06a14cb22eb9f671a540d1b7c25"),
    "data_batch_2": Sum("5ea93a67294ea407fff1d09f752e9692"),
    "data_batch_3": Sum("942cd6a4bcdd0dd3c604fbe906cb4421"),
    "data_batch_4": Sum("ae636b3ba5c66a11e91e8cb52e771fcb"),
    "data_batch_5": Sum("53f37980c15c3d472c316c40844f3f0d"),
    "test_batch": Sum("803d5f7f4d78ea53de84dbe85f74fb6d"),
}
LABELS, LABELS100 = ("labels",), ("coarse-labels", "fine-labels")
"""The names of the idx files beside mosaics, one per label byte of a record."""
MOSAICS = Collection(
    folders=("cifar10/webp",),
    source=PAGE,
    sums={f"{name}.webp": md5 for name, md5 in MD5.items()},
    content=lambda path: _mosaic(path, LABELS).tobytes(),  # compared with the published records
)
CIFAR10 = Collection(
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    source=PAGE,
    sums={f"{name}.bin": md5 for name, md5 in MD5.items()},
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    other_form=MOSAICS,
)
PARTS = ("train_1", "train_2", "train_3", "train_4", "train_5")
TEST100 = Sum("4499cfba6c016c1be1438163640a0898")
MOSAICS100 = Collection(
    folders=("cifar100/webp",),
    source=PAGE,
    sums={f"{name}.webp": Sum() for name in PARTS}
    | {"test.webp": TEST100},  # there are no published checksums of parts of train.bin
    content=lambda path: _mosaic(path, LABELS100).tobytes(),
)
CIFAR100 = Collection(
    folders=("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
    source=PAGE,
    sums={"train.bin": Sum("6172c7755cfe09b2fe270c85cebc1b15"), "test.bin": TEST100},
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    other_form=MOSAICS100,
)


def cifar10(directory: str | Path | None = None) -> Dataset:
    """CIFAR-10: 50,000 / 10,000 colour images, 32x32, 10 classes; fewer if only some of the five batches exist."""
    train = [batch for name in BATCHES if (batch := _batch(name, directory)) is not None]
    test = _batch("test_batch", directory)
    if not train or test is None:
        raise CIFAR10.missing("test_batch.bin" if train else "data_batch_1.bin", directory)
    return _dataset("cifar10", 10, train, len(BATCHES), test)


def cifar100(directory: str | Path | None = None) -> Dataset:
    """CIFAR-100: 50,000 / 10,000 colour images, 32x32, 100 classes; fewer if only some of five mosaics exist."""
    train, test = (_records_of_100(name, directory) for name in ("train.bin", "test.bin"))
    parts = [train] if train is not None else [part for name in PARTS if (part := _part(name, directory)) is not None]
    test = _part("test", directory) if test is None else test
    if not parts or test is None:
        raise CIFAR100.missing("test.bin" if parts else "train.bin", directory)
    return _dataset("cifar100", 100, parts, 1 if train is not None else len(PARTS), test)


def _dataset(name: str, classes: int, parts: Sequence[Samples], of: int, test: Samples) -> Dataset:
    """The parts concatenated, with a remark that they are a sample if some of them are missing."""
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(parts) == of:
        return Dataset(images, labels, *test, classes, name)
    remark = (
        f"{name} is a sample: {len(parts)} of the {of} batches of training images are there, {len(images):,} images"
    )
    return Dataset(images, labels, *test, classes, f"{name} ({len(parts)} of {of} batches)", remark=remark)


def _batch(name: str, directory: str | Path | None) -> Samples | None:
    """Of CIFAR-10."""
    if path := CIFAR10.look(f"{name}.bin", directory):
        return _split(_records(path, 1))
    if path := MOSAICS.look(f"{name}.webp", directory):
        return _split(_mosaic(path, LABELS))
    return None


def _records_of_100(name: str, directory: str | Path | None) -> Samples | None:
    path = CIFAR100.look(name, directory)
    return None if path is None else _split(_records(path, 2))


def _part(name: str, directory: str | Path | None) -> Samples | None:
    """A mosaic of CIFAR-100."""
    path = MOSAICS100.look(f"{name}.webp", directory)
    return None if path is None else _split(_mosaic(path, LABELS100))


def _split(records: np.ndarray) -> Samples:
    """(images (N, 3, 32, 32), labels), the last label byte of each record being the class."""
    return records[:, -PIXELS:].reshape(-1, 3, SIDE, SIDE), records[:, -PIXELS - 1].astype(np.int64)


def _records(path: Path, label_bytes: int) -> np.ndarray:
    """(N, label bytes + 3072) uint8."""
    content, size = read_bytes(path), label_bytes + PIXELS
    whole = len(content) > 0 and len(content) % size == 0
    require(whole, f"{path}: {len(content)} bytes are no whole number of records of {size} bytes; it may be cut short")
    return np.frombuffer(content, np.uint8).reshape(-1, size).copy()  # torch needs writable memory


def _mosaic(path: Path, labels: Sequence[str]) -> np.ndarray:
    """The records (N, label bytes + 3072) of the batch that a mosaic shows, with labels from files beside `webp`."""
    images = _pictures(path)
    part, number = ("test", 0) if path.stem.startswith("test") else ("train", int(path.stem[-1]) - 1)
    columns = []
    for kind in labels:
        where, first = path.parent.parent / f"{part}-{kind}-idx1-ubyte.gz", number * len(images)
        column = read_idx(where, ndim=1)[first : first + len(images)]
        require(len(column) == len(images), f"{where}: has no labels for all {len(images)} images of {path.name}")
        columns.append(column)
    return np.column_stack((*columns, images))


def _pictures(path: Path) -> np.ndarray:
    """The images (N, 3072) of a mosaic, row by row."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(
            f"{path}: reading it needs Pillow (pip install pillow); the binary version, .bin, is read without"
        ) from error
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise DamagedFile(f"{path}: cannot be read, it may be damaged or cut short ({error})") from error
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    require(pixels.shape[:2] == (rows * SIDE, columns * SIDE), f"{path}: is no mosaic of {SIDE}x{SIDE} images")
    return pixels.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, PIXELS)
