"""Tuning: the same effort for every algorithm, the same result however it is done, and what it tells of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfed
from proxfed import FedAvg, FedNAG, InputError, Scaffold, Study, Tuned, tune
from proxfed.engine.run import Run
from proxfed.regularisers import Zero
from proxfed.tuning.tune import read_over

from support.cli import proxfed as command
from support.resumed import rows
from support.tuning import BUDGET, STEPS, convex, digits, trials


@pytest.fixture(scope="module")
def study() -> Study:
    return convex()


@pytest.fixture(scope="module")
def whole(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune(study, {"*.eta": STEPS}, BUDGET, out=tmp_path_factory.mktemp("whole") / "tuning", progress=False)


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
    assert {tuple(sorted(lengths)) for lengths in counted.values()} == {(5,) * 6 + (15,) * 2 + (45,)}
    for label, lengths in counted.items():
        tuned = whole.study.entries[label].tuned
        assert tuned is not None
        assert (tuned["configurations"], tuned["rounds"]) == (len(lengths), sum(lengths))


def test_no_round_is_computed_that_is_not_counted(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    real = Run.round
    monkeypatch.setattr(Run, "round", lambda run, t: (computed.append(t), real(run, t))[1])
    tuned = tune(study, {"*.eta": STEPS}, 150, seeds=2, progress=False)
    assert len(computed) == sum(trial.spent for trial in tuned.trials) == 2 * 150


def test_the_choice_is_that_of_a_plain_loop(study: Study, whole: Tuned) -> None:
    """Every configuration run to the end on its own; then the rungs are gone through with what was measured."""
    seed = max(study.seeds) + 1
    for label, make in {"FedAvg": FedAvg, "SCAFFOLD": Scaffold}.items():
        values = [float(f"{eta:.4g}") for eta in np.geomspace(1e-2, 10, 9)]
        found = {
            eta: [
                row["objective"] for row in proxfed.run(study.problem, make(eta, 2), 45, seed=seed, progress=False).rows
            ]
            for eta in values
        }
        three = sorted(values, key=lambda eta: found[eta][5])[:3]
        best = min(three, key=lambda eta: found[eta][15])
        assert {t.values["eta"] for t in whole.of(label)[:3]} == {*three}
        assert whole.of(label)[0].values == {"eta": best}
        assert whole.study.entries[label].algorithm == make(best, 2)
        assert found[best][45] == pytest.approx(whole.judge.value(whole.of(label)[0].score), rel=1e-12)


def test_the_seeds_of_the_study_are_not_tuned_on(whole: Tuned) -> None:
    assert {row["seed"] for row in rows(trials(whole))} == {2}


def test_the_best_is_better_than_a_poor_guess(study: Study, whole: Tuned) -> None:
    poor = proxfed.compare(study.problem, {"FedAvg": FedAvg(1e-3, 2)}, 45, progress=False).table()[0]["objective"]
    good = proxfed.run_study(whole.study, progress=False).table()[0]["objective"]
    assert good < poor


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
    assert "accuracy on 20 % of every client's training rows, held out" in text
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
    efforts = [entry["tuning"] for entry in proxfed.Results.read(tmp_path / "r").table()]
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
    assert code == 0, said
    changed = proxfed.Results.read(tmp_path / "s").table()[0]["tuning"]
    assert changed.endswith("but changed since")


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
    data = study.problem.f.data
    assert data is not None
    assert data.test is not None
    scrambled = proxfed.Federated(
        data.features, data.labels, data.sizes, (data.test[0], (data.test[1] + 1) % 10), data.classes, data.name
    )
    other = study.__class__(
        replace(study.problem, f=replace(study.problem.f, data=scrambled)),
        study.entries,
        4,
        [0],
        participation=study.participation,
        every=2,
    )
    one, two = (tune(s, {"FedAvg.eta": STEPS}, 12, progress=False) for s in (study, other))
    assert one.rows() == two.rows()
    assert one.judge.validation == 0.2
    assert one.study.problem.f.data is data


def test_two_first_guesses_end_with_the_same_order(tmp_path: Path) -> None:
    """Which of three reaches the target first: before tuning that is a matter of the guess, and after it is not.

    The stronger the pull of FedProx to the server's model, the slower it is; FedAvg has none.
    """
    pulls = {"FedAvg": 0.0, "pull 1": 1.0, "pull 10": 10.0}
    guesses = [{"FedAvg": 0.005, "pull 1": 0.3, "pull 10": 0.05}, {"FedAvg": 1.0, "pull 1": 0.005, "pull 10": 0.05}]
    before, after = [], []
    for guess in guesses:
        entries = [{"name": "fedprox", "label": k, "eta": guess[k], "K": 5, "mu": mu} for k, mu in pulls.items()]
        study = proxfed.read_study(digits(tmp_path / "d.toml", algorithms=entries))
        before.append(order(proxfed.run_study(study, progress=False)))
        tuned = tune(study, {"*.eta": "around(100)"}, target={"accuracy": 0.85}, progress=False)
        after.append(order(proxfed.run_study(tuned.study, progress=False)))
    assert before[0] != before[1]
    assert after[0] == after[1] == list(pulls)


def order(results: proxfed.Results) -> list[str]:
    """By simulated seconds to the target; those that did not get there by their accuracy."""
    cost = {e["algorithm"]: (e["reached"][0]["sim_seconds"] or 1e9, -e["accuracy"]) for e in results.table()}
    return sorted(cost, key=lambda label: cost[label])


# ---- what may go wrong -----------------------------------------------------------------------------------------------


def test_divergence_is_the_worst_and_is_shown(study: Study) -> None:
    problem = replace(study.problem, f=replace(study.problem.f, loss="squared"))
    wild = Study(problem, {"FedAvg": FedAvg(0.1, 5), "FedNAG": FedNAG(0.01, 0.5, 5)}, 27, [0], every=1)
    over = {"FedAvg.eta": [0.05, 0.1, 1e8, 1e9], "FedNAG.eta": [1e7, 1e8, 1e9, 1e10]}
    tuned = tune(wild, over, 5 * 27, progress=False)
    assert tuned.of("FedAvg")[0].values["eta"] in (0.05, 0.1)
    assert [trial.score.diverged for trial in tuned.of("FedAvg")] == [False, False, True, True]
    assert "FedNAG: all 4 configurations diverged, so its settings are unchanged" in tuned.notes()
    assert tuned.study.entries["FedNAG"].algorithm == FedNAG(0.01, 0.5, 5)
    record = tuned.study.entries["FedNAG"].tuned
    assert record is not None
    assert (record["diverged"], record["values"]) == (4, {})
    assert "all diverged" in str(tuned)
    assert proxfed.run_study(tuned.study, progress=False).table()[1]["tuning"].endswith("all diverged")


def test_a_best_value_at_the_edge_is_noted(study: Study) -> None:
    tuned = tune(study, {"FedAvg.eta": "log(1e-5,1e-3)"}, BUDGET, progress=False)
    assert "FedAvg: eta = 0.001 is the largest that was tried: a larger one may be better" in tuned.notes()
    assert "largest" in str(tuned)


def test_unequal_spaces_are_noted(study: Study) -> None:
    tuned = tune(study, {"FedAvg.eta": STEPS, "SCAFFOLD.eta": [0.1, 1.0]}, BUDGET, progress=False)
    (said,) = (note for note in tuned.notes() if note.startswith("the effort"))
    assert f"FedAvg {len(tuned.of('FedAvg'))}, SCAFFOLD 2" in said
    assert [trial.rounds[-1] for trial in tuned.of("SCAFFOLD")].count(45) >= 1


def test_a_list_of_two_values_is_two_configurations(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """They go to the end, and what they do not need of the budget is left over."""
    tuned = tune(study, {"FedAvg.eta": [0.1, 1.0]}, BUDGET, progress=True)
    assert [trial.rounds for trial in tuned.of("FedAvg")] == [(45,), (45,)]
    said = capsys.readouterr().err
    assert f"2 configurations per algorithm: 2 to round 45; at most 90 rounds of a budget of {BUDGET}" in said


def test_a_key_of_one_algorithm_overrides_that_of_all(study: Study) -> None:
    for over in ({"*.eta": STEPS, "SCAFFOLD.eta": "log(1e-3,1)"}, {"SCAFFOLD.eta": "log(1e-3,1)", "*.eta": STEPS}):
        spaces = read_over(study, over)
        assert str(spaces["SCAFFOLD"]["eta"]) == "log(0.001,1)"
        assert str(spaces["FedAvg"]["eta"]) == "log(0.01,10)"


def test_another_tuning_in_the_folder_is_refused(study: Study, whole: Tuned) -> None:
    how: dict[str, Any] = {"out": whole.folder, "progress": False}
    with pytest.raises(InputError, match="has other settings: budget was 105, now 150"):
        tune(study, {"*.eta": STEPS}, 150, **how)
    with pytest.raises(InputError, match="holds a tuning already"):
        tune(study, {"*.eta": STEPS}, BUDGET, resume=False, **how)
    with pytest.raises(InputError, match="has other settings"):
        tune(
            Study(study.problem.f.with_l2(0.5) + Zero(), study.entries, 45, [0, 1], "convex"),
            {"*.eta": STEPS},
            BUDGET,
            **how,
        )


def test_the_page_shows_every_configuration(whole: Tuned, tmp_path: Path) -> None:
    page = whole.report(tmp_path / "page.html").read_text()
    assert page.count("<circle") == sum(len(trial.scores) for trial in whole.trials)
    for trial in whole.trials:
        assert f"eta = {trial.values['eta']:g}: " in page
    assert "Judged by objective on all training data" in page
    assert "<script" not in page
