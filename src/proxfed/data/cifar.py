"""CIFAR-10 and CIFAR-100 (A. Krizhevsky, 2009): colour images of 32x32 bytes in 10 or 100 classes.

Read from the binary version: records of one or two label bytes and 3,072 bytes, red, green and blue. The pickled one is
not read, because unpickling a file can run anything. CIFAR-10 is also read from lossless mosaics of the images of a
batch, row by row, webp/data_batch_1.webp and so on; the labels of all batches are then in idx files beside `webp`.
"""

from __future__ import annotations

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
MOSAICS = Collection(
    folders=("cifar10/webp",),
    source=PAGE,
    sums={f"{name}.webp": md5 for name, md5 in MD5.items()},
    content=lambda path: _mosaic(path).tobytes(),  # what it shows must be the published records
)
CIFAR10 = Collection(
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    source=PAGE,
    sums={f"{name}.bin": md5 for name, md5 in MD5.items()},
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    other_form=MOSAICS,
)
CIFAR100 = Collection(
    folders=("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
    source=PAGE,
    sums={
        "train.bin": Sum("6172c7755cfe09b2fe270c85cebc1b15"),
        "test.bin": Sum("4499cfba6c016c1be1438163640a0898"),
    },
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
)


def cifar10(directory: str | Path | None = None) -> Dataset:
    """CIFAR-10: 50,000 / 10,000 colour images, 32x32, 10 classes; fewer if only some of the five batches are there."""
    train = [batch for name in BATCHES if (batch := _batch(name, directory)) is not None]
    test = _batch("test_batch", directory)
    if not train or test is None:
        raise CIFAR10.missing("test_batch.bin" if train else "data_batch_1.bin", directory)
    images, labels = (np.concatenate(column) for column in zip(*train, strict=True))
    name = "cifar10" if len(train) == len(BATCHES) else f"cifar10 ({len(train)} of {len(BATCHES)} batches)"
    return Dataset(images, labels, *test, 10, name)


def cifar100(directory: str | Path | None = None) -> Dataset:
    """CIFAR-100: 50,000 / 10,000 colour images, 32x32, 100 classes."""
    train, test = (_split(_records(CIFAR100.find(name, directory), 2)) for name in ("train.bin", "test.bin"))
    return Dataset(*train, *test, 100, "cifar100")


def _batch(name: str, directory: str | Path | None) -> Samples | None:
    if path := CIFAR10.look(f"{name}.bin", directory):
        return _split(_records(path, 1))
    if path := MOSAICS.look(f"{name}.webp", directory):
        return _split(_mosaic(path))
    return None


def _split(records: np.ndarray) -> Samples:
    """(images (N, 3, 32, 32), labels), the last label byte of each record being the class."""
    return records[:, -PIXELS:].reshape(-1, 3, SIDE, SIDE), records[:, -PIXELS - 1].astype(np.int64)


def _records(path: Path, label_bytes: int) -> np.ndarray:
    """(N, label bytes + 3072) uint8."""
    content, size = read_bytes(path), label_bytes + PIXELS
    whole = len(content) > 0 and len(content) % size == 0
    require(whole, f"{path}: {len(content)} bytes are no whole number of records of {size} bytes; it may be cut short")
    return np.frombuffer(content, np.uint8).reshape(-1, size).copy()  # torch wants memory that may be written to


def _mosaic(path: Path) -> np.ndarray:
    """The records (N, 1 + 3072) of the batch that a mosaic shows, with labels from the idx file beside `webp`."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(
            f"{path}: reading it needs Pillow (pip install pillow); data_batch_1.bin and so on are read without"
        ) from error
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise DamagedFile(f"{path}: cannot be read, it may be damaged or cut short ({error})") from error
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    require(pixels.shape[:2] == (rows * SIDE, columns * SIDE), f"{path}: is no mosaic of {SIDE}x{SIDE} images")
    images = pixels.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, PIXELS)
    part = "test" if path.stem == "test_batch" else "train"
    where = path.parent.parent / f"{part}-labels-idx1-ubyte.gz"
    first = 0 if part == "test" else BATCHES.index(path.stem) * len(images)
    labels = read_idx(where, ndim=1)[first : first + len(images)]
    require(len(labels) == len(images), f"{where}: has no labels for all {len(images)} images of {path.name}")
    return np.column_stack((labels, images))
