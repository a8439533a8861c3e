"""`proxfed reproduce --all` on tiny papers: what is left, in which order, at what cost; going on, and after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxfed.harness.plan import Plan
from proxfed.harness.results import Results
from proxfed.papers import results_store
from proxfed.papers.run_costs import SECONDS, Speeds, samples

from support.cli import proxfed, refused
from support.small_experiment import small, write

pytestmark = pytest.mark.usefixtures("forked")

FAST = {"name": "fedavg", "label": "FedAvg", "eta": 0.5, "K": 3}
SLOW = {"name": "fedavg", "label": "more", "eta": 0.5, "K": 30}
PAPER = {"title": "On toys", "figure": "Fig. 1", "quick": {"rounds": 2}}
CASES = {"few": {"data.clients": 3}, "many": {"data.clients": 9}}


@pytest.fixture
def toys(tmp_path: Path, experiments: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two papers, of which one has data that are not there; results and runs are below this folder."""
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path / "no data"))
    for name, table in {
        "toys/long": small(rounds=90, seeds=[0, 1], algorithms=[FAST, SLOW], cases=CASES, paper=PAPER),
        "toys/short": small(rounds=4, seeds=[0], algorithms=[FAST], paper=PAPER),
        "other/nowhere": small(data={"name": "mnist", "partition": {"name": "iid", "num_partitions": 2}}, paper=PAPER),
    }.items():
        (experiments / name).parent.mkdir(exist_ok=True)
        write(experiments / f"{name}.toml", table)
    (tmp_path / "results").mkdir()
    return tmp_path


def everything(capsys: Any, toys: Path, *arguments: str) -> tuple[int, str, str]:
    where = ["--out", str(toys / "runs"), "--results", str(toys / "results"), "--jobs", "1"]
    return proxfed(capsys, "reproduce", *arguments, "--all", *where)


def left(capsys: Any, toys: Path, *arguments: str) -> list[dict[str, Any]]:
    code, said, _ = everything(capsys, toys, *arguments, "--list", "--format", "json")
    assert code == 0
    return json.loads(said)


def names(found: list[dict[str, Any]]) -> list[str]:
    return [f"{w['experiment']} {w['case']}".strip() for w in found]


def learn(capsys: Any, toys: Path) -> None:
    """Keep the quick forms, so that speeds are known."""
    assert proxfed(capsys, "reproduce", "toys", "--quick", "--out", str(toys / "quick"))[0] == 0
    results_store.keep(toys / "quick", toys / "results", lambda _: None)


# ---- what is left, and what it takes ---------------------------------------------------------------------------------


def test_nothing_is_known_of_costs_without_kept_runs(capsys: Any, toys: Path) -> None:
    found = left(capsys, toys)
    assert {w["core_seconds"] for w in found} == {None}
    assert names(found)[-1] == "other/nowhere"
    assert "there is no train-images-idx3-ubyte" in found[-1]["left_out"]
    assert not any(w["left_out"] for w in found[:-1]), "without a budget what is of unknown cost is run"


def test_the_cheapest_is_first_and_what_has_no_data_last(capsys: Any, toys: Path) -> None:
    learn(capsys, toys)
    found = left(capsys, toys)
    assert names(found) == ["toys/short", "toys/long few", "toys/long many", "other/nowhere"]
    assert [w["seeds"] for w in found[:3]] == [[0], [0, 1], [0, 1]]
    costs = [w["core_seconds"] for w in found[:3]]
    assert costs == sorted(costs)
    assert {w["known_from"] for w in found[:3]} == {"runs of it"}


def test_costs_are_those_of_kept_runs_times_the_size(capsys: Any, toys: Path) -> None:
    learn(capsys, toys)
    kept = results_store.read(toys / "results", "toys/short")
    (run,) = kept.values()
    wall, threads = run.rows[-1]["wall_seconds"], run.versions["threads"]
    (found,) = left(capsys, toys, "toys/short")
    assert found["core_seconds"] == pytest.approx(wall * threads * 4 / 2), "four rounds, where two are kept"


def test_samples_are_counted_as_the_settings_say() -> None:
    settings = {"rounds": 10, "problem.batch": 8, "algorithms.a.K": 5, "algorithms.b.K.mean_epochs": 2}
    assert samples(settings, "a", 4, 400) == 10 * 4 * 5 * 8
    assert samples(settings, "b", 4, 400) == 10 * 4 * 2 * 100
    assert samples(settings | {"algorithms.a.participation.m": 1}, "a", 4, 400) == 10 * 5 * 8
    assert samples(settings | {"participation.p": 0.5}, "a", 4, 400) == 10 * 2 * 5 * 8
    assert samples({"rounds": 3}, "a", 4, 400) == 3 * 400, "full gradients, one step"
    assert samples(settings | {"problem.batch": 1000}, "a", 4, 400) == 10 * 4 * 5 * 100, "no more than a client holds"
    assert samples(settings | {"algorithms.a.rounds": 1}, "a", 4, 400) == 4 * 5 * 8


def test_a_timed_gradient_stands_in_for_models_that_were_never_run() -> None:
    settings = {
        "algorithms": ["a"],
        "rounds": 2,
        "problem.batch": 4,
        "problem.name": "network",
        "problem.model": "vgg16",
    }
    cost = Speeds().cost("x/y", settings, clients=3, held=30, seeds=5)
    assert cost.seconds == pytest.approx(5 * 2 * 3 * 4 * SECONDS["vgg16"])
    assert cost.known_from == "a timed gradient"
    assert Speeds().cost("x/y", settings | {"problem.model": "mine"}, 3, 30, 5).seconds is None


def test_the_list_for_people(capsys: Any, toys: Path) -> None:
    learn(capsys, toys)
    code, said, _ = everything(capsys, toys, "--list", "--budget", "0")
    assert code == 0
    assert "toys/long, few" in said
    assert said.count("left out") == 3
    assert "no data" in said
    assert "0 to be run" in said


# ---- running ---------------------------------------------------------------------------------------------------------


def test_all_are_run_and_then_nothing_is_left(capsys: Any, toys: Path) -> None:
    learn(capsys, toys)
    code, said, told = everything(capsys, toys, "--resume")
    assert code == 0
    assert told.index("1 of 3: toys/short: about") < told.index("2 of 3: toys/long, few") < told.index("3 of 3")
    assert "left out: other/nowhere: there is no train-images-idx3-ubyte" in told
    assert "3 of 3 are done; 1 were left out" in said
    assert (toys / "runs" / "toys-long" / "full" / "many" / "report.html").exists()
    assert names(left(capsys, toys)) == ["other/nowhere"]
    assert names(left(capsys, toys, "toys")) == []
    results_store.keep(toys / "runs", toys / "results", lambda _: None)
    (toys / "runs").rename(toys / "moved")
    assert names(left(capsys, toys, "toys")) == [], "what is kept is not run again"


def test_only_seeds_that_are_not_kept_are_run(capsys: Any, toys: Path) -> None:
    where = ["--out", str(toys / "one")]
    assert proxfed(capsys, "reproduce", "toys/long", "--full", "--seeds", "1", "--case", "few", *where)[0] == 0
    results_store.keep(toys / "one", toys / "results", lambda _: None)
    found = {w["case"]: w["seeds"] for w in left(capsys, toys, "toys/long")}
    assert found == {"few": [1], "many": [0, 1]}
    assert everything(capsys, toys, "toys/long")[0] == 0
    assert list(Results.read(toys / "runs" / "toys-long" / "full" / "few").seeds) == [1]
    assert left(capsys, toys, "toys/long") == []


def test_what_is_kept_of_other_settings_is_run_again(capsys: Any, toys: Path, experiments: Path) -> None:
    assert proxfed(capsys, "reproduce", "toys/short", "--full", "--out", str(toys / "old"))[0] == 0
    results_store.keep(toys / "old", toys / "results", lambda _: None)
    assert left(capsys, toys, "toys/short") == []
    write(experiments / "toys" / "short.toml", small(rounds=5, seeds=[0], algorithms=[FAST], paper=PAPER))
    assert names(left(capsys, toys, "toys/short")) == ["toys/short"]


def test_what_is_kept_of_a_sample_is_run_again_with_all_of_the_data(capsys: Any, toys: Path) -> None:
    assert proxfed(capsys, "reproduce", "toys/short", "--full", "--out", str(toys / "old"))[0] == 0
    results_store.keep(toys / "old", toys / "results", lambda _: None)
    kept = results_store.read(toys / "results", "toys/short")
    (run,) = kept.values()
    assert sum(run.sizes) == 7 * 30
    for fewer, again in ((1, []), (20, ["toys/short"])):
        sizes = [30] * 6 + [30 - fewer]
        results_store.write(toys / "results", "toys/short", {place: replace(run, sizes=sizes) for place in kept})
        assert names(left(capsys, toys, "toys/short")) == again


def test_what_is_over_budget_is_left_out_and_named(capsys: Any, toys: Path) -> None:
    learn(capsys, toys)
    costs = [w["core_seconds"] for w in left(capsys, toys, "toys")]
    between = (costs[0] + costs[1]) / 2 / 3600
    code, said, told = everything(capsys, toys, "--budget", f"{between:.12f}")
    assert code == 0
    assert "1 of 1: toys/short" in told
    assert "left out: toys/long, few: about" in told
    assert "of one core, where --budget allows" in told
    assert "1 of 1 are done; 3 were left out" in said


def test_one_that_fails_does_not_stop_the_others(capsys: Any, toys: Path, experiments: Path) -> None:
    learn(capsys, toys)
    assert proxfed(capsys, "reproduce", "toys/short", "--full", "-c", "rounds=2", "--out", str(toys / "runs"))[0] == 0
    write(experiments / "toys" / "short.toml", small(rounds=5, seeds=[0, 1], algorithms=[FAST], paper=PAPER))
    code, said, told = everything(capsys, toys, "toys")
    assert code == 1
    assert "failed: toys/short: the run in" in told
    assert "has other settings" in told
    assert "2 of 3 are done" in said


def test_the_quick_forms_can_be_asked_for(capsys: Any, toys: Path) -> None:
    assert everything(capsys, toys, "toys/short", "--quick")[0] == 0
    assert (toys / "runs" / "toys-short" / "quick").is_dir()
    assert left(capsys, toys, "toys/short", "--quick") == []
    assert names(left(capsys, toys, "toys/short")) == ["toys/short"]


PROGRAM = """
import sys
from pathlib import Path
from proxfed.harness import experiment
experiment.EXPERIMENTS = [Path(sys.argv.pop(1))]
from proxfed.cli.main import main
main()
"""
"""The command line with other experiments."""


def test_ctrl_c_stops_all_of_it(capsys: Any, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(capsys, toys)
    run = Plan.run

    def interrupted(plan: Plan, stop: Any, **how: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return run(plan, stop, **how)

    monkeypatch.setattr(Plan, "run", interrupted)
    code, _, told = everything(capsys, toys, "toys")
    assert code == 130
    assert "stopped; the same command resumes it" in told
    assert "2 of 3" not in told


def test_it_goes_on_after_a_kill(capsys: Any, toys: Path, experiments: Path) -> None:
    """Killed in the middle of a case, the next command ends with the rows of one that was never killed."""
    rounds = 400
    table = small(rounds=rounds, every=1, seeds=[0], algorithms=[FAST], reference=False, paper=PAPER)
    write(experiments / "toys" / "short.toml", table)
    where = ["--out", str(toys / "runs"), "--results", str(toys / "results"), "--jobs", "1"]
    command = [sys.executable, "-c", PROGRAM, str(experiments), "reproduce", "toys/short", "--all", *where]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = toys / "runs" / "toys-short" / "full"
    until = time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob("checkpoint/*/rows.csv")) and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (waiting,) = left(capsys, toys, "toys/short")
    assert waiting["begun"]
    assert everything(capsys, toys, "toys/short")[0] == 0
    assert proxfed(capsys, "reproduce", "toys/short", "--full", "--out", str(toys / "whole"))[0] == 0
    rows, whole = (
        [
            {k: v for k, v in row.items() if k != "wall_seconds"}
            for row in Results.read(path / "toys-short" / "full").rows
        ]
        for path in (toys / "runs", toys / "whole")
    )
    assert rows == whole
    assert rows[-1]["round"] == rounds


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [["--seeds", "1"], ["--case", "few"], ["--no-run"], ["-c", "rounds=1"]])
def test_it_runs_the_files_as_they_are(capsys: Any, toys: Path, more: list[str]) -> None:
    assert "--all takes no" in refused(capsys, "reproduce", "toys/long", "--all", *more)


def test_options_of_all_need_all(capsys: Any, toys: Path) -> None:
    assert "--list and --budget need --all" in refused(capsys, "reproduce", "toys", "--list")
    assert "--list and --budget need --all" in refused(capsys, "reproduce", "toys", "--budget", "3")
    assert "or --all" in refused(capsys, "reproduce")
    assert "there are no experiments of a paper 'toy'" in refused(capsys, "reproduce", "toy", "--all")
    assert "--format json needs --list" in refused(capsys, "reproduce", "--all", "--format", "json")
