"""MNIST and the datasets that share its format: images of 28x28 bytes in idx files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from proxfed.data.directory import Collection, Sum
from proxfed.data.federated import Dataset
from proxfed.data.idx import read_idx
from proxfed.errors import require
from proxfed.keyed_random import generator

MNIST = Collection(
    folders=("mnist", "MNIST/raw"),
    source="the MNIST page of Y. LeCun or a mirror of it",
    sums={
        "train-images-idx3-ubyte": Sum("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        "train-labels-idx1-ubyte": Sum("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        "t10k-images-idx3-ubyte": Sum("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        "t10k-labels-idx1-ubyte": Sum("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    },
    url="https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
)
FASHION_MNIST = Collection(
    folders=("fashion-mnist", "FashionMNIST/raw"),
    source="the repository zalandoresearch/fashion-mnist on GitHub, folder data/fashion,",
    sums={
        "train-images-idx3-ubyte": Sum("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        "train-labels-idx1-ubyte": Sum("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        "t10k-images-idx3-ubyte": Sum("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        "t10k-labels-idx1-ubyte": Sum("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    },
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz",
)
_TRAIN_IMAGES = "6288f418a917e007bf5fddb823a2dc7a5c6a35031401b93292a539cb12bd881f"
_TRAIN_LABELS = "9759af91ea6bccdf07a6040fd085861f2ec88e37f7c3f5760f6feb57106fbe5c"
_TEST_IMAGES = "50f0e93d75b99b463e9760b8345866f22587fa2c2fba472730a5ba09c693412d"
_TEST_LABELS = "924955c31fe7fd809b7303b5c0141282955f4b8390c74cdfd5d80435e0f4b4cb"
EMNIST_SAMPLE = Collection(
    folders=("emnist-letters-sample",),
    source="where the sample was drawn",
    sums={f"emnist-letters-sample-train-{what}": Sum() for what in ("images-idx3-ubyte", "labels-idx1-ubyte")},
)
EMNIST_LETTERS = Collection(
    folders=("emnist", "emnist/gzip", "EMNIST/raw"),
    source="the EMNIST page of NIST, the archive in the format of MNIST,",
    sums={
        "emnist-letters-train-images-idx3-ubyte": Sum(compressed=_TRAIN_IMAGES),
        "emnist-letters-train-labels-idx1-ubyte": Sum(compressed=_TRAIN_LABELS),
        "emnist-letters-test-images-idx3-ubyte": Sum(compressed=_TEST_IMAGES),
        "emnist-letters-test-labels-idx1-ubyte": Sum(compressed=_TEST_LABELS),
    },
    url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    other_form=EMNIST_SAMPLE,
)
WRITERS = Collection(
    folders=("qmnist-writers", "QMNIST/raw"),
    source="the repository facebookresearch/qmnist on GitHub",
    sums={
        "qmnist-train-labels-idx2-int": Sum("bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"),
        "qmnist-test-labels-idx2-int": Sum("92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd"),
    },
    url="https://raw.githubusercontent.com/facebookresearch/qmnist/master/{name}.gz",
)


def mnist(directory: str | Path | None = None) -> Dataset:
    """MNIST: 60,000 / 10,000 handwritten digits, 28x28, 10 classes (LeCun, Bottou, Bengio, Haffner, 1998)."""
    train, test = (_part(MNIST, f"{name}-images", f"{name}-labels", directory) for name in ("train", "t10k"))
    return Dataset(*train, *test, 10, "mnist")


def mnist_writers(directory: str | Path | None = None, by: Literal["writer", "series"] = "writer") -> Dataset:
    """MNIST with the writer of each digit, for the partition `natural` (QMNIST: Yadav, Bottou, 2019).

    by "writer": 539 clients; by "series": 2, employees of the census bureau and high-school students.
    """
    require(by in ("writer", "series"), f"mnist_writers: by = {by!r} is not one of 'writer', 'series'")
    data = mnist(directory)
    path = WRITERS.find("qmnist-train-labels-idx2-int", directory)
    table = read_idx(path, ndim=2)  # columns: class, series, writer, ...
    same = len(table) == len(data.labels) and table.shape[1] > 2 and (table[:, 0] == data.labels).all()
    require(bool(same), f"{path}: does not list the classes of the MNIST training images")
    groups = table[:, 2 if by == "writer" else 1].astype(np.int64)
    return Dataset(data.features, data.labels, data.test_features, data.test_labels, 10, "mnist_writers", groups)


def fashion_mnist(directory: str | Path | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 / 10,000 pictures of clothes, 28x28, 10 classes (Xiao, Rasul, Vollgraf, 2017)."""
    train, test = (_part(FASHION_MNIST, f"{name}-images", f"{name}-labels", directory) for name in ("train", "t10k"))
    return Dataset(*train, *test, 10, "fashion_mnist")


def emnist_letters(directory: str | Path | None = None) -> Dataset:
    """EMNIST letters: 124,800 / 20,800 handwritten letters, 28x28 (Cohen, Afshar, Tapson, van Schaik, 2017).

    Labels are 1..26 as published, so there are 27 classes of which 0 is empty, and models of the literature have 27
    outputs. The files hold each image transposed; here it is upright. If there is only a sample of the training images
    (emnist-letters-sample-train-...), a seventh of it is held out for testing, as in the published split.
    """
    whole = EMNIST_LETTERS.look("emnist-letters-train-images-idx3-ubyte", directory)
    if whole is None and EMNIST_SAMPLE.look("emnist-letters-sample-train-images-idx3-ubyte", directory) is not None:
        return _emnist_sample(directory)
    train, test = (_letters(EMNIST_LETTERS, f"emnist-letters-{name}", directory) for name in ("train", "test"))
    return Dataset(*train, *test, 27, "emnist_letters")


def _emnist_sample(directory: str | Path | None) -> Dataset:
    images, labels = _letters(EMNIST_SAMPLE, "emnist-letters-sample-train", directory)
    order = generator(0, "emnist_letters sample").permutation(len(labels))
    held = len(labels) // 7
    test, train = np.sort(order[:held]), np.sort(order[held:])
    remark = (
        f"emnist_letters is a sample: {len(labels):,} of the 124,800 training images are there, of which {held:,} are "
        "held out as test images"
    )
    name = "emnist_letters (sample)"
    return Dataset(images[train], labels[train], images[test], labels[test], 27, name, remark=remark)


def _letters(files: Collection, prefix: str, directory: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Upright."""
    images, labels = _part(files, f"{prefix}-images", f"{prefix}-labels", directory)
    return np.ascontiguousarray(np.swapaxes(images, 2, 3)), labels


def _part(files: Collection, images: str, labels: str, directory: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    """(images (N, 1, H, W) uint8, labels (N,) int64)."""
    where = files.find(f"{images}-idx3-ubyte", directory)
    pictures = read_idx(where, ndim=3)
    classes = read_idx(files.find(f"{labels}-idx1-ubyte", directory), ndim=1)
    require(len(pictures) == len(classes), f"{where}: {len(pictures)} images, but {len(classes)} labels beside it")
    return pictures[:, None], classes.astype(np.int64)
