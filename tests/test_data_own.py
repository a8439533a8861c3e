"""Users' own files: any of the formats, by file or by column, gives the same clients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from proxfed.data import load
from proxfed.data.own import own
from proxfed.data.partitions import IID
from proxfed.errors import InputError

NORTH = [[1.0, 2.5, 1], [3.0, -4.0, -1], [0.1, 1e-30, 1]]
SOUTH = [[5.0, 6.0, -1], [7.0, 8.0, -1]]


@pytest.mark.parametrize("word", ["\u0661\u0662", "1.34\u0661\u066259", "1_000"])
def test_digits_of_other_scripts_are_no_numbers(word: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [[1.0, word, 1], [2.0, 3.0, -1]])
    with pytest.raises(InputError, match="dose"):
        own(tmp_path / "a.csv", label="label")


def write_csv(path: Path, rows, header=("age", "dose", "label")) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(header)] + [",".join(map(str, row)) for row in rows]) + "\n")


def write_npz(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.array(rows)
    np.savez(path, features=table[:, :2], label=table[:, 2])


def write_parquet(path: Path, rows) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict(zip(("age", "dose", "label"), zip(*rows, strict=True), strict=True))
    parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), path)


def assert_north_and_south(data) -> None:
    assert len(data) == 2
    for i, rows in enumerate((NORTH, SOUTH)):
        np.testing.assert_array_equal(data.client(i)[0], np.array(rows)[:, :2])
        np.testing.assert_array_equal(data.client(i)[1], np.array(rows)[:, 2])


@pytest.mark.parametrize(("suffix", "write"), [(".csv", write_csv), (".npz", write_npz), (".parquet", write_parquet)])
def test_a_folder_has_one_file_per_client(tmp_path, suffix: str, write) -> None:
    write(tmp_path / "sites" / f"south{suffix}", SOUTH)
    write(tmp_path / "sites" / f"north{suffix}", NORTH)
    (tmp_path / "sites" / "README.txt").write_text("not data")
    data = load("own", path=tmp_path / "sites")
    assert_north_and_south(data)
    assert data.name == "sites"
    assert data.test is None


def test_one_file_names_the_client_of_each_row(tmp_path) -> None:
    rows = [
        (*SOUTH[0], "south"),
        (*NORTH[0], "north"),
        (*NORTH[1], "north"),
        (*SOUTH[1], "south"),
        (*NORTH[2], "north"),
    ]
    write_csv(tmp_path / "all.csv", rows, ("age", "dose", "label", "site"))
    assert_north_and_south(load("own", path=tmp_path / "all.csv", client="site"))


def test_names_of_clients_are_not_numbers(tmp_path) -> None:
    names = ["9007199254740992", "9007199254740993", "007", "7", "7e0"]
    write_csv(tmp_path / "all.csv", [(1.0, i, 0, name) for i, name in enumerate(names)], ("a", "b", "label", "site"))
    assert len(load("own", path=tmp_path / "all.csv", client="site").sizes) == 5


def test_numbered_clients_come_in_the_order_of_their_numbers(tmp_path) -> None:
    write_csv(tmp_path / "all.csv", [(float(i), 0, i % 2, i) for i in (10, 9, 2)], ("a", "b", "label", "site"))
    data = load("own", path=tmp_path / "all.csv", client="site")
    assert [float(data.client(i)[0][0, 0]) for i in range(3)] == [2, 9, 10]


def test_one_npz_file_names_the_client_of_each_row(tmp_path) -> None:
    table = np.array(SOUTH + NORTH)
    np.savez(tmp_path / "all.npz", features=table[:, :2], label=table[:, 2], site=[2, 2, 1, 1, 1])
    assert_north_and_south(load("own", path=tmp_path / "all.npz", client="site"))


def test_one_parquet_file_names_the_client_of_each_row(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    age, dose, label = zip(*(SOUTH + NORTH), strict=True)
    columns = {"age": age, "site": ["s", "s", "n", "n", "n"], "dose": dose, "label": label}
    parquet.write_table(
        pyarrow.table({name: list(values) for name, values in columns.items()}), tmp_path / "all.parquet"
    )
    assert_north_and_south(load("own", path=tmp_path / "all.parquet", client="site"))
    gap = pyarrow.table({"age": [1.0, 2.0], "site": ["n", None], "label": [1, 0]})
    parquet.write_table(gap, tmp_path / "gap.parquet")
    with pytest.raises(InputError, match="column 'site': row 2 is empty"):
        own(tmp_path / "gap.parquet", client="site")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="is not a Parquet file"):
        own(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs pyarrow"):
        own(tmp_path / "a.parquet")


def test_one_file_without_clients_is_split_by_a_partition(tmp_path) -> None:
    write_csv(tmp_path / "all.csv", NORTH + SOUTH)
    assert load("own", IID(5), path=tmp_path / "all.csv").sizes.tolist() == [1] * 5
    with pytest.raises(InputError, match="needs a partition"):
        load("own", path=tmp_path / "all.csv")


def test_columns_may_come_in_any_order(tmp_path) -> None:
    write_csv(tmp_path / "sites" / "north.csv", NORTH)
    write_csv(tmp_path / "sites" / "south.csv", [row[::-1] for row in SOUTH], ("label", "dose", "age"))
    assert_north_and_south(load("own", path=tmp_path / "sites"))


def test_images_in_an_npz_file_keep_their_shape_and_their_bytes(tmp_path) -> None:
    features = np.arange(96, dtype=np.uint8).reshape(2, 3, 4, 4)
    np.savez(tmp_path / "pictures.npz", features=features, label=[1, 0])
    data = own(tmp_path / "pictures.npz", classes=2)
    assert data.features.dtype == np.uint8
    np.testing.assert_array_equal(data.features, features)


def test_words_are_classes_in_alphabetical_order_over_all_files(tmp_path) -> None:
    write_csv(tmp_path / "s" / "1.csv", [(1, 2, "malignant"), (1, 2, "benign")])
    write_csv(tmp_path / "s" / "2.csv", [(1, 2, "benign"), (3, 4, "cyst")])
    write_csv(tmp_path / "test.csv", [(9, 9, "cyst")])
    data = load("own", path=tmp_path / "s", test=tmp_path / "test.csv")
    assert data.classes == 3
    assert data.labels.tolist() == [2, 0, 0, 1]
    assert data.test is not None
    assert data.test[1].tolist() == [1]
    with pytest.raises(InputError, match="classes = 2 but the labels are 3 words: benign, cyst, malignant"):
        own(tmp_path / "s", classes=2)


def test_a_test_file_is_held_by_nobody(tmp_path) -> None:
    write_csv(tmp_path / "s" / "north.csv", NORTH)
    write_csv(tmp_path / "s" / "south.csv", SOUTH)
    write_csv(tmp_path / "s" / "test.csv", [[9, 9, 1]])
    data = load("own", path=tmp_path / "s", test=tmp_path / "s" / "test.csv")
    assert_north_and_south(data)
    assert data.test is not None
    assert data.test[0].tolist() == [[9, 9]]
    write_csv(tmp_path / "all.csv", [(*row, "n") for row in NORTH], ("age", "dose", "label", "site"))
    write_csv(tmp_path / "t.csv", [(9, 9, 1, "x")], ("age", "dose", "label", "site"))
    for test in ("t.csv", "s/test.csv"):  # with the client column, or without
        assert own(tmp_path / "all.csv", client="site", test=tmp_path / test).test_labels.tolist() == [1]


def test_the_same_part_of_every_client_is_held_out(tmp_path) -> None:
    for name, size, start in (("a", 10, 0), ("b", 25, 100)):
        write_csv(tmp_path / "s" / f"{name}.csv", [(start + k, 0, 1) for k in range(size)])
    data = load("own", path=tmp_path / "s", held_out=0.2, seed=1)
    assert data.sizes.tolist() == [8, 20]
    assert data.test is not None
    assert len(data.test[1]) == 7
    ages = np.concatenate([data.features[:, 0], data.test[0][:, 0]])
    assert sorted(ages) == [*range(10), *range(100, 125)]
    assert (data.test[0][:, 0] < 100).sum() == 2
    again = load("own", path=tmp_path / "s", held_out=0.2, seed=1)
    np.testing.assert_array_equal(data.features, again.features)
    other = load("own", path=tmp_path / "s", held_out=0.2, seed=2)
    assert (data.features != other.features).any()


def test_windows_files_with_a_mark_and_quotes_are_read(tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufeffage,"dose, mg",label\r\n1,2,"yes"\r\n3,4,no\r\n\r\n'.encode())
    data = own(tmp_path / "a.csv")
    assert data.features.tolist() == [[1, 2], [3, 4]]
    assert data.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age,label\n1,0\nold,1\n", "column 'age': row 2 holds 'old', which is not a number"),
        ("age,label\n1,0\n,1\n", "column 'age': row 2 holds '', which is not a number"),
        ("age,label\n1,0\n2,\n", "column 'label': row 2 is empty"),
        ("age,label\n1,0\n2,1,5\n", "row 2 has 3 fields, but the header has 2"),
        ("age,age,label\n1,0,1\n", "two columns have the same name"),
        ("age,label\n", "needs a header and at least one row"),
        ("", "needs a header and at least one row"),
        ("age,outcome\n1,0\n", "has no column 'label', only age, outcome"),
        ("label\n1\n", "has no features beside its labels"),
        ('age,label\n"1,0\n', "is not a CSV file"),
    ],
)
def test_a_bad_csv_file_is_refused(tmp_path, text: str, says: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=says) as error:
        own(tmp_path / "a.csv")
    assert str(error.value).startswith(str(tmp_path / "a.csv"))


def test_nan_is_refused_when_handed_out(tmp_path) -> None:
    write_csv(tmp_path / "s" / "a.csv", NORTH)
    write_csv(tmp_path / "s" / "b.csv", [(1, 2, 1), (1, "nan", 1)])
    with pytest.raises(InputError, match="row 1 of client 1 has a feature that is NaN or infinite"):
        load("own", path=tmp_path / "s")


def test_files_that_are_unlike_are_refused(tmp_path) -> None:
    write_csv(tmp_path / "s" / "a.csv", NORTH)
    write_csv(tmp_path / "s" / "b.csv", SOUTH, ("age", "weight", "label"))
    with pytest.raises(InputError, match=r"b.csv: has no column 'dose', unlike .*a.csv"):
        own(tmp_path / "s")
    write_csv(tmp_path / "s" / "b.csv", [[*row, 1] for row in SOUTH], ("age", "dose", "label", "weight"))
    with pytest.raises(InputError, match=r"b.csv: has a column 'weight', unlike"):
        own(tmp_path / "s")
    write_csv(tmp_path / "s" / "b.csv", [(1, 2, "yes")])
    with pytest.raises(InputError, match="one has words as labels, the other numbers"):
        own(tmp_path / "s")
    np.savez(tmp_path / "a.npz", features=np.zeros((2, 3)), label=np.zeros(2))
    np.savez(tmp_path / "b.npz", features=np.zeros((2, 4)), label=np.zeros(2))
    with pytest.raises(InputError, match=r"b.npz: samples have shape \(4,\)"):
        own(tmp_path / "a.npz", test=tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"label": np.zeros(2)}, "has no features beside"),
        ({"label": np.zeros(2), "x": np.zeros(2)}, "must hold the array 'features', not x"),
        ({"label": np.zeros(2), "features": np.zeros((3, 1))}, "3 samples but 2 labels"),
        ({"label": np.zeros(2), "features": np.array([["a"], ["b"]])}, "row 1 holds 'a', which is not a number"),
        ({"label": np.array([0, None]), "features": np.zeros((2, 1))}, "not an .npz file of plain arrays"),
    ],
)
def test_a_bad_npz_file_is_refused(tmp_path, arrays, says: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=says):
        own(tmp_path / "a.npz")


def test_an_npz_file_that_is_none_is_refused(tmp_path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, features=np.zeros((2000, 1)), label=np.zeros(2000))
    whole = path.read_bytes()
    np.save(tmp_path / "b.npy", np.zeros(3))
    for content in (
        b"",
        b"PK\x03\x04",
        whole[:-30],
        whole[:80] + b"\xff" * 40 + whole[120:],
        (tmp_path / "b.npy").read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not an"):
            own(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "nowhere"}, "path = .*nowhere' does not exist"),
        ({"path": "s", "client": "site"}, "client = 'site' has no meaning"),
        ({"path": "empty"}, "there is no .csv, .npz, .parquet file in"),
        ({"path": "s/a.csv", "client": "site"}, "has no column 'site', only age, dose, label"),
        ({"path": "notes.txt"}, "is not one of the formats .csv, .npz, .parquet"),
        ({"path": "s", "held_out": 1.0}, "held_out = 1.0 must be"),
        ({"path": "s", "held_out": 0.1}, "held_out = 0.1 is less than one row"),
        ({"path": "s", "held_out": 0.5, "test": "t.csv"}, "exclude each other"),
        ({"path": "s", "test": "t.csv"}, "t.csv: there is no such file"),
    ],
)
def test_bad_settings_are_refused(tmp_path, monkeypatch, options, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "s" / "a.csv", NORTH)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=says):
        own(**options)
