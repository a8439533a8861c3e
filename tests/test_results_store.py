"""What is kept of a reproduction says the same as the run."""

from __future__ import annotations

import csv
import gzip
import io
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from proxfed.errors import InputError
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key
from proxfed.papers.paper_file import PaperFile
from proxfed.papers.reproduce import judge_all, select
from proxfed.papers.results_format import KeptRun, Place
from proxfed.papers.results_store import keep, notes, read, write

from support.toy_paper import run, swapped

pytestmark = pytest.mark.usefixtures("toy_paper")

IID = Place("quick", "", "IID")


def kept(tmp_path: Path, runs: str = "runs", results: str = "results") -> list[str]:
    """Keep what was run: what was said."""
    said: list[str] = []
    keep(tmp_path / runs, tmp_path / results, said.append)
    return said


def folder(tmp_path: Path, runs: str = "runs") -> RunFolder:
    return RunFolder(tmp_path / runs / "toy-fig1" / "quick" / "iid")


def test_what_is_kept_reads_like_the_run_to_six_digits(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    assert kept(tmp_path) == []
    before, (after,) = Results.read(folder(tmp_path)), read(tmp_path / "results", "toy/fig1").values()
    settings = {key: value for key, value in by_key(before.settings).items() if key not in ("seeds", "case")}
    assert (after.settings, after.versions) == (settings, before.versions)
    assert list(after.status) == list(before.status)
    assert list(after.sizes) == [5, 5, 2]
    results = after.results
    assert (results.clients, results.seeds) == (3, [0, 1, 2])
    assert len(results.rows) == len(before.rows)
    for a, b in zip(results.rows, before.rows, strict=True):
        filled = {name: value for name, value in b.items() if value is not None and name != "run"}
        assert a.keys() == filled.keys()
        for name, value in filled.items():
            assert a[name] == (value if isinstance(value, str) else pytest.approx(value, rel=5e-6)), name
            assert type(a[name]) is type(value)
        assert (a["seed"], a["round"]) == (b["seed"], b["round"])


def test_claims_are_judged_the_same_on_what_is_kept(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    kept(tmp_path)
    (part,) = select("toy/fig1", tmp_path / "runs", quick=True)
    results = {place.case: one.results for place, one in read(tmp_path / "results", "toy/fig1").items()}
    after = judge_all(PaperFile("toy/fig1"), results, quick=True)
    assert after == part.verdicts()
    assert after[0].found == "holds in 1 of 1 cases, 1 more not run; [IID] Ours: 0.25, Theirs: 0.5"


def test_keeping_twice_changes_nothing_and_is_small(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    kept(tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "results" / "toy").iterdir()}
    kept(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "results" / "toy").iterdir()} == files
    assert files.keys() == {"fig1.csv.gz", "fig1.runs.csv", "fig1.toml"}
    assert files["fig1.csv.gz"][4:8] == bytes(4)  # no time inside
    header, *rest = gzip.decompress(files["fig1.csv.gz"]).decode().splitlines()
    assert "accuracy" not in header.split(",")
    assert max(map(len, rest)) < 80


def test_all_runs_of_an_experiment_are_one_table(tmp_path: Path) -> None:
    """A row for each evaluation, with its form, variant and case: what `pd.read_csv` reads."""
    run(tmp_path / "runs", only=["IID", "very skewed"])
    run(tmp_path / "runs", variant="slow")
    run(tmp_path / "runs", form="full")
    kept(tmp_path)
    text = gzip.decompress((tmp_path / "results" / "toy" / "fig1.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    places = {(row["form"], row["variant"], row["case"]) for row in rows}
    expected = {("quick", "", "IID"), ("quick", "", "very skewed"), ("quick", "slow", "IID"), ("full", "", "IID")}
    assert places == expected == {*read(tmp_path / "results", "toy/fig1")}
    assert len(rows) == 6 * (5 + 5 + 5 + 21)


def test_settings_that_runs_share_are_written_once(tmp_path: Path) -> None:
    run(tmp_path / "runs", only=["IID", "very skewed"])
    run(tmp_path / "runs", form="full")
    kept(tmp_path)
    text = (tmp_path / "results" / "toy" / "fig1.toml").read_text()
    assert text.count("data.features") == 1  # of all
    assert text.count("rounds = ") == 2  # of each form
    assert text.count("data.clients") == 3  # of each run
    assert text.count("proxfed = ") == 1
    assert 'samples = "2 x 5, 2"' in text


def test_seeds_that_were_run_later_are_added_to_those_that_are_kept(tmp_path: Path) -> None:
    for where, seeds in {"first": (1,), "later": (0, 2), "all": (0, 1, 2)}.items():
        run(tmp_path / where, seeds=seeds)
        assert kept(tmp_path, where, "whole" if where == "all" else "parts") == []
    parts, whole = (read(tmp_path / name, "toy/fig1")[IID] for name in ("parts", "whole"))
    assert (parts.settings, parts.seeds) == (whole.settings, [0, 1, 2])
    for name in ("status", "rows"):
        assert sorted(getattr(parts, name), key=str) == sorted(getattr(whole, name), key=str)
    run(tmp_path / "again", seeds=(2,), value=swapped)
    again = folder(tmp_path, "again")
    again.write_config(again.config() | {"description": "In other words."})
    assert kept(tmp_path, "again", "parts") == []
    parts = read(tmp_path / "parts", "toy/fig1")[IID]
    assert {row["seed"] for row in parts.rows if row not in whole.rows} == {2}
    assert len(parts.rows) == len(whole.rows)


def test_seeds_with_other_settings_or_versions_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path / "first", seeds=(0, 1))
    run(tmp_path / "later", seeds=(2,))
    later = folder(tmp_path, "later")
    changes = [
        ("config", later.config() | {"rounds": 19}, "rounds was 20, now 19"),
        ("config", later.config() | {"problem": {"name": "logistic", "l2": 0.5}}, "problem.l2 was not set, now 0.5"),
        ("versions", later.versions() | {"torch": "9"}, "'torch': '9'"),
    ]
    for name, changed, reason in changes:
        file = next(later.path.glob(f"{name}.*"))
        before = file.read_text()
        if name == "versions":
            later._write_table("versions.json", changed, later._status().run)
        else:
            later.write_config(changed)
        kept(tmp_path, "first")
        said = kept(tmp_path, "later")
        assert [one.partition(" is dropped: ")[0] for one in said] == [
            f"toy/fig1 (quick, IID): {label}, seeds [0, 1]," for label in ("Theirs", "Ours")
        ]
        assert all(reason in one for one in said)
        one = read(tmp_path / "results", "toy/fig1")[IID]
        assert one.seeds == [2]
        assert {row["seed"] for row in one.rows} == {2}
        file.write_text(before)


def test_an_algorithm_that_was_not_run_again_stays_unless_its_own_settings_are_others(tmp_path: Path) -> None:
    """Ours is run again with another step, alone."""
    run(tmp_path / "runs")
    kept(tmp_path)
    first = read(tmp_path / "results", "toy/fig1")[IID]
    run(tmp_path / "again", value=swapped)
    again = folder(tmp_path, "again")
    config = again.config()
    theirs, ours = config["algorithms"]
    for tables, stays in (([theirs, ours | {"eta": 0.4}], True), ([theirs | {"eta": 0.7}, ours], False)):
        again.write_config(config | {"algorithms": tables})
        again.write_status([state for state in again.status() if state["algorithm"] == "Ours"])
        *_, said = kept(tmp_path, "again")
        assert ("Theirs, seeds [0, 1, 2], is dropped: algorithms.Theirs.eta was 1.0, now 0.7" in said) is not stays
        now = read(tmp_path / "results", "toy/fig1")[IID]
        found = {label: [row for row in now.rows if row["algorithm"] == label] for label in ("Theirs", "Ours")}
        assert found["Theirs"] == [row for row in first.rows if stays and row["algorithm"] == "Theirs"]
        assert found["Ours"][-1]["objective"] == pytest.approx(0.5 * 1.01)
        assert now.settings["algorithms.Ours.eta"] == tables[1]["eta"]


def test_seeds_that_only_some_algorithms_have_decide_nothing(tmp_path: Path) -> None:
    """Theirs stays with three seeds, Ours has one with another step: that is no comparison over four."""
    run(tmp_path / "runs")
    kept(tmp_path)
    run(tmp_path / "again", seeds=(3,))
    again = folder(tmp_path, "again")
    theirs, ours = again.config()["algorithms"]
    again.write_config(again.config() | {"algorithms": [theirs, ours | {"eta": 0.4}]})
    again.write_status([state for state in again.status() if state["algorithm"] == "Ours"])
    kept(tmp_path, "again")
    now = read(tmp_path / "results", "toy/fig1")[IID]
    ended = {(state["algorithm"], state["seed"]) for state in now.status}
    assert ended == {*(("Theirs", s) for s in range(3)), ("Ours", 3)}
    assert now.seeds == []


@pytest.mark.parametrize("status", ["running", "stopped", None])
def test_an_unfinished_algorithm_is_left_out_and_said(tmp_path: Path, status: str | None) -> None:
    """Also if only one of its seeds is not done: half of it would be taken for its result."""
    run(tmp_path / "runs")
    one = folder(tmp_path)
    last = [] if status is None else [{**one.status()[-1], "status": status}]
    one.write_status([*one.status()[:-1], *last])
    (said,) = kept(tmp_path)
    assert said.endswith("iid: Ours is left out: not finished")
    found = read(tmp_path / "results", "toy/fig1")[IID]
    assert {row["algorithm"] for row in found.rows} == {state["algorithm"] for state in found.status} == {"Theirs"}
    assert found.seeds == [0, 1, 2]


@pytest.mark.parametrize("status", ["running", "stopped", None])
def test_a_run_without_a_finished_algorithm_is_left_out_and_said(tmp_path: Path, status: str | None) -> None:
    run(tmp_path / "runs", only=["IID", "very skewed"])
    one = folder(tmp_path)
    open_ = [s | {"status": status} for s in one.status() if s["seed"] == 2] if status is not None else []
    one.write_status([s for s in one.status() if s["seed"] != 2] + open_)
    (said,) = kept(tmp_path)
    assert said.endswith("iid is left out: it is not finished")
    assert [place.case for place in read(tmp_path / "results", "toy/fig1")] == ["very skewed"]


def test_a_run_of_no_shipped_experiment_is_left_out_with_a_message(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    (tmp_path / "runs" / "toy-fig1").rename(tmp_path / "runs" / "mine")
    (said,) = kept(tmp_path)
    assert "mine/quick/iid is left out: it is not in a folder PAPER-EXPERIMENT" in said
    assert not (tmp_path / "results").exists()
    with pytest.raises(InputError, match="no run folder"):
        kept(tmp_path, "empty")


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        (".csv.gz", lambda whole: whole[:-9]),
        (".csv.gz", lambda whole: whole[:20] + b"\0\0\0" + whole[23:]),
        (".csv.gz", lambda whole: b"no gzip at all"),
        (".csv.gz", lambda whole: gzip.compress(gzip.decompress(whole)[:-20])),
        (".csv.gz", lambda whole: gzip.compress(gzip.decompress(whole).replace(b"quick", b"quack"))),
        (".runs.csv", lambda whole: whole[:-30]),
        (".runs.csv", lambda whole: b"no,table\n"),
        (".toml", lambda whole: whole[:-5]),
        (".toml", lambda whole: b"x = 1"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, ending: str, damage: Callable[[bytes], bytes]) -> None:
    run(tmp_path / "runs")
    kept(tmp_path)
    path = tmp_path / "results" / "toy" / f"fig1{ending}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"what is kept of toy/fig1 in .* is damaged: "):
        read(tmp_path / "results", "toy/fig1")


def test_numbers_and_words_of_every_kind_come_back(tmp_path: Path) -> None:
    row = {"algorithm": 'a, b "c"', "seed": 12345678, "round": 7654321, "bytes_up": 1234567890, "objective": 1.0}
    odd = row | {"round": 2, "objective": float("inf"), "error": -1.5e-300, "bytes_up": 0}
    state = {
        "algorithm": row["algorithm"],
        "seed": row["seed"],
        "status": "diverged",
        "round": 2,
        "message": "so, \n so",
    }
    one = KeptRun([row, odd], [state], {"algorithms": ["a"], "x.y": [1, 2]}, {"proxfed": "1"}, [7, 7, 3, 7])
    write(tmp_path, "p/e", {Place("full", "", ""): one, Place("full", "v", "ä"): replace(one, sizes=[])})
    first, second = read(tmp_path, "p/e").values()
    assert [{k: v for k, v in r.items() if v is not None} for r in first.rows] == [row | {"bytes_up": 1234570000}, odd]
    assert (first.status, first.settings, first.sizes) == ([state], one.settings, [7, 7, 3, 7])
    assert second.results.clients is None
    assert read(tmp_path, "p/never") == {}
    assert notes(tmp_path, "p/e") == ""


# ---- checksums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv.gz", ".runs.csv", ".toml"])
def test_one_changed_byte_is_noticed(ending: str, tmp_path: Path) -> None:
    """Wherever it is: refused, or without consequence, as in what gzip notes of the system."""
    run(tmp_path / "runs")
    kept(tmp_path)
    file = tmp_path / "results" / "toy" / f"fig1{ending}"
    data, before = file.read_bytes(), repr(read(tmp_path / "results", "toy/fig1"))
    refused = 0
    for place in range(0, len(data), max(1, len(data) // 40)):
        changed = bytearray(data)
        changed[place] ^= 1
        file.write_bytes(bytes(changed))
        try:
            assert repr(read(tmp_path / "results", "toy/fig1")) == before
        except InputError:
            refused += 1
    assert refused > 30


def test_what_was_kept_without_checksums_is_read(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    kept(tmp_path)
    file = tmp_path / "results" / "toy" / "fig1.toml"
    before = read(tmp_path / "results", "toy/fig1")
    about = tomllib.loads(file.read_text())
    assert about.pop("sha256").keys() == {"rows", "runs", "settings"}
    file.write_text(tomli_w.dumps(about))
    assert read(tmp_path / "results", "toy/fig1") == before


def test_everything_in_the_repository_has_checksums() -> None:
    rows = sorted((Path(__file__).parents[1] / "results").rglob("*.csv.gz"))
    files = [file.with_name(file.name.replace(".csv.gz", ".toml")) for file in rows]
    assert len(files) > 10
    assert [file.name for file in files if "\n[sha256]\n" not in file.read_text()] == []
