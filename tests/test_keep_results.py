"""What is kept of a reproduction says the same as the run."""

from __future__ import annotations

import gzip
import json

import pytest
import tomli_w

from proxfed.errors import InputError
from proxfed.harness.run_folder import RunFolder
from proxfed.papers.reproduce import select, verdicts

from support.toy_paper import run, swapped

pytestmark = pytest.mark.usefixtures("toy_paper")


def test_what_is_kept_reads_like_the_run_to_six_digits(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    assert kept == tmp_path / "results" / "toy-fig1" / "quick" / "iid"
    before, after = RunFolder(tmp_path / "runs" / "toy-fig1" / "quick" / "iid"), RunFolder(kept)
    assert (after.config(), after.versions(), after.status()) == (before.config(), before.versions(), before.status())
    assert after.clients().sizes.tolist() == [5, 5, 2]
    assert len(after.rows()) == len(before.rows())
    for a, b in zip(after.rows(), before.rows(), strict=True):
        filled = {name: value for name, value in b.items() if value is not None}
        assert a.keys() == filled.keys()
        for name, value in filled.items():
            assert a[name] == (value if isinstance(value, str) else pytest.approx(value, rel=5e-6)), name
            assert type(a[name]) is type(value)
        assert (a["seed"], a["round"]) == (b["seed"], b["round"])


def test_claims_are_judged_the_same_on_what_is_kept(tools, tmp_path):
    run(tmp_path / "runs")
    tools[0].keep(tmp_path / "runs", tmp_path / "results")
    found = [
        [(v.status, v.found) for v in verdicts(select("toy/fig1", tmp_path / where, quick=True)[0], True)]
        for where in ("runs", "results")
    ]
    assert found[0] == found[1]
    assert found[0][0] == ("confirmed", "holds in 1 of 1 cases, 1 more not run; [IID] Ours: 0.25, Theirs: 0.5")


def test_keeping_twice_changes_nothing_and_is_small(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    tools[0].keep(tmp_path / "runs", tmp_path / "results")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert before.keys() == {"config.toml", "rows.csv.gz", "status.json", "versions.json", "clients.json"}
    assert before["rows.csv.gz"][4:8] == bytes(4)  # no time inside
    header, *rest = gzip.decompress(before["rows.csv.gz"]).decode().splitlines()
    assert "accuracy" not in header.split(",")
    assert max(map(len, rest)) < 80


def test_seeds_that_were_run_later_are_added_to_those_that_are_kept(tools, tmp_path):
    for where, seeds in {"first": (1,), "later": (0, 2), "all": (0, 1, 2)}.items():
        run(tmp_path / where, seeds=seeds)
        tools[0].keep(tmp_path / where, tmp_path / ("whole" if where == "all" else "parts"))
    parts, whole = (RunFolder(tmp_path / name / "toy-fig1" / "quick" / "iid") for name in ("parts", "whole"))
    assert parts.config() == whole.config()
    assert parts.finished()
    for entries in (RunFolder.status, RunFolder.rows):
        assert sorted(entries(parts), key=str) == sorted(entries(whole), key=str)
    run(tmp_path / "again", seeds=(2,), value=swapped)
    again = RunFolder(tmp_path / "again" / "toy-fig1" / "quick" / "iid")
    again.write_config(again.config() | {"description": "In other words."})
    tools[0].keep(tmp_path / "again", tmp_path / "parts")
    new = [row["seed"] for row in parts.rows() if row not in whole.rows()]
    assert set(new) == {2}
    assert len(parts.rows()) == len(whole.rows())


def test_seeds_with_other_settings_or_versions_are_not_mixed(tools, tmp_path, capsys):
    run(tmp_path / "first", seeds=(0, 1))
    run(tmp_path / "later", seeds=(2,))
    later = RunFolder(tmp_path / "later" / "toy-fig1" / "quick" / "iid")
    for name, changed in [("config", later.config() | {"rounds": 19}), ("versions", later.versions() | {"torch": "9"})]:
        text = json.dumps(changed) if name == "versions" else tomli_w.dumps(changed)
        file = next(later.path.glob(f"{name}.*"))
        before = file.read_text()
        file.write_text(text)
        tools[0].keep(tmp_path / "first", tmp_path / "results")
        (kept,) = tools[0].keep(tmp_path / "later", tmp_path / "results")
        assert {row["seed"] for row in RunFolder(kept).rows()} == {2}
        assert RunFolder(kept).config()["seeds"] == [2]
        said = capsys.readouterr().err
        assert "iid: seeds [0, 1] are dropped: " in said
        assert ("rounds was " if name == "config" else "'torch': '9'") in said
        file.write_text(before)


@pytest.mark.parametrize("status", ["running", "stopped", None])
def test_an_unfinished_run_is_left_out_and_said(tools, tmp_path, capsys, status):
    run(tmp_path / "runs", only=["IID", "very skewed"])
    folder = RunFolder(tmp_path / "runs" / "toy-fig1" / "quick" / "iid")
    last = [] if status is None else [{**folder.status()[-1], "status": status}]
    folder.write_status([*folder.status()[:-1], *last])
    assert [path.name for path in tools[0].keep(tmp_path / "runs", tmp_path / "results")] == ["very-skewed"]
    assert "iid is not finished" in capsys.readouterr().err


def test_rows_that_are_damaged_are_said_to_be(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    whole = (kept / "rows.csv.gz").read_bytes()
    for broken in (whole[:-9], b"no gzip at all", whole[:20] + b"\0\0\0" + whole[23:]):
        (kept / "rows.csv.gz").write_bytes(broken)
        with pytest.raises(InputError, match=r"rows\.csv\.gz is damaged"):
            RunFolder(kept).rows()
    with pytest.raises(InputError, match="no run folder"):
        tools[0].keep(tmp_path / "empty", tmp_path / "results")
