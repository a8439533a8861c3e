"""`proxfed data` as a user meets it, and the record of who holds what in a run folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from proxfed.data import DATASETS, FILES, load
from proxfed.data.directory import Collection, Sum
from proxfed.data.federated import counts
from proxfed.data.partitions import DirichletByClass, Shards
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.report.circles import circles_svg
from proxfed.report.client_stats import ClientStats, rich_picture

from support.cli import proxfed, refused
from support.small_experiment import small, write

CONTENT = {"train": b"many samples", "test": b"few"}


def as_json(capsys: Any, *arguments: str) -> Any:
    code, said, complaint = proxfed(capsys, *arguments, "--format", "json")
    assert code == 0, complaint
    return json.loads(said)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """A9A as if it consisted of two tiny files, published in a folder of this machine."""
    (tmp_path / "published").mkdir()
    for name, content in CONTENT.items():
        (tmp_path / "published" / f"{name}.gz").write_bytes(gzip.compress(content))
    sums = {name: Sum(hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()}
    url = (tmp_path / "published").as_uri() + "/{name}.gz"
    files = Collection(("a9a",), "the page of a9a", sums, url=url)
    monkeypatch.setitem(FILES, "a9a", (files,))
    return files


def place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# ---- list ---------------------------------------------------------------------------------------------------------


def test_list_knows_every_dataset_and_which_files_are_there(capsys: Any, published: Any, tmp_path: Path) -> None:
    place(tmp_path / "data" / "a9a" / "test.gz", b"whatever: nothing is hashed")
    listed = as_json(capsys, "data", "list", "--data", str(tmp_path / "data"))
    assert listed["directory"] == str(tmp_path / "data")
    entries = {entry["name"]: entry for entry in listed["datasets"]}
    assert entries.keys() == DATASETS.keys()
    assert all(entry["about"] for entry in entries.values())
    folder = tmp_path / "data" / "a9a"
    assert entries["a9a"]["files"] == [
        {"path": str(folder / "train"), "there": False},
        {"path": str(folder / "test.gz"), "there": True},
    ]
    assert entries["digits"]["files"] == []
    assert len(entries["mnist_writers"]["files"]) == 6


def test_list_says_so_in_a_table(capsys: Any, published: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path / "data"))
    for name, words in (("", "none of 2 in a9a"), ("test", "1 of 2 in a9a"), ("train", "all 2 in a9a")):
        if name:
            place(tmp_path / "data" / "a9a" / name, b"")
        code, said, _ = proxfed(capsys, "data", "list", width=200)
        assert code == 0
        assert words in said
    assert str(tmp_path / "data") in said
    assert "none needed" in said


def test_the_form_of_cifar10_that_is_there_counts(capsys: Any, tmp_path: Path) -> None:
    place(tmp_path / "cifar10" / "webp" / "test_batch.webp", b"")
    listed = as_json(capsys, "data", "list", "--data", str(tmp_path))
    files = next(entry["files"] for entry in listed["datasets"] if entry["name"] == "cifar10")
    assert [Path(file["path"]).name for file in files if file["there"]] == ["test_batch.webp"]
    assert len(files) == 6


# ---- check --------------------------------------------------------------------------------------------------------


def test_check_tells_right_from_wrong(capsys: Any, published: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    place(data / "a9a" / "train", CONTENT["train"])
    found = as_json(capsys, "data", "check", "a9a", "--data", str(data))
    assert [entry["state"] for entry in found] == ["as published", "missing"]
    place(data / "a9a" / "test", CONTENT["test"] + b"!")
    code, said, _ = proxfed(capsys, "data", "check", "a9a", "--data", str(data))
    assert code == 1
    assert [line.split()[1:] for line in said.splitlines()[1:3]] == [
        ["a9a/train", "as", "published"],
        ["a9a/test", "differs"],
    ]


def test_check_all_checks_what_is_there(capsys: Any, published: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert as_json(capsys, "data", "check", "--all", "--data", str(data)) == []
    assert "no files of any dataset" in proxfed(capsys, "data", "check", "--all", "--data", str(data))[1]
    place(data / "a9a" / "train", CONTENT["train"])
    found = as_json(capsys, "data", "check", "--all", "--data", str(data))
    assert {entry["dataset"] for entry in found} == {"a9a"}


def test_check_does_not_overlook_a_missing_half(capsys: Any, tmp_path: Path) -> None:
    """The writers are useless without the digits that they wrote."""
    place(tmp_path / "qmnist-writers" / "qmnist-train-labels-idx2-int", b"")
    code, said, _ = proxfed(capsys, "data", "check", "mnist_writers", "--data", str(tmp_path), "--format", "json")
    states = {Path(entry["path"]).name: entry["state"] for entry in json.loads(said)}
    assert code == 1
    assert states["qmnist-train-labels-idx2-int"] == "differs"
    assert states["train-images-idx3-ubyte"] == "missing"
    assert len(states) == 6


def test_check_refuses_what_it_cannot_check(capsys: Any, tmp_path: Path) -> None:
    assert "there is no train-images-idx3-ubyte" in refused(capsys, "data", "check", "mnist", "--data", str(tmp_path))
    assert "did you mean 'mnist'?" in refused(capsys, "data", "check", "minst")
    assert "names of datasets or --all" in refused(capsys, "data", "check")
    assert "names of datasets or --all" in refused(capsys, "data", "check", "mnist", "--all")


# ---- fetch --------------------------------------------------------------------------------------------------------


def test_fetch_and_then_check(capsys: Any, published: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = as_json(capsys, "data", "fetch", "a9a", "--data", data)
    assert [(Path(entry["path"]).name, entry["state"]) for entry in first] == [
        ("train.gz", "fetched"),
        ("test.gz", "fetched"),
    ]
    assert {entry["state"] for entry in as_json(capsys, "data", "check", "a9a", "--data", data)} == {"as published"}
    code, said, _ = proxfed(capsys, "data", "fetch", "a9a", "--data", data, width=200)
    assert code == 0
    assert said.count("was there") == 2


def test_fetch_refuses_in_one_sentence(capsys: Any, published: Any, tmp_path: Path) -> None:
    (tmp_path / "published" / "test.gz").write_bytes(gzip.compress(b"others"))
    said = refused(capsys, "data", "fetch", "a9a", "--data", str(tmp_path / "data"), code=1)
    for part in ("cannot fetch test", "published/test.gz", "the page of a9a", str(tmp_path / "data" / "a9a")):
        assert part in said
    assert "nothing to fetch for 'digits'" in refused(capsys, "data", "fetch", "digits")
    assert "NAME" in refused(capsys, "data", "fetch")


# ---- show ---------------------------------------------------------------------------------------------------------


def test_show_counts_what_an_experiment_hands_out(capsys: Any, tmp_path: Path) -> None:
    table = small(
        data={"name": "digits", "partition": {"name": "dirichlet_by_class", "num_partitions": 6, "alpha": 0.3}},
        problem={"name": "softmax"},
    )
    file = str(write(tmp_path / "digits.toml", table))
    for alpha in (0.3, 5.0):
        shown = as_json(capsys, "data", "show", file, "-c", f"data.partition.alpha={alpha}")
        data = load("digits", DirichletByClass(6, alpha))
        assert shown["counts"] == counts(data).tolist()
        assert shown["sizes"] == data.sizes.tolist()
        assert shown["classes"] == [str(k) for k in range(10)]
        assert shown["held_out"] == 359


def test_show_takes_shipped_experiments(capsys: Any) -> None:
    shown = as_json(capsys, "data", "show", "demo", "-c", "data.clients=4", "-c", "data.samples=50")
    assert shown["sizes"] == [50] * 4
    assert shown["classes"] == ["-1", "+1"]


def test_show_takes_datasets_with_and_without_a_partition(capsys: Any) -> None:
    together = as_json(capsys, "data", "show", "digits")
    assert together["sizes"] == [1438]
    partition = ["-c", "data.partition.name=shards", "-c", "data.partition.num_partitions=7"]
    shown = as_json(capsys, "data", "show", "digits", *partition)
    assert shown["counts"] == counts(load("digits", Shards(7))).tolist()
    assert np.sum(shown["counts"], axis=0).tolist() == together["counts"][0]
    assert len(as_json(capsys, "data", "show", "synthetic", "-c", "data.clients=5")["sizes"]) == 5


def test_show_takes_data_whose_labels_are_numbers(capsys: Any, tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 3},{'ab'[i > 3]}\n" for i in range(10))
    (tmp_path / "own.csv").write_text("label,x,who\n" + rows)
    arguments = ["data", "show", "own", "-c", f"data.path={tmp_path / 'own.csv'}", "-c", "data.client=who"]
    shown = as_json(capsys, *arguments)
    (tmp_path / "own.csv").write_text("label,x,who\n" + rows.replace("7", "8"))
    assert shown.pop("checksum") != as_json(capsys, *arguments)["checksum"]
    assert shown == {"data": "own", "held_out": 0, "sizes": [4, 6], "classes": [], "counts": None}
    code, said, _ = proxfed(capsys, *arguments)
    assert code == 0
    assert "2 clients hold 10 samples: 4 to 6 each (median 5)." in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["diggits"], "there is no experiment or dataset 'diggits'; did you mean 'digits'?"),
        (["digits", "-c", "rounds=3"], "only keys that start with 'data.'"),
        (["digits", "-c", "data=3"], "only keys that start with 'data.'"),
        (["digits", "-c", "data.name.x=3"], "'x' is not inside a table"),
        (["digits", "-c", "data.fold=3"], "unknown key 'fold'"),
        (["digits", "-c", "data.partition.name=iidd"], "did you mean 'iid'?"),
        (["demo", "-c", "data.clients=0"], "clients = 0"),
        (["nowhere.toml"], "No such file"),
        (["digits", "--out", "picture.png"], "must end in .svg"),
    ],
)
def test_show_refuses_in_one_sentence(capsys: Any, arguments: list[str], sentence: str) -> None:
    assert sentence in refused(capsys, "data", "show", *arguments)


def test_a_drawing_that_cannot_be_written(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "picture.svg"
    assert f"cannot write the drawing to {path}" in refused(
        capsys, "data", "show", "digits", "--out", str(path), code=1
    )


# ---- the pictures -------------------------------------------------------------------------------------------------


def stats(n: int, classes: int) -> ClientStats:
    table = np.random.default_rng(n + classes).integers(0, 400, (n, classes))
    table[:, -1] += 1
    return ClientStats(table.sum(axis=1), table, tuple(map(str, range(classes))))


def printed(held: ClientStats, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(rich_picture(held, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("classes", [1, 2, 10, 26, 47, 100, 1000])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_line_per_client_that_fits_whatever_the_number_of_classes(classes: int, width: int) -> None:
    held = stats(12, classes)
    lines = printed(held, width)
    assert max(map(len, lines)) <= width
    start = next(i for i, line in enumerate(lines) if line.startswith("client")) + 1
    for i in range(12):
        client, size, *_ = lines[start + i].split()
        assert (int(client), int(size.replace(",", ""))) == (i, held.sizes[i])


def test_cells_are_the_stronger_the_larger_the_part() -> None:
    table = np.array([[0, 1, 2, 3, 4], [10, 0, 0, 0, 0]])
    held = ClientStats(table.sum(axis=1), table, ("a", "b", "c", "d", "e"))
    lines = printed(held, 80)
    cells = [line.split()[3:] for line in lines if line.split()[:1] in (["0"], ["1"])]
    assert cells == [["··", "░░", "░░", "▒▒", "▒▒"], ["██", "··", "··", "··", "··"]]


def test_many_clients_are_summed_up() -> None:
    held = stats(500, 4)
    lines = printed(held, 80)
    assert len(lines) < 40
    samples = next(line for line in lines if line.startswith("samples"))
    numbers = [int(word.replace(",", "")) for word in samples.split()[1:]]
    assert numbers == [round(float(np.percentile(held.sizes, q))) for q in (0, 5, 25, 50, 75, 95, 100)]


def test_areas_of_circles_are_numbers_of_samples(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    partition = ["-c", "data.partition.name=dirichlet_by_class", "-c", "data.partition.num_partitions=5"]
    assert (
        proxfed(capsys, "data", "show", "digits", *partition, "-c", "data.partition.alpha=1", "--out", str(path))[0]
        == 0
    )
    table = counts(load("digits", DirichletByClass(5, 1.0)))
    circles = [e for e in xml.parse(path).getroot() if e.tag.endswith("circle")]
    columns = sorted({float(c.attrib["cx"]) for c in circles})
    lines = sorted({float(c.attrib["cy"]) for c in circles})
    assert (len(lines), len(columns)) == table.shape
    assert len(circles) == np.count_nonzero(table)
    largest = max(float(c.attrib["r"]) for c in circles)
    for c in circles:
        count = table[lines.index(float(c.attrib["cy"])), columns.index(float(c.attrib["cx"]))]
        if count > 5:  # smaller ones are drawn as large as the eye needs
            assert (float(c.attrib["r"]) / largest) ** 2 == pytest.approx(count / table.max(), abs=0.01)


@pytest.mark.parametrize("held", [stats(3000, 100), ClientStats(np.array([3, 4])), stats(1, 1)])
def test_drawings_are_well_formed_and_bounded(held: ClientStats) -> None:
    text = circles_svg(held)
    root = xml.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root:
        if shape.tag.endswith("text"):
            assert 0 <= float(shape.attrib["x"]) <= width
            assert 0 <= float(shape.attrib["y"]) <= height
    assert len(text) < 3_000_000


# ---- in a run folder ----------------------------------------------------------------------------------------------


def test_a_run_records_who_holds_what(capsys: Any, tmp_path: Path) -> None:
    table = small(
        rounds=1, seeds=[0], reference=False, algorithms=small()["algorithms"][:1], problem={"name": "softmax"},
        data={"name": "digits", "partition": {"name": "shards", "num_partitions": 7}},
    )  # fmt: skip
    folder = tmp_path / "run"
    assert proxfed(capsys, "run", str(write(tmp_path / "x.toml", table)), "--out", str(folder))[0] == 0
    held = RunFolder(folder).clients()
    data = load("digits", Shards(7))
    assert held is not None
    assert held.counts is not None
    assert held.counts.tolist() == counts(data).tolist()
    assert held.sizes.tolist() == data.sizes.tolist()
    report = (folder / "report.html").read_text()
    assert held.sentence() in report
    (folder / "clients.json").unlink()  # a folder of an earlier version
    assert RunFolder(folder).clients() is None
    assert proxfed(capsys, "report", str(folder))[0] == 0
    assert held.sentence() not in (folder / "report.html").read_text()


# ---- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "check", "fetch", "show"])
def test_help_has_an_example(capsys: Any, command: str) -> None:
    code, said, _ = proxfed(capsys, "data", command, "--help")
    assert code == 0
    assert "Example" in said
    assert "--data" in said


def test_without_a_command_there_is_help_and_no_complaint(capsys: Any) -> None:
    _, said, complaint = proxfed(capsys, "data")
    assert "fetch" in said + complaint
    assert "error" not in complaint
