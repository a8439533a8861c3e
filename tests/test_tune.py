"""Tuning: the same effort for every algorithm, the same result however it is carried out, and what it tells of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfed
from proxfed import FedAvg, FedNAG, InputError, Linear, Logistic, RunError, Scaffold, Study, Tuned, tune
from proxfed.engine.run import Run
from proxfed.harness.run_folder import RunFolder
from proxfed.report.summary import result_table
from proxfed.tuning.space import log
from proxfed.tuning.tune import read_over

from support.cli import proxfed as command
from support.resumed import rows
from support.small_experiment import Crash
from support.tuning import GUESSES, digits

STEPS = "log(1e-2, 10)"
BUDGET = 21
"""Nine configurations to round 1, three of them to round 3, one of them to round 9: 9 + 3 * 2 + 6 rounds."""


@pytest.fixture(scope="module")
def study() -> Study:
    """A convex problem without test data: judged by the objective."""
    data = proxfed.load("synthetic_binary", alpha=1.0, beta=1.0, clients=6, samples=20, features=8)
    problem = Linear(data, Logistic(), l2=0.05)
    return Study(problem, {"FedAvg": FedAvg(0.5, 2), "SCAFFOLD": Scaffold(0.5, 2)}, 9, [0, 1], "convex")


@pytest.fixture(scope="module")
def whole(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune(study, {"*.eta": STEPS}, BUDGET, out=tmp_path_factory.mktemp("whole") / "tuning", progress=False)


def trials(tuned: Tuned, part: str = "1") -> Path:
    assert tuned.folder is not None
    return tuned.folder / "trials" / part


def told(tuned: Tuned) -> list[dict[str, Any]]:
    """All that a tuning says of its configurations and choices."""
    return [*tuned.rows(), *tuned.table()]


# ---- the same effort -------------------------------------------------------------------------------------------------


def test_every_algorithm_has_the_same_configurations_and_rounds(whole: Tuned) -> None:
    """Counted in the rows that are kept, not taken from the plan."""
    counted: dict[str, list[int]] = {}
    for label in {row["algorithm"] for row in rows(trials(whole))}:
        last = max(row["round"] for row in rows(trials(whole)) if row["algorithm"] == label)
        counted.setdefault(label.split()[0], []).append(last)
    assert {len(lengths) for lengths in counted.values()} == {len(whole.of("FedAvg"))}
    assert {sum(lengths) for lengths in counted.values()} == {sum(counted["FedAvg"])}
    assert sum(counted["FedAvg"]) == BUDGET
    assert {tuple(sorted(lengths)) for lengths in counted.values()} == {(1,) * 6 + (3,) * 2 + (9,)}
    for label, lengths in counted.items():
        tuned = whole.study.entries[label].tuned
        assert tuned is not None
        assert (tuned["configurations"], tuned["rounds"]) == (len(lengths), sum(lengths))


def test_no_round_is_computed_that_is_not_counted(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    real = Run.round
    monkeypatch.setattr(Run, "round", lambda run, t: (computed.append(t), real(run, t))[1])
    tuned = tune(study, {"*.eta": STEPS}, 30, seeds=2, progress=False)
    assert len(computed) == sum(trial.spent for trial in tuned.trials) == 2 * 30


def test_the_choice_is_that_of_a_plain_loop(study: Study, whole: Tuned) -> None:
    """Every configuration run to the end on its own; then the rungs are gone through with what was measured."""
    seed = max(study.seeds) + 1
    for label, make in {"FedAvg": FedAvg, "SCAFFOLD": Scaffold}.items():
        values = [float(f"{eta:.4g}") for eta in np.geomspace(1e-2, 10, 9)]
        found = {
            eta: [
                row["objective"] for row in proxfed.run(study.problem, make(eta, 2), 9, seed=seed, progress=False).rows
            ]
            for eta in values
        }
        three = sorted(values, key=lambda eta: found[eta][1])[:3]
        best = min(three, key=lambda eta: found[eta][3])
        assert {t.values["eta"] for t in whole.of(label)[:3]} == {*three}
        assert whole.of(label)[0].values == {"eta": best}
        assert whole.study.entries[label].algorithm == make(best, 2)
        assert found[best][9] == pytest.approx(whole.judge.value(whole.of(label)[0].score), rel=1e-12)


def test_the_seeds_of_the_study_are_not_tuned_on(whole: Tuned) -> None:
    assert {row["seed"] for row in rows(trials(whole))} == {2}


def test_the_best_is_better_than_a_poor_guess(study: Study, whole: Tuned) -> None:
    poor = proxfed.compare(study.problem, {"FedAvg": FedAvg(1e-3, 2)}, 9, progress=False).table()[0]["objective"]
    good = proxfed.run_study(whole.study, progress=False).table()[0]["objective"]
    assert good < poor


# ---- the same result -------------------------------------------------------------------------------------------------


def test_jobs_change_nothing(study: Study, tmp_path: Path) -> None:
    one, two = (
        tune(study, {"*.eta": STEPS}, 15, out=tmp_path / f"{jobs}", jobs=jobs, progress=False) for jobs in (1, 2)
    )
    assert told(one) == told(two)
    key = lambda row: (row["algorithm"], row["seed"], row["round"])  # noqa: E731
    assert sorted(rows(trials(one)), key=key) == sorted(rows(trials(two)), key=key)


@pytest.mark.parametrize("after", [5, 20, 35])
def test_a_crash_after_any_round_is_forgotten(
    after: int, study: Study, whole: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no round is computed twice but the one that it happened in."""
    computed = 0
    real = Run.round

    def counted(run: Run, t: int) -> None:
        nonlocal computed
        computed += 1
        if computed == after:
            raise Crash
        real(run, t)

    monkeypatch.setattr(Run, "round", counted)
    how: dict[str, Any] = {"out": tmp_path / "tuning", "progress": False, "checkpoint_seconds": 0.0}
    with pytest.raises(Crash):
        tune(study, {"*.eta": STEPS}, BUDGET, **how)
    assert told(tune(study, {"*.eta": STEPS}, BUDGET, **how)) == told(whole)
    assert computed == 1 + sum(trial.spent for trial in whole.trials)
    before = computed
    assert told(tune(study, {"*.eta": STEPS}, BUDGET, **how)) == told(whole), "once more, from what is there"
    assert computed == before


def test_kill_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: the tuned file is the same to the byte."""
    file = digits(tmp_path / "digits.toml", rounds=90, seeds=[0], every=10)
    options = ["tune", str(file), "--over", "FedAvg.eta=log(1e-2,1)", "--over", "SCAFFOLD.eta=log(1e-2,1)"]
    options += ["--budget", "150", "--jobs", "1", "--checkpoint", "0"]
    where = tmp_path / "killed"
    going = subprocess.Popen(
        [sys.executable, "-m", "proxfed", *options, "--out", str(where)], stderr=subprocess.DEVNULL
    )
    folder = RunFolder(where / "trials" / "1")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder.exists() and len(folder.status()) > 3):
        time.sleep(0.01)
    os.kill(going.pid, signal.SIGKILL)
    going.wait()
    assert not (where / "tuned.toml").exists()
    assert command(capsys, *options, "--out", str(where), "--resume")[0] == 0
    assert command(capsys, *options, "--out", str(tmp_path / "whole"))[0] == 0
    assert (where / "tuned.toml").read_bytes() == (tmp_path / "whole" / "tuned.toml").read_bytes()
    assert rows(where / "trials" / "1") == rows(tmp_path / "whole" / "trials" / "1")


# ---- what is done with what is found ---------------------------------------------------------------------------------


def test_the_file_is_the_study_and_tells_how_it_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = proxfed.read_study(digits(tmp_path / "digits.toml", rounds=6))
    tuned = tune(
        study, {"FedAvg.eta": "log(1e-2,1)", "fednag.gamma": [0.5, 0.9]}, 20, out=tmp_path / "t", progress=False
    )
    text = (tmp_path / "t" / "tuned.toml").read_text()
    assert tuned.to_toml() == text
    again = proxfed.read_study(tmp_path / "t" / "tuned.toml")
    assert again.settings == tuned.study.settings
    assert text.startswith("# digits, tuned by proxfed")
    assert "accuracy on 20 % of every client's training rows, held out for it" in text
    assert "not tuned: SCAFFOLD, FedProx" in text
    best = tuned.of("FedAvg")[0].values["eta"]
    assert f"FedAvg: eta = {best:g} (was 0.01), from log(0.01,1) by" in text
    code, said, _ = command(capsys, "run", str(tmp_path / "t" / "tuned.toml"), "--out", str(tmp_path / "r"))
    assert code == 0
    assert "tried, " in said
    assert "not tuned" in said
    assert "not tuned with the same effort" in said
    page = (tmp_path / "r" / "report.html").read_text()
    assert '<td class="text">not tuned</td>' in page
    efforts = [entry["tuning"] for entry in result_table(proxfed.Results.read(tmp_path / "r"))]
    assert efforts[2:] == ["not tuned", "not tuned"]
    code, said, _ = command(
        capsys,
        "run",
        str(tmp_path / "t" / "tuned.toml"),
        "--out",
        str(tmp_path / "s"),
        "-c",
        "algorithms.FedAvg.eta=0.5",
    )
    assert "but changed since" in said


def test_the_effort_is_no_setting_that_rows_depend_on(tmp_path: Path) -> None:
    """A folder is gone on with, whatever is said of the tuning; and what is said then is kept."""
    study = proxfed.read_study(digits(tmp_path / "d.toml", rounds=2, seeds=[0]))
    proxfed.run_study(study, tmp_path / "run", progress=False)
    noted = {"configurations": 3, "rounds": 12, "values": {"eta": 0.01}}
    again = study.again({"algorithms.FedAvg.tuned": noted})  # type: ignore[misc]
    results = proxfed.run_study(again, tmp_path / "run", progress=False)
    assert results.table()[0]["tuning"] == "3 tried, 12 rounds"
    with pytest.raises(InputError, match="tuned = 3 must be a table"):
        study.again({"algorithms.FedAvg.tuned": 3})  # type: ignore[misc]


def test_tuning_looks_at_validation_rows_only(tmp_path: Path) -> None:
    """Other test data, the same choice; and the tuned study has all training rows and the test data again."""
    study = proxfed.read_study(digits(tmp_path / "d.toml", rounds=4, seeds=[0]))
    data = study.problem.data
    assert data is not None
    assert data.test is not None
    scrambled = proxfed.Federated(
        data.features, data.labels, data.sizes, (data.test[0], (data.test[1] + 1) % 10), data.classes, data.name
    )
    other = study.__class__(
        study.problem._with(data=scrambled), study.entries, 4, [0], participation=study.participation, every=2
    )
    one, two = (tune(s, {"FedAvg.eta": STEPS}, 12, progress=False) for s in (study, other))
    assert one.rows() == two.rows()
    assert one.judge.validation == 0.2
    assert one.study.problem.data is data


def test_two_first_guesses_end_with_the_same_order(tmp_path: Path) -> None:
    """Which algorithm reaches the target first: before tuning that is a matter of the guess, after it is not."""
    before, after = [], []
    for guess in GUESSES:
        study = proxfed.read_study(digits(tmp_path / "d.toml", guess, seeds=[0, 1, 2]))
        keep = {label: study.entries[label] for label in ("FedNAG", "FedAvg", "FedProx")}
        study = Study(
            study.problem,
            keep,
            18,
            [0, 1, 2],
            participation=study.participation,
            every=2,
            targets=study.targets,
            timing=study.timing,
        )
        before.append(order(proxfed.run_study(study, progress=False)))
        tuned = tune(study, {"*.eta": "around(1000)"}, 54, target={"accuracy": 0.85}, progress=False)
        after.append(order(proxfed.run_study(tuned.study, progress=False)))
    assert before[0] != before[1]
    assert after[0] == after[1] == ["FedNAG", "FedAvg", "FedProx"]


def order(results: proxfed.Results) -> list[str]:
    """By simulated seconds to the target; those that did not get there by their accuracy."""
    cost = {e["algorithm"]: (e["reached"][0]["sim_seconds"] or 1e9, -e["accuracy"]) for e in results.table()}
    return sorted(cost, key=lambda label: cost[label])


# ---- what may go wrong -----------------------------------------------------------------------------------------------


def test_divergence_is_the_worst_and_is_shown(study: Study) -> None:
    problem = study.problem._with(loss="squared")
    wild = Study(problem, {"FedAvg": FedAvg(0.1, 5), "FedNAG": FedNAG(0.01, 0.5, 5)}, 27, [0], every=1)
    over = {"FedAvg.eta": [0.05, 0.1, 1e8, 1e9], "FedNAG.eta": [1e7, 1e8, 1e9, 1e10]}
    tuned = tune(wild, over, 5 * 27, progress=False)
    assert tuned.of("FedAvg")[0].values["eta"] in (0.05, 0.1)
    assert [trial.score.diverged for trial in tuned.of("FedAvg")] == [False, False, True, True]
    assert "FedNAG: all 4 configurations diverged, so its settings stay as they were" in tuned.notes()
    assert tuned.study.entries["FedNAG"].algorithm == FedNAG(0.01, 0.5, 5)
    record = tuned.study.entries["FedNAG"].tuned
    assert record is not None
    assert (record["diverged"], record["values"]) == (4, {})
    assert "all diverged" in str(tuned)
    assert proxfed.run_study(tuned.study, progress=False).table()[1]["tuning"].endswith("all diverged")


def test_a_best_value_at_the_edge_is_said(study: Study) -> None:
    tuned = tune(study, {"FedAvg.eta": "log(1e-5,1e-3)"}, BUDGET, progress=False)
    assert "FedAvg: eta = 0.001 is the largest that was tried: a wider range may hold a better one" in tuned.notes()
    assert "largest" in str(tuned)


def test_unequal_spaces_are_said(study: Study) -> None:
    tuned = tune(study, {"FedAvg.eta": STEPS, "SCAFFOLD.eta": [0.1, 1.0]}, BUDGET, progress=False)
    (said,) = (note for note in tuned.notes() if note.startswith("the effort"))
    assert f"FedAvg {len(tuned.of('FedAvg'))}, SCAFFOLD 2" in said
    assert [trial.rounds[-1] for trial in tuned.of("SCAFFOLD")].count(9) >= 1


def test_what_is_said_of_one_goes_before_what_is_said_of_all(study: Study) -> None:
    for over in ({"*.eta": STEPS, "SCAFFOLD.eta": "log(1e-3,1)"}, {"SCAFFOLD.eta": "log(1e-3,1)", "*.eta": STEPS}):
        spaces = read_over(study, over)
        assert str(spaces["SCAFFOLD"]["eta"]) == "log(0.001,1)"
        assert str(spaces["FedAvg"]["eta"]) == "log(0.01,10)"


def test_another_tuning_in_the_folder_is_refused(study: Study, whole: Tuned) -> None:
    how: dict[str, Any] = {"out": whole.folder, "progress": False}
    with pytest.raises(InputError, match="has other settings: budget was 21, now 30"):
        tune(study, {"*.eta": STEPS}, 30, **how)
    with pytest.raises(InputError, match="holds a tuning already"):
        tune(study, {"*.eta": STEPS}, BUDGET, resume=False, **how)
    with pytest.raises(InputError, match="has other settings"):
        tune(Study(study.problem.with_l2(0.5), study.entries, 9, [0, 1], "convex"), {"*.eta": STEPS}, BUDGET, **how)


def test_ctrl_c_says_how_to_go_on(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Run.round

    def interrupt(run: Run, t: int) -> None:
        real(run, t)
        if t == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "round", interrupt)
    with pytest.raises(RunError, match="stopped on the way; with the same settings it goes on"):
        tune(study, {"*.eta": STEPS}, BUDGET, out=tmp_path / "t", progress=False)


def test_the_page_shows_every_configuration(whole: Tuned, tmp_path: Path) -> None:
    page = whole.report(tmp_path / "page.html").read_text()
    assert page.count("<circle") == len(whole.trials)
    for trial in whole.trials:
        assert f"eta = {trial.values['eta']:g}: " in page
    assert "Judged by objective on all training data" in page
    assert "<script" not in page


# ---- optuna ----------------------------------------------------------------------------------------------------------


def test_optuna_is_deterministic_resumable_and_costs_as_much(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    over = {
        "FedAvg.eta": log(1e-3, 10),
        "FedAvg.K": "1..6",
        "SCAFFOLD.eta": log(1e-3, 1),
        "SCAFFOLD.eta_g": "linear(0.5,1)",
    }
    how: dict[str, Any] = {"search": "optuna", "seed": 3, "progress": False}
    one = tune(study, over, 45, out=tmp_path / "one", **how)
    assert sum(t.spent for t in one.of("FedAvg")) == sum(t.spent for t in one.of("SCAFFOLD")) <= 45
    assert len(one.of("FedAvg")) == len(one.of("SCAFFOLD")) == 9
    assert len([*(tmp_path / "one" / "trials").iterdir()]) == 3
    computed, real = 0, Run.round

    def counted(run: Run, t: int) -> None:
        nonlocal computed
        computed += 1
        if computed == 50:
            raise Crash
        real(run, t)

    monkeypatch.setattr(Run, "round", counted)
    with pytest.raises(Crash):
        tune(study, over, 45, out=tmp_path / "two", checkpoint_seconds=0, **how)
    assert told(tune(study, over, 45, out=tmp_path / "two", checkpoint_seconds=0, **how)) == told(one)
    assert computed == 1 + sum(t.spent for t in one.trials)
    other = tune(study, over, 45, **{**how, "seed": 4})
    assert [t.values for t in other.trials] != [t.values for t in one.trials]
    assert tomllib.loads((tmp_path / "one" / "tuning.toml").read_text())["search"] == "optuna"
