"""Hooks: told of every row, the same in Python, TOML and on the command line; stops follow from rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from proxfed import (
    Bytes,
    Entry,
    FedAvg,
    Hook,
    InputError,
    Moment,
    Patience,
    Results,
    Scaffold,
    Seconds,
    Stop,
    Target,
    compare,
    read_study,
    run,
    run_study,
)
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.hooks import About
from proxfed.report.columns import RunStatus
from proxfed.silos.coordinator.deploy import deploy

from support.cli import proxfed as command
from support.csv_sites import experiment, files, holders, in_one_place, same_rows
from support.resumed import same
from support.small_experiment import Crash, execute, small, write
from support.toy_problems import problem

pytestmark = pytest.mark.usefixtures("forked")

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}
AVG = FedAvg(0.3, 3)
STOPPING = {"patience": 2, "measure": "objective", "least": 0.02, "bytes": 30_000.0}


def long() -> list[dict[str, Any]]:
    """The rows of a run that nothing stops."""
    return run(problem(), AVG, 30, progress=False).rows


# ---- one run --------------------------------------------------------------------------------------------------------


def test_a_hook_is_told_of_every_row_and_sees_the_model() -> None:
    seen: list[Moment] = []
    done = run(problem(), AVG, 10, every=3, hooks=[seen.append], progress=False)
    assert [m.row for m in seen] == done.rows
    assert [m.round for m in seen] == [0, 3, 6, 9, 10]
    assert {(m.label, m.seed, m.rounds) for m in seen} == {("FedAvg", 0, 10)}
    assert torch.equal(seen[-1].model, done.model)
    assert torch.equal(seen[1].model, run(problem(), AVG, 3, progress=False).model)


def test_a_hook_that_changes_the_model_it_sees_changes_nothing() -> None:
    def spoil(moment: Moment) -> None:
        moment.model.zero_()
        with pytest.raises(TypeError):
            moment.row["objective"] = 0.0  # type: ignore[index]

    plain = run(problem(), Scaffold(0.1, 2), 6, progress=False)
    done = run(problem(), Scaffold(0.1, 2), 6, hooks=[spoil], progress=False)
    assert torch.equal(plain.model, done.model)


def test_a_stop_ends_the_run_with_its_reason() -> None:
    done = run(problem(), AVG, 20, hooks=[lambda m: Stop("enough") if m.round == 7 else None], progress=False)
    assert done.status is RunStatus.EARLY
    assert done.message.startswith("stopped early after round 7 of 20: enough")
    assert [row["round"] for row in done.rows] == list(range(8))
    assert torch.equal(done.model, run(problem(), AVG, 7, progress=False).model)


def test_a_stop_after_the_last_round_changes_nothing() -> None:
    done = run(problem(), AVG, 7, hooks=[lambda m: Stop("enough") if m.round == 7 else None], progress=False)
    assert done.status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), "stopped", "stopped by KeyboardInterrupt in a hook after round 5 of 20"),
        (StopIteration(), "early", "stopped early after round 5 of 20: a hook raised StopIteration"),
        (StopIteration("seen enough"), "early", "stopped early after round 5 of 20: seen enough"),
    ],
)
def test_an_exception_that_means_stop_does_not_lose_the_result(error: BaseException, status: str, said: str) -> None:
    def hook(moment: Moment) -> None:
        if moment.round == 5:
            raise error

    done = run(problem(), AVG, 20, hooks=[hook], progress=False)
    assert done.status == status
    assert done.message.startswith(said)
    assert torch.equal(done.model, run(problem(), AVG, 5, progress=False).model)


class Log(Hook):
    """Writes down its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, about: About) -> Hook:
        self.calls.append(("begin", about.label, about.seed, len(about.rows)))
        return self

    def __call__(self, moment: Moment) -> Stop | None:
        self.calls.append(moment.round)
        return None

    def close(self, status: RunStatus, message: str) -> None:
        self.calls.append(str(status))


def test_a_hook_is_begun_and_closed_for_every_algorithm_and_seed() -> None:
    log = Log()
    compare(problem(), {"a": AVG, "b": FedAvg(1e9, 3)}, 2, seeds=2, hooks=[log], **QUIET)
    assert log.calls[:5] == [("begin", "a", 0, 0), 0, 1, 2, "finished"]
    assert [c for c in log.calls if isinstance(c, str)] == ["finished", "diverged", "finished", "diverged"]


def test_a_hook_is_closed_where_another_one_fails() -> None:
    def fail(moment: Moment) -> None:
        assert moment.round < 2

    log = Log()
    with pytest.raises(AssertionError):
        run(problem(), AVG, 4, hooks=[log, fail], progress=False)
    assert log.calls[-1] == "interrupted"


# ---- rules ----------------------------------------------------------------------------------------------------------


def test_patience_is_that_of_the_rows() -> None:
    rows = long()
    done = run(problem(), AVG, 30, hooks=[Patience(3, "objective", least=0.01)], progress=False)
    best, since = rows[0]["objective"], 0
    for row in rows[1:]:
        since = since + 1 if best - row["objective"] <= 0.01 else 0
        best = best if since else row["objective"]
        if since == 3:
            break
    assert done.status is RunStatus.EARLY
    assert 3 < done.rows[-1]["round"] == row["round"] < 30
    assert "objective has not improved on" in done.message


def test_patience_looks_for_what_is_higher_where_that_is_better() -> None:
    rule = Patience(2, "accuracy").rule()
    said = [rule({"accuracy": a}) for a in (0.1, 0.3, 0.3, 0.4, 0.2, 0.4)]
    assert [bool(s) for s in said] == [False, False, False, False, False, True]
    rule = Patience(2, "accuracy").rule()  # nan is no best value, and no improvement
    said = [rule({"accuracy": a}) for a in (float("nan"), 0.1, float("nan"), None, 0.3)]
    assert [bool(s) for s in said] == [False, False, False, True, False]


def test_a_target_a_number_of_bytes_and_of_seconds() -> None:
    rows = long()
    half = (rows[0]["objective"] + rows[-1]["objective"]) / 2
    done = run(problem(), AVG, 30, hooks=[Target("objective", half)], progress=False)
    assert done.rows[-1]["objective"] <= half < done.rows[-2]["objective"]
    sent = rows[4]["bytes_up"] + rows[4]["bytes_down"]
    done = run(problem(), AVG, 30, hooks=[Bytes(sent)], progress=False)
    assert (done.rows[-1]["round"], done.status) == (4, "early")
    done = run(problem(), AVG, 10**6, hooks=[Seconds(0.05)], progress=False)
    assert done.rows[-2]["wall_seconds"] < 0.05 <= done.rows[-1]["wall_seconds"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Patience(0), "patience = 0 must be a whole number >= 1"),
        (lambda: Patience(3, least=-1), "least = -1 must be a finite number >= 0"),
        (lambda: Target("accuracy", float("nan")), "target: accuracy = nan must be a finite number"),
        (lambda: Seconds(0), "seconds = 0 must be a number > 0"),
        (lambda: Bytes(-1), "bytes = -1 must be a number > 0"),
        (
            lambda: compare(problem(), {"a": AVG}, 2, hooks=[Patience(2, "akkuracy")], **QUIET),
            "stop: there is no measure 'akkuracy'",
        ),
        (
            lambda: compare(problem(), {"a": AVG}, 2, hooks=[Seconds(2, simulated=True)], **QUIET),
            "stop: there is no measure 'sim_seconds'",
        ),
    ],
)
def test_rules_refuse_what_makes_no_sense(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


# ---- the same in Python, TOML and on the command line ---------------------------------------------------------------


def two(**more: Any) -> dict[str, Any]:
    table = small(rounds=12, seeds=[0, 1], reference=False)
    kept = [a for a in table["algorithms"] if a.get("label", a["name"]) in ("fedavg", "depositum", "pledge")]
    return table | {"algorithms": kept} | more


def test_file_command_line_and_objects_stop_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_file = write(tmp_path / "a.toml", two(stop=STOPPING))
    a = run_study(read_study(of_file), tmp_path / "a", **QUIET)
    plain = write(tmp_path / "b.toml", two())
    words = [word for key, value in STOPPING.items() for word in ("-c", f"stop.{key}={json.dumps(value)}")]
    assert command(capsys, "run", str(plain), *words, "--out", str(tmp_path / "b"), "--jobs", "2")[0] == 0
    b = Results.read(tmp_path / "b")
    plain_study = read_study(plain)
    entries = {label: Entry(e.algorithm, e.topology, e.participation) for label, e in plain_study.complete.items()}
    rules = [Patience(2, "objective", 0.02), Bytes(30_000.0)]
    c = compare(plain_study.problem, entries, 12, seeds=2, hooks=rules, **QUIET)
    assert a.settings["stop"] == b.settings["stop"] == c.settings["stop"]
    assert {s["status"] for s in a.status} == {"early"}
    for other in (b, c):
        by_task = [sorted((s["algorithm"], s["seed"], s["round"], s["message"]) for s in r.status) for r in (a, other)]
        assert by_task[0] == by_task[1]
        assert all(torch.equal(a.models[name], other.models[name]) for name in a.models)
    assert "stopped early in round" in str(a.table())
    assert read_study(tmp_path / "a" / "config.toml").stops == rules  # what a run folder says can be run again


def test_an_own_hook_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom proxfed import Hook, Stop\n\n\nclass Mine(Hook):\n"
        "    def __init__(self, at: int = 2) -> None:\n        self.at = at\n\n"
        "    def __call__(self, moment):\n        return Stop('mine') if moment.round == self.at else None\n"
    )
    of_file = write(tmp_path / "a.toml", two(hooks=[{"name": "./mine.py:Mine", "at": 3}]))
    assert command(capsys, "run", str(of_file), "--out", str(tmp_path / "a"), "--jobs", "2")[0] == 0
    assert {s["round"] for s in RunFolder(tmp_path / "a").status()} == {3}
    plain = write(tmp_path / "b.toml", two())
    named = f"{tmp_path}/mine.py:Mine"
    assert command(capsys, "run", str(plain), "--hook", named, "--out", str(tmp_path / "b"), "--jobs", "1")[0] == 0
    said = {s["message"].partition(";")[0] for s in RunFolder(tmp_path / "b").status()}
    assert said == {"stopped early after round 2 of 12: mine"}
    code, _, err = command(capsys, "run", str(plain), "--hook", "tensorbord", "--out", str(tmp_path / "c"))
    assert code == 2
    assert "hooks.0: there is no 'tensorbord'; did you mean 'tensorboard'?" in " ".join(err.split())


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        ({"patiense": 3}, "stop: unknown key 'patiense'; did you mean 'patience'"),
        ({"measure": "objective"}, "stop.measure is a setting of stop.patience, which is missing"),
        ({"target": 0.9}, "stop.target = 0.9 must be a table of measures and values"),
        ({"patience": "ten"}, "stop.rows = 'ten' is not allowed"),
        ({"patience": 3, "measure": "accuracies"}, "stop: there is no measure 'accuracies'"),
        ([{"name": "patiense"}], "stop.0: there is no 'patiense'"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(stop: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        read_study(write(tmp_path / "a.toml", two(stop=stop))).check()


def test_hooks_in_other_processes(tmp_path: Path) -> None:
    """Ranks agree on the round; jobs each stop their own tasks."""
    study = read_study(write(tmp_path / "a.toml", two(stop=STOPPING, seeds=[1])))
    alone = run_study(study, tmp_path / "alone", **QUIET)
    ranks = run_study(study, tmp_path / "ranks", ranks=2, progress=False)
    ends = [{(s["algorithm"], s["round"], s["status"]) for s in r.status} for r in (alone, ranks)]
    assert ends[0] == ends[1]


def test_a_plain_function_sees_all_rows_unless_jobs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxfed.harness.further_jobs.Pace.further", lambda self: 1)
    seen: list[Moment] = []
    done = compare(problem(), {"a": AVG, "b": AVG}, 3, seeds=2, hooks=[seen.append], progress=False)
    assert len(seen) == len(done.rows)


# ---- resumed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 3, 4, 6, 9, 11])
def test_a_run_that_was_killed_stops_where_the_other_did(after: int, tmp_path: Path) -> None:
    table = two(stop=STOPPING, every=2)
    assert execute(tmp_path / "whole", table)
    assert "early" in {s["status"] for s in RunFolder(tmp_path / "whole").status()}
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=after)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", tmp_path / "whole")


def test_what_a_hook_has_ended_is_done(tmp_path: Path) -> None:
    first, log = [lambda m: Stop("enough") if m.round == 2 else None], Log()
    compare(problem(), {"a": AVG}, 9, out=tmp_path / "run", hooks=first, **QUIET)
    again = compare(problem(), {"a": AVG}, 9, out=tmp_path / "run", hooks=[log], **QUIET)
    assert log.calls == []
    assert (again.complete, again.status[0]["round"]) == (True, 2)


def test_other_rules_are_other_settings(tmp_path: Path) -> None:
    compare(problem(), {"a": AVG}, 3, out=tmp_path / "run", hooks=[Patience(2)], **QUIET)
    with pytest.raises(InputError, match=r"stop.patience.rows was 2, now 3"):
        compare(problem(), {"a": AVG}, 3, out=tmp_path / "run", hooks=[Patience(3)], **QUIET)


def test_a_hook_of_a_resumed_run_is_told_what_was_before(tmp_path: Path) -> None:
    stopped = False

    def interrupt(moment: Moment) -> None:
        nonlocal stopped
        if moment.round == 4 and not stopped:
            stopped = True
            raise KeyboardInterrupt

    out, log = tmp_path / "run", Log()
    first = compare(problem(), {"a": AVG}, 6, out=out, hooks=[interrupt], **QUIET)
    assert first.status[0]["status"] == "stopped"
    compare(problem(), {"a": AVG}, 6, out=out, hooks=[log], **QUIET)
    assert log.calls == [("begin", "a", 0, 5), 5, 6, "finished"]


# ---- between organisations ------------------------------------------------------------------------------------------


def test_a_deployment_stops_where_a_run_in_one_place_does(tmp_path: Path) -> None:
    files(tmp_path / "data")
    e = experiment(rounds=12, stop={"bytes": 1000})
    deploy(e, holders(tmp_path / "data", tmp_path / "disk"), tmp_path / "out", progress=False)
    alone = in_one_place(e, tmp_path / "data", tmp_path / "alone")
    same_rows(alone, RunFolder(tmp_path / "out"), {"consensus"})
    ends = [
        [(s["algorithm"], s["status"], s["round"]) for s in f.status()] for f in (alone, RunFolder(tmp_path / "out"))
    ]
    assert ends[0] == ends[1]
    assert {status for _, status, _ in ends[0]} == {"early"}
