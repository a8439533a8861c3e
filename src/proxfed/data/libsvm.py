"""Text files of LIBSVM: a line is `label index:value index:value ...`, indices from 1, ascending; the rest is zero.

Read as SparseRows if fewer than one in ten entries are non-zero: a pass over the dense matrix would take longer.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from proxfed.data.directory import read_bytes, require_room
from proxfed.data.federated import Dataset, Samples
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import InputError, require

SPARSE_BELOW = 0.1
"""The density below which features stay sparse."""


def libsvm(
    path: str | Path,
    test: str | Path | None = None,
    n_features: int | None = None,
    classes: int | None = None,
    sparse: bool | None = None,
) -> Dataset:
    """A training file in LIBSVM format, and optionally a test file.

    n_features   default: the largest index in both files
    classes      the number of classes, numbered in the order of their labels; None: labels are numbers; two different
                 labels become -1 and +1
    sparse       whether features stay sparse; None: if fewer than one in ten entries are non-zero
    """
    files = [Path(file).expanduser() for file in (path, test) if file is not None]
    parts = [read_libsvm(file, n_features, True) for file in files]
    width = n_features or max(X.shape[1] for X, _ in parts)
    wide = [SparseRows(*X.arrays, width) for X, _ in parts if isinstance(X, SparseRows)]
    sparse = density(wide[0]) < SPARSE_BELOW if sparse is None else sparse
    features = [_stored(file, X, sparse) for file, X in zip(files, wide, strict=True)]
    labels = _numbered(files[0], [b for _, b in parts], classes)
    data = Dataset(features[0], labels[0], classes=classes, name=files[0].stem)
    return data if test is None else replace(data, test_features=features[1], test_labels=labels[1])


def _numbered(path: Path, labels: list[np.ndarray], classes: int | None) -> list[np.ndarray]:
    values, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    if classes is None:
        return [np.where(b == values[0], -1.0, 1.0) for b in labels] if len(values) == 2 else labels
    require(len(values) <= classes, f"{path}: has {len(values)} labels, but classes = {classes}")
    return np.split(numbers, [len(labels[0])])[: len(labels)]


def density(X: SparseRows) -> float:
    """The share of non-zero entries."""
    return len(X.values) / max(1, len(X) * X.width)


def read_libsvm(path: str | Path, n_features: int | None = None, sparse: bool | None = None) -> Samples:
    """(features (N, n_features), labels (N,)) in float64; by default n_features is the largest index.

    sparse   as SparseRows; None: if fewer than one in ten entries are non-zero
    """
    text = read_bytes(path)
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    require(len(text.strip()) > 0, f"{path}: holds no samples")
    labels, rows, columns, values = _parse(path, text)
    width = int(columns.max(initial=0))
    if n_features is None:
        n_features = width
    elif width > n_features:
        line = _line_of_sample(text, rows[columns.argmax()])
        raise InputError(f"{path}, line {line}: feature index {width}, but n_features = {n_features}")
    require_room(path, 8 * n_features)  # for a single row, or a model
    counts = np.bincount(rows, minlength=len(labels))
    features = SparseRows(values, columns - 1, np.concatenate(([0], counts.cumsum())), n_features)
    return _stored(path, features, density(features) < SPARSE_BELOW if sparse is None else sparse), labels


def _stored(path: str | Path, features: SparseRows, sparse: bool) -> Features:
    if sparse:
        return features
    require_room(path, 8 * len(features) * features.width)
    return features.toarray()


def _parse(path: str | Path, text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(labels, row of each entry, its index, its value).

    All numbers of the file are converted in one call. The format is checked by the positions of blanks and colons; if
    it is wrong, `_blame` goes through the lines to find the first bad one.
    """
    chars = np.frombuffer(text, np.uint8)
    blank = (chars == ord(" ")) | ((chars >= 9) & (chars <= 13))
    starts = ~blank & np.concatenate(([True], blank[:-1]))  # of tokens
    line_of_token = (chars == ord("\n")).cumsum()[starts]
    is_label = np.diff(line_of_token, prepend=-1) > 0
    colons = np.flatnonzero(chars == ord(":"))
    per_token = np.bincount(starts.cumsum()[colons] - 1, minlength=len(is_label)) if len(colons) else 0 * is_label
    apart = np.concatenate((colons - 1, colons + 1)).clip(0, len(chars) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # text that is not a number ends the conversion early
        try:
            numbers = np.fromstring(text.replace(b":", b" "), sep=" ")
        except ValueError:
            numbers = np.empty(0)
    if len(numbers) != len(is_label) + len(colons) or (per_token != ~is_label).any() or blank[apart].any():
        _blame(path, text)
    at = (1 + ~is_label).cumsum() - (1 + ~is_label)  # the position of each token's first number
    entries = at[~is_label]
    index, values, rows = numbers[entries], numbers[entries + 1], is_label.cumsum()[~is_label] - 1
    columns = index.astype(np.int64)
    same_row = np.diff(rows, prepend=-1) == 0
    if (columns != index).any() or (columns < 1).any() or (same_row & (np.diff(columns, prepend=0) <= 0)).any():
        _blame(path, text)
    return numbers[at[is_label]], rows, columns, values


def _blame(path: str | Path, text: bytes) -> None:
    """Find the first line that is not in the format, and say why."""
    for number, line in enumerate(text.decode("latin-1").split("\n"), start=1):
        if not line.strip():
            continue
        label, *entries = line.split()
        require(_is_number(label), f"{path}, line {number}: label {label!r} is not a number")
        last = 0
        for entry in entries:
            index, colon, value = entry.partition(":")
            ok = colon and index.isascii() and index.isdigit() and _is_number(value)
            require(bool(ok), f"{path}, line {number}: {entry!r} is not index:value")
            require(int(index) > last, f"{path}, line {number}: index {index} after {last}; they start at 1 and ascend")
            last = int(index)
    raise InputError(f"{path}: is not a LIBSVM file")


def _line_of_sample(text: bytes, row: int) -> int:
    """The number of the line that holds this sample, empty lines counted."""
    full = [number for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]
    return full[row]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word
