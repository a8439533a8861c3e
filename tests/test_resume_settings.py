"""What a run may be resumed with: more seeds and algorithms, other versions; and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxfed.data import DATASETS
from proxfed.errors import InputError
from proxfed.harness import plan
from proxfed.harness.build import build_study
from proxfed.harness.experiment import parse
from proxfed.harness.folder import run_folder
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned
from proxfed.problems import PROBLEMS

from support.cli import proxfed
from support.resumed import rows, same, status, under_way
from support.small_experiment import Crash, execute, small, write


@pytest.fixture(scope="module")
def table() -> dict:
    return small(rounds=4, seeds=[3], every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, table: dict) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert execute(path, table)
    return path


def test_resuming_a_finished_run_changes_nothing(whole: Path, table: dict, tmp_path: Path) -> None:
    execute(tmp_path / "run", table)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


@pytest.mark.parametrize("changed", ["torch", "threads"])
def test_it_is_said_that_a_run_goes_on_with_something_else(
    changed: str, table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=3)

    def remark() -> str:
        return Planned(build_study(parse(table, "test")), RunFolder(tmp_path / "run"), resume=True).remark

    assert remark() == ""
    other = run_folder.versions() | {changed: 99}
    for module in (run_folder, plan):
        monkeypatch.setattr(module, "versions", lambda: other)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert bool(remark()) == (changed == "torch")  # without that variable, a run has the threads that it began with
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    assert f"was begun with {changed} " in remark()
    assert "(now 99): last digits may differ" in remark()


@pytest.mark.parametrize("crash_after", [None, 3, 27, 52])
def test_seeds_that_are_added_later_make_the_run_with_all_of_them(
    crash_after: int | None, table: dict, tmp_path: Path
) -> None:
    """To a finished run, and to one that was interrupted in its first or its second seed."""
    assert execute(tmp_path / "all", table | {"seeds": [3, 1, 7]})
    if crash_after is None:
        assert execute(tmp_path / "run", table)
    else:
        with pytest.raises(Crash):
            execute(tmp_path / "run", table | {"seeds": [3, 1]}, crash_after=crash_after)
    assert execute(tmp_path / "run", table | {"seeds": [3, 1, 7]}, resume=True)
    same(tmp_path / "run", tmp_path / "all")
    assert RunFolder(tmp_path / "run").config() == RunFolder(tmp_path / "all").config()


def test_other_versions_go_on_and_are_noted(table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_folder.versions()
    new = first | {"torch": "9.9"}
    table = table | {"algorithms": table["algorithms"][:2]}
    label = table["algorithms"][0]["name"]

    def noted(versions: dict, seeds: list[int]) -> dict:
        monkeypatch.setattr(run_folder, "versions", lambda: versions)
        assert execute(tmp_path / "run", table | {"seeds": seeds}, resume=True)
        return RunFolder(tmp_path / "run").versions()

    assert execute(tmp_path / "run", table)
    assert noted(first, [3, 1]) == first
    assert noted(new, [3, 1]) == first  # there was nothing left to do
    later = [{"algorithm": label, "seed": 7, "round": 0} | new]
    assert noted(new, [3, 1, 7]) == first | {"continued_with": later}
    assert noted(new, [3, 1, 7, 8]) == first | {"continued_with": later}
    later += [{"algorithm": label, "seed": 9, "round": 0} | first]
    assert noted(first, [3, 1, 7, 8, 9]) == first | {"continued_with": later}


def test_seeds_that_are_taken_away_are_refused(whole: Path, table: dict) -> None:
    with pytest.raises(InputError, match="other settings: seeds"):
        execute(whole, table | {"seeds": [1]}, resume=True)


def test_algorithms_that_are_added_later_are_all_that_is_run(whole: Path, table: dict, tmp_path: Path) -> None:
    """In any place of the list; those that were there are left as they are, and none may be taken away."""
    few = [a for k, a in enumerate(table["algorithms"]) if k in (1, 4)]
    assert execute(tmp_path / "run", table | {"algorithms": few})
    before = (tmp_path / "run" / "rows.csv").read_bytes()
    assert execute(tmp_path / "run", table, resume=True)
    assert (tmp_path / "run" / "rows.csv").read_bytes().startswith(before)
    by_task = lambda row: (row["algorithm"], row["seed"], row["round"])
    assert sorted(rows(tmp_path / "run"), key=by_task) == sorted(rows(whole), key=by_task)
    with pytest.raises(InputError, match="other settings: algorithms was"):
        execute(tmp_path / "run", table | {"algorithms": few}, resume=True)


def test_other_settings_are_refused(whole: Path, table: dict) -> None:
    with pytest.raises(InputError, match=r"other settings: problem\.l2 was 0\.05, now 0\.1"):
        execute(whole, table | {"problem": table["problem"] | {"l2": 0.1}}, resume=True)


def test_other_data_are_refused(whole: Path, table: dict, tmp_path: Path) -> None:
    """The settings may be the same and the file another one: here its numbers are exchanged, not how many there are."""
    rows = ["a,b,label,client"] + [f"{i % 7},{i % 3},{(-1) ** i},{i % 5}" for i in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(rows) + "\n")
    own = table | {"data": {"name": "own", "path": str(tmp_path / "own.csv"), "client": "client"}}
    assert execute(tmp_path / "run", own)
    assert execute(tmp_path / "run", own, resume=True)
    (tmp_path / "own.csv").write_text(
        "\n".join([rows[0].replace("a,b", "b,a"), *rows[1:]]).replace(",2,", ",1,") + "\n"
    )
    with pytest.raises(InputError, match="the data are not those"):
        execute(tmp_path / "run", own | {"seeds": [3, 4]}, resume=True)


def test_force_leaves_nothing_of_the_old_run(table: dict, tmp_path: Path) -> None:
    """Also if the new one dies at once: resumed, it is not taken for the old one."""
    assert execute(tmp_path / "run", table)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=1)
    assert RunFolder(tmp_path / "run").models() == ({}, [])
    assert max(row["round"] for row in rows(tmp_path / "run")) == 0
    assert under_way(tmp_path / "run").load() is None
    assert [s["status"] for s in status(tmp_path / "run")] == ["running"]


def test_other_steps_are_refused(whole: Path, table: dict) -> None:
    algorithms = [table["algorithms"][0] | {"eta": 0.123}, *table["algorithms"][1:]]
    with pytest.raises(InputError, match=r"other settings: algorithms\.\w+\.eta was .*, now 0\.123"):
        execute(whole, table | {"algorithms": algorithms}, resume=True)


def test_a_refused_run_leaves_the_old_one_alone(table: dict, tmp_path: Path) -> None:
    assert execute(tmp_path / "run", table)
    before = rows(tmp_path / "run")
    for bad in ({"regulariser": {"name": "group_lasso", "weight": 0.1, "size": 3}}, {"targets": {"acuracy": [0.9]}}):
        with pytest.raises(InputError):
            execute(tmp_path / "run", table | bad)
    assert rows(tmp_path / "run") == before


def test_nothing_to_resume(table: dict, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run to resume"):
        execute(tmp_path / "nothing", table, resume=True)


@pytest.mark.parametrize(
    ("registry", "name", "changed", "said"),
    [
        (PROBLEMS, "logistic", {"weighting": "uniform"}, "problem.weighting was 'size', now 'uniform'"),
        (DATASETS, "synthetic_binary", {"unit_rows": False}, "data.unit_rows was True, now False"),
    ],
    ids=["problem", "data"],
)
def test_a_default_that_has_changed_since_is_another_setting(
    registry: dict[str, Any],
    name: str,
    changed: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """config.toml has the defaults of the problem and the data, too, although the experiment does not name them."""
    table = small(rounds=1, seeds=[0], algorithms=[{"name": "fedavg", "eta": 0.1, "K": 1}])
    assert not {*changed} & {*table["problem"], *table["data"]}
    execute(tmp_path / "run", table)
    monkeypatch.setitem(registry, name, partial(registry[name], **changed))
    with pytest.raises(InputError, match=said):
        execute(tmp_path / "run", table, resume=True)


def test_a_plain_run_reads_the_rows_of_its_folder_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And the log of each task once, when the task is done."""
    opened: list[str] = []
    listening = True

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "open" and arguments[1] in ("r", "rb") and str(arguments[0]).endswith("rows.csv"):
            opened.append(str(Path(arguments[0]).relative_to(tmp_path / "run")))

    sys.addaudithook(heard)
    file = write(
        tmp_path / "a.toml", small(rounds=2, seeds=[0, 1], algorithms=[{"name": "fedavg", "eta": 0.1, "K": 1}])
    )
    code, _, _ = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"), "--jobs", "1")
    listening = False
    assert code == 0
    counts = Counter(opened)
    assert counts.pop("rows.csv") == 1
    assert (len(counts), {*counts.values()}) == (2, {1})
