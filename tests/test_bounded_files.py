"""Small files that hold large ones, and files that promise what nobody has room for, are refused in one sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from proxfed import files
from proxfed.data import directory
from proxfed.data.column_files import read_columns
from proxfed.data.directory import read_bytes
from proxfed.data.libsvm import read_libsvm
from proxfed.errors import InputError
from proxfed.fit.model_file import parse_model
from proxfed.harness.results import Results
from proxfed.registry import read_toml

from support.run_folders import folder, row, state

ROOM = 1 << 20
TOO_MUCH = r"its content takes more than .* GB, half of this machine's memory$"


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "room", lambda: ROOM)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), ("", bytes)])
def test_a_compressed_bomb(suffix: str, compress, tmp_path: Path, little_room: None) -> None:
    path = tmp_path / f"data.csv{suffix}"
    path.write_bytes(compress(bytes(ROOM)))
    assert len(read_bytes(path)) == ROOM
    path.write_bytes(compress(bytes(ROOM + 1)))
    with pytest.raises(InputError, match=TOO_MUCH):
        read_bytes(path)


def test_an_npz_bomb(tmp_path: Path, little_room: None) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", features=np.zeros((10, ROOM // 80)), labels=np.zeros(10))
    with pytest.raises(InputError, match=TOO_MUCH):
        read_columns(tmp_path / "bomb.npz")


@pytest.mark.parametrize("shape", [(1 << 60,), (1 << 62, 1 << 62), (-1,)])
def test_an_array_that_promises_too_much(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Its header says so, its data are a few bytes."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "promise.npz", "w") as zipped:
        zipped.writestr("features.npy", head.getvalue() + bytes(80))
    with pytest.raises(InputError, match=r"is not an \.npz file of plain arrays"):
        read_columns(tmp_path / "promise.npz")


def test_a_libsvm_index_that_makes_all_rows_too_wide(tmp_path: Path, little_room: None) -> None:
    (tmp_path / "wide").write_text("1 1:1\n-1 999999999999:1\n")
    with pytest.raises(InputError, match=TOO_MUCH):
        read_libsvm(tmp_path / "wide")
    (tmp_path / "wide").write_text(f"1 1:1\n-1 {ROOM // 16 + 1}:1\n")
    assert read_libsvm(tmp_path / "wide")[0].shape == (2, ROOM // 16 + 1)
    with pytest.raises(InputError, match=TOO_MUCH):
        read_libsvm(tmp_path / "wide", sparse=False)


def test_a_parquet_file_with_many_rows_in_few_bytes(tmp_path: Path, little_room: None) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": np.zeros(ROOM // 8 + 1), "label": np.zeros(ROOM // 8 + 1)})
    parquet.write_table(table, tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < ROOM // 10
    with pytest.raises(InputError, match=TOO_MUCH):
        read_columns(tmp_path / "bomb.parquet")


# ---- text -----------------------------------------------------------------------------------------------------------


def test_text_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large.toml").write_text("a = 1\n" * 10)
    with pytest.raises(InputError, match="which no such file should be"):
        files.read(tmp_path / "large.toml", 59)
    assert len(files.read(tmp_path / "large.toml", 60)) == 60
    with pytest.raises(InputError, match="which no such file should be"):
        files.read(Path("/dev/zero"), 1000)  # which has no size


def test_memory_follows_the_file_and_not_the_limit(tmp_path: Path) -> None:
    """A small file is read where not much address space is left."""
    (tmp_path / "small.csv").write_bytes(b"1,2\n" * 1000)
    (tmp_path / "small.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 1000))
    code = (
        "import resource; from pathlib import Path; from proxfed import files; from proxfed.data import directory\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)\n"
        "directory.room = lambda: 1 << 40\n"
        "assert len(files.read('small.csv', files.LARGEST_ROWS)) == 4000\n"
        "assert len(directory.read_bytes('small.csv')) == len(directory.read_bytes('small.csv.gz')) == 4000\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250])
@pytest.mark.parametrize("said", [0, 1, 100, 1000])
def test_files_of_any_size_are_read_up_to_the_limit(size: int, said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxfed.files.whole.PIECE", 7)
    data = bytes(range(250))[:size]
    assert files.read_some(io.BytesIO(data), 100, said) == data[:100]


DEEP = ["x = " + "[" * 100_000, "[" + "a." * 100_000 + "b]", "x = " + "{a=" * 50_000]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_toml_of_any_depth(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text(text)
    try:
        read_toml(tmp_path / "deep.toml")
    except InputError as e:
        said = str(e)
    else:
        said = ""
    assert "\n" not in said


@pytest.mark.parametrize("name", ["status.json", "versions.json", "clients.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 9999, "1e999", '["x"]', "NaN"], ids=range(6))
def test_json_of_any_depth_in_a_run_folder(name: str, text: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "run", [row()], [state()])
    (path / name).write_text(text)
    with pytest.raises(InputError) as refused:
        Results.read(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_json_of_any_depth_as_a_model() -> None:
    for text in ("[" * 100_000, '{"form": "proxfed model 1", "sha256": ' + "[" * 100_000):
        with pytest.raises(InputError):
            parse_model(text)
