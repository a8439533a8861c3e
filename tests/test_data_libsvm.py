"""LIBSVM text: what is written is read, and a bad line is named."""

from __future__ import annotations

import bz2
import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxfed.data import load
from proxfed.data.libsvm import read_libsvm
from proxfed.data.partitions import IID
from proxfed.errors import InputError


def write(features: np.ndarray, labels: np.ndarray) -> str:
    lines = []
    for row, label in zip(features.tolist(), labels.tolist(), strict=True):
        lines.append(" ".join([repr(label)] + [f"{j}:{value!r}" for j, value in enumerate(row, start=1) if value]))
    return "\n".join(lines) + "\n"


numbers = st.one_of(st.just(0.0), st.floats(allow_nan=False, allow_infinity=False))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=6))
def test_reading_is_the_inverse_of_writing(tmp_path, rows) -> None:
    table = np.array(rows)
    path = tmp_path / "data.txt"
    path.write_text(write(table[:, :3], table[:, 3]))
    features, labels = read_libsvm(path, n_features=3, sparse=False)
    np.testing.assert_array_equal(features, table[:, :3])
    np.testing.assert_array_equal(labels, table[:, 3])


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_files_are_read_too(tmp_path, suffix: str, pack) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(pack(b"+1 2:0.5 4:-3\n-1 \n1 1:1e3\n"))
    features, labels = read_libsvm(path)
    assert features.tolist() == [[0, 0.5, 0, -3], [0, 0, 0, 0], [1000, 0, 0, 0]]
    assert labels.tolist() == [1, -1, 1]


def test_blank_lines_comments_tabs_and_windows_endings_are_harmless(tmp_path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"# a comment 1:2\r\n\r\n1\t2:3  4:5 # note: this\r\n\n-1 1:7")
    features, labels = read_libsvm(path)
    assert features.tolist() == [[0, 3, 0, 5], [7, 0, 0, 0]]
    assert labels.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("yes 1:2", "label 'yes' is not a number"),
        ("1:2 3:4", "label '1:2' is not a number"),
        ("1 2", "'2' is not index:value"),
        ("1 2:", "'2:' is not index:value"),
        ("1 :2", "':2' is not index:value"),
        ("1 2:3:4 5", "'2:3:4' is not index:value"),
        ("1 2:x", "'2:x' is not index:value"),
        ("1 2:3x", "'2:3x' is not index:value"),
        ("1 1-2:3", "'1-2:3' is not index:value"),
        ("1 2 : 3", "'2' is not index:value"),
        ("1 2.5:3", "'2.5:3' is not index:value"),
        ("1 qid:3 1:2", "'qid:3' is not index:value"),
        ("1 0:3", "index 0 after 0; they start at 1"),
        ("1 -1:3", "'-1:3' is not index:value"),
        ("1 3:3 2:4", "index 2 after 3"),
        ("1 3:3 3:4", "index 3 after 3"),
        ("1 9:3", "feature index 9, but n_features = 5"),
        ("1,2:3", "label '1,2:3' is not a number"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line: str, says: str) -> None:
    path = tmp_path / "data.svm"
    path.write_text(f"1 1:1\n\n{line}\n-1 2:2\n")
    with pytest.raises(InputError) as error:
        read_libsvm(path, n_features=5)
    assert f"{path}, line 3: {says}" in str(error.value)


@pytest.mark.parametrize("name", ["data.gz", "data.bz2"])
def test_damaged_files_are_refused_in_one_sentence(tmp_path, name: str) -> None:
    path = tmp_path / name
    pack = {"data.gz": gzip.compress, "data.bz2": bz2.compress}[name]
    path.write_bytes(pack(b"1 1:1\n" * 1000)[:-12])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_libsvm(path)
    path.write_bytes(b"1 1:1\n")
    with pytest.raises(InputError, match="damaged or cut short"):
        read_libsvm(path)


def test_missing_and_empty_files_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_libsvm(tmp_path / "nothing")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="holds no samples"):
        read_libsvm(tmp_path / "empty")


def test_a9a_is_found_by_name_and_padded_to_its_width(tmp_path) -> None:
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("-1 1:1 123:1\n+1 2:1\n")
    with pytest.raises(InputError, match=r"there is no a9a\.t "):
        load("a9a", IID(2), tmp_path)
    (tmp_path / "a9a" / "a9a.t.bz2").write_bytes(bz2.compress(b"+1 122:1\n"))
    data = load("a9a", IID(2), tmp_path)
    assert data.features.shape == (2, 123)
    assert sorted(data.labels) == [-1, 1]
    assert data.test is not None
    assert data.test[0].shape == (1, 123)
