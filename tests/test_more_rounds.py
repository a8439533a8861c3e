"""A finished run that is given more rounds is bit for bit the longer run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxfed import Entry, FedAvg, InputError, Patience, compare
from proxfed.engine.run import Run
from proxfed.harness.folder import checkpoint, run_folder
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.silos.coordinator.deploy import deploy

from support.csv_sites import experiment, files, holders
from support.resumed import same
from support.small_experiment import Crash, execute, small
from support.toy_problems import problem

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "run"
    assert execute(path, table(9))
    return path


def table(rounds: int, **more: Any) -> dict[str, Any]:
    """The short run has a row after round 4, which is no multiple of 3: the long one has none there."""
    return small(rounds=rounds, seeds=[3], every=3, **more)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    computed, real = [], Run.round
    monkeypatch.setattr(Run, "round", lambda run, t: (computed.append(t), real(run, t))[1])
    return computed


def test_more_rounds_continue_from_the_kept_checkpoints(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    assert execute(path, table(4))
    assert {row["round"] for row in RunFolder(path).rows()} == {0, 3, 4}
    computed = counting(monkeypatch)
    assert execute(path, table(9), resume=True)
    assert min(computed) == 4  # the last checkpoint is that of round 3
    same(path, long)
    assert [s["round"] for s in RunFolder(path).status()] == [9] * len(RunFolder(path).status())


def test_without_a_checkpoint_it_begins_anew(long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGEST_KEPT", 0)
    assert execute(tmp_path / "run", table(4))
    assert not (tmp_path / "run" / "kept").exists()
    computed = counting(monkeypatch)
    assert execute(tmp_path / "run", table(9), resume=True)
    assert min(computed) == 1
    same(tmp_path / "run", long)


@pytest.mark.parametrize("after", range(1, 9))
def test_killed_while_it_is_reopened(after: int, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any write of the folder, before or after it."""
    path, count = tmp_path / "run", 0
    assert execute(path, table(4))
    with monkeypatch.context() as patched:

        def dies(real: Any) -> Any:
            def then(*given: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                if count == after and after % 2:
                    raise Crash
                found = real(*given, **more)
                if count == after:
                    raise Crash
                return found

            return then

        patched.setattr(checkpoint.TaskFolder, "reopen", dies(checkpoint.TaskFolder.reopen) if after < 3 else
                        checkpoint.TaskFolder.reopen)  # fmt: skip
        patched.setattr(run_folder.files, "replace", dies(run_folder.files.replace))
        with pytest.raises(Crash):
            execute(path, table(9), resume=True)
    RunFolder(path).rows()  # it can be looked at
    assert execute(path, table(9), resume=True)
    same(path, long)


def test_only_the_algorithm_that_has_more_rounds_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, a, b = tmp_path / "run", FedAvg(0.3, 2), FedAvg(0.1, 3)
    wild = FedAvg(1e12, 2)
    compare(problem(), {"a": a, "wild": wild, "b": b}, 4, out=out, **QUIET)
    computed = counting(monkeypatch)
    done = compare(problem(), {"a": a, "wild": wild, "b": Entry(b, rounds=7)}, 4, out=out, **QUIET)
    assert computed == list(range(1, 8))  # of b, whose run was too short for a checkpoint
    assert {(s["algorithm"], s["status"]) for s in done.status} == {
        ("a", "finished"), ("b", "finished"), ("wild", "diverged"),
    }  # fmt: skip
    whole = compare(problem(), {"a": a, "wild": wild, "b": Entry(b, rounds=7)}, 4, **QUIET)
    timeless = [sorted(({**row, "wall_seconds": 0, "run": ""} for row in r.rows), key=str) for r in (done, whole)]
    assert timeless[0] == timeless[1]


def test_fewer_rounds_are_refused_and_a_run_that_a_rule_ended_stays(tmp_path: Path) -> None:
    out = tmp_path / "run"
    compare(problem(), {"a": FedAvg(0.3, 2)}, 8, out=out, hooks=[Patience(2, least=0.1)], **QUIET)
    with pytest.raises(InputError, match="rounds was 8, now 5"):
        compare(problem(), {"a": FedAvg(0.3, 2)}, 5, out=out, hooks=[Patience(2, least=0.1)], **QUIET)
    again = compare(problem(), {"a": FedAvg(0.3, 2)}, 20, out=out, hooks=[Patience(2, least=0.1)], **QUIET)
    assert again.status[0]["status"] == "early"


def test_between_organisations_a_run_that_is_over_is_over(tmp_path: Path) -> None:
    files(tmp_path / "data")
    carrier = holders(tmp_path / "data", tmp_path / "disk")
    few = [{"name": "fedavg", "eta": 0.1, "K": 1}]
    deploy(experiment(rounds=2, algorithms=few), carrier, tmp_path / "out", progress=False)
    with pytest.raises(InputError, match="fedavg, seed 0 is over at the sites, which keep nothing of it"):
        deploy(experiment(rounds=4, algorithms=few), carrier, tmp_path / "out", resume=True, progress=False)
