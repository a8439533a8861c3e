"""Sweeps: a grid over any settings as one study, with the swept values as columns and in the heat maps."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import proxfed
from proxfed import FedAvg, FedNAG, InputError, Linear, Logistic, Study, sweep
from proxfed.engine.run import Run
from proxfed.regularisers import L1, Zero
from proxfed.report.small_plots import Point, heat_map, scatter

from support.cli import proxfed as command
from support.resumed import rows
from support.tuning import digits

ETAS, STEPS, DECAYS = [0.1, 0.5], [1, 3], [0.05, 0.2]


@pytest.fixture(scope="module")
def study() -> Study:
    data = proxfed.load("synthetic_binary", alpha=1.0, beta=1.0, clients=5, samples=20, features=8)
    return Study(
        Linear(data, Logistic(), l2=0.05) + Zero(), {"FedAvg": FedAvg(0.5, 2), "FedNAG": FedNAG(0.1, 0.5, 2)}, 4, [0, 1]
    )


def test_every_number_is_that_of_a_run_of_its_own(study: Study, tmp_path: Path) -> None:
    """Of the heat maps, the table and the rows; an algorithm without a setting has one line for each of the others."""
    over = {"FedAvg.eta": ETAS, "FedAvg.K": STEPS, "problem.l2": DECAYS}
    swept = sweep(study, over, out=tmp_path / "sweep", progress=False)
    assert swept.names == ["l2", "eta", "K"]
    assert list(swept) == ["l2=0.05", "l2=0.2"]
    table = {(e["algorithm"], e["l2"], e["eta"], e["K"]): e["objective"] for e in swept.table()}
    assert len(table) == 2 * (4 + 1)
    maps = swept.heat("eta", "K")
    assert {*maps} == {"FedAvg, l2=0.05", "FedAvg, l2=0.2"}
    for l2 in DECAYS:
        alone = {f"{eta} {K}": FedAvg(eta, K) for eta, K in product(ETAS, STEPS)} | {"FedNAG": FedNAG(0.1, 0.5, 2)}
        results = proxfed.compare(study.problem.f.with_l2(l2), alone, 4, seeds=2, progress=False)
        found = {e["algorithm"]: e["objective"] for e in results.table()}
        for eta, K in product(ETAS, STEPS):
            assert table["FedAvg", l2, eta, K] == found[f"{eta} {K}"]
            lower = min(r[-1]["objective"] for r in results.histories(f"{eta} {K}").values())
            assert maps[f"FedAvg, l2={l2:g}"][eta, K] == lower, "of two seeds the lower median"
        assert table["FedNAG", l2, None, None] == found["FedNAG"]
    frame = swept.to_pandas()
    assert len(frame) == 5 * 2 * 5 * 2  # lines, seeds, rows, cases
    last = frame[(frame["round"] == 4) & (frame.eta == 0.5) & (frame.K == 3) & (frame.l2 == 0.2)]
    assert list(last.algorithm) == ["FedAvg", "FedAvg"]
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("<rect") == 2 * 4


def test_one_setting_is_a_curve_and_needs_no_cases(study: Study, tmp_path: Path) -> None:
    swept = sweep(study, {"*.eta": ETAS}, out=tmp_path / "sweep", progress=False)
    assert list(swept) == [""]
    assert (tmp_path / "sweep" / "config.toml").exists()
    assert [(e["algorithm"], e["eta"]) for e in swept.table()] == [(a, v) for a in ("FedAvg", "FedNAG") for v in ETAS]
    assert (tmp_path / "sweep" / "sweep.html").read_text().count("<polyline") == 2
    assert "FedAvg     0.1" in str(swept)


def test_a_step_that_is_found_beside_given_ones(study: Study) -> None:
    swept = sweep(study, {"*.eta": [0.1, "auto"]}, progress=False)
    table = {(e["algorithm"], e["eta"]): e["objective"] for e in swept.table()}
    for label, auto in (("FedAvg", FedAvg("auto", 2)), ("FedNAG", FedNAG("auto", 0.5, 2))):
        alone = proxfed.compare(study.problem, {label: auto}, 4, seeds=2, progress=False)
        assert table[label, "auto"] == alone.table()[0]["objective"]
    with pytest.raises(InputError, match=r"FedAvg\.K = 'auto' is not allowed: input should be a valid integer"):
        sweep(study, {"FedAvg.K": [1, "auto"]}, progress=False)


def test_it_goes_on_and_values_may_be_added(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    real = Run.round
    monkeypatch.setattr(Run, "round", lambda run, t: (computed.append(t), real(run, t))[1])
    how = {"out": tmp_path / "sweep", "progress": False}
    first = sweep(study, {"FedAvg.eta": ETAS}, **how)
    count = len(computed)
    assert count == 3 * 2 * 4
    assert sweep(study, {"FedAvg.eta": ETAS}, **how).rows() == first.rows()
    assert len(computed) == count
    more = sweep(study, {"FedAvg.eta": [*ETAS, 1.0]}, **how)
    assert len(computed) == count + 2 * 4
    assert [row for row in more.rows() if row["eta"] != 1.0] == first.rows()


def test_jobs_change_nothing(study: Study, tmp_path: Path) -> None:
    over = {"FedAvg.K": STEPS, "problem.l2": DECAYS}
    one, two = (sweep(study, over, out=tmp_path / f"{jobs}", jobs=jobs, progress=False) for jobs in (1, 2))
    without = [[{k: v for k, v in row.items() if k != "wall_seconds"} for row in s.rows()] for s in (one, two)]
    assert without[0] == without[1]


def test_settings_of_a_file(tmp_path: Path) -> None:
    """Of its data too; each case has its own folder, whose configuration tells the truth."""
    study = proxfed.read_study(digits(tmp_path / "d.toml", rounds=2, seeds=[0]))
    over = {"data.partition.alpha": [0.1, 10.0], "participation.m": [2, 5]}
    swept = sweep(study, over, measure="accuracy", out=tmp_path / "s", progress=False)
    assert {*swept.heat("alpha", "m")} == {"FedAvg", "FedNAG", "SCAFFOLD", "FedProx"}
    few = swept["alpha=0.1, m=2"]
    assert few.folder == tmp_path / "s" / "alpha-0.1-m-2"
    assert few.settings["data"]["partition"]["alpha"] == 0.1
    assert few.settings["algorithms"][0]["participation"]["m"] == 2
    assert few.settings["case"] == "alpha=0.1, m=2"
    alone = proxfed.read_study(tmp_path / "d.toml", ["data.partition.alpha=0.1", "participation.m=2"])
    proxfed.run_study(alone, tmp_path / "alone", progress=False)
    assert rows(tmp_path / "alone") == rows(tmp_path / "s" / "alpha-0.1-m-2")
    spread = [results.client_stats.sizes.std() for results in swept.values()]  # type: ignore[union-attr]
    assert spread[0] > spread[-1]


def test_a_study_that_is_no_longer_that_of_its_file_is_refused(tmp_path: Path) -> None:
    study = replace(proxfed.read_study(digits(tmp_path / "d.toml", rounds=2)), rounds=3)
    with pytest.raises(InputError, match="the study was changed after it was read from its file"):
        sweep(study, {"problem.l2": DECAYS}, progress=False)


def test_settings_of_objects(study: Study) -> None:
    sparse = replace(study, problem=study.problem.with_h(L1(0.01)), seeds=[0])
    swept = sweep(sparse, {"regulariser.weight": [0.001, 0.3], "rounds": [1, 3]}, measure="objective", progress=False)
    assert [(e["weight"], e["rounds"]) for e in swept.table() if e["algorithm"] == "FedAvg"] == [
        (0.001, 1), (0.001, 3), (0.3, 1), (0.3, 3),
    ]  # fmt: skip
    nonzeros = [e["nonzeros"] for e in swept.table() if e["algorithm"] == "FedAvg" and e["rounds"] == 3]
    assert nonzeros[0] > nonzeros[1]


def test_a_tuned_study_is_swept_with_its_tuned_settings(tmp_path: Path) -> None:
    study = proxfed.read_study(digits(tmp_path / "d.toml", rounds=3, seeds=[0]))
    tuned = proxfed.tune(study, {"FedAvg.eta": [0.5, 1.0]}, 6, progress=False)
    swept = sweep(tuned.study, {"problem.l2": [0.0, 0.1]}, progress=False)
    for results in swept.values():
        assert results.settings["algorithms"][0]["eta"] == tuned.of("FedAvg")[0].values["eta"]
    assert swept.table()[0]["tuning"] == "2 tried, 6 rounds"


def test_a_target_is_shown_instead_of_a_measure(study: Study) -> None:
    swept = sweep(study, {"FedAvg.eta": ETAS, "FedAvg.K": STEPS}, target="objective=0.68", axis="bytes", progress=False)
    (cells,) = swept.heat("eta", "K").values()
    histories = {line.values.get("eta"): line for line in swept.lines}
    assert len(histories) == 3
    for (eta, K), cost in cells.items():
        label = f"FedAvg eta={eta:g}, K={K}"
        reached = [
            next((r["bytes_up"] + r["bytes_down"] for r in history if r["objective"] <= 0.68), None)
            for history in swept[""].histories(label).values()
        ]
        assert cost == reached[0] == reached[1]
    assert any(cells.values())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(digits(tmp_path / "d.toml", rounds=2, seeds=[0]))
    options = ["sweep", file, "--over", "FedAvg.eta=log(0.01,1,3)", "--over", "problem.l2=[0.0, 0.1]"]
    code, said, _ = command(capsys, *options)
    assert code == 0
    assert "By accuracy on test data; the report is in runs/digits-sweep/sweep.html" in said
    code, said, _ = command(capsys, *options, "--resume", "--format", "json")
    assert [(e["algorithm"], e["eta"], e["l2"]) for e in json.loads(said)["results"]][:3] == [
        ("FedAvg", 0.01, 0.0), ("FedAvg", 0.1, 0.0), ("FedAvg", 1.0, 0.0),
    ]  # fmt: skip
    assert command(capsys, *options)[0] == 2, "it is there already"


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_cells_of_a_heat_map_are_where_they_belong() -> None:
    cells = {("a", "x"): 1.0, ("a", "y"): 2.0, ("b", "x"): None}
    drawn = heat_map(cells, ["a", "b"], ["x", "y"], "row", "column", "number", higher=True)
    texts = [part.split("<")[0] for part in drawn.split(">") if part and not part.startswith("<")]
    assert [text for text in texts if text] == ["column →  row ↓", "x", "y", "a", "1", "2", "b", "diverged"]
    shades = [float(part.split('"')[1]) for part in drawn.split("fill-opacity=")[1:]]
    assert shades[0] < shades[1], "the better, the darker"
    assert shades[2] == shades[3] == 0


def test_points_of_a_picture_are_in_their_order() -> None:
    points = [Point(0.01, 1.0), Point(0.1, 2.0), Point(1.0, None), Point(10.0, 4.0, "best")]
    drawn = scatter([points], "eta", "objective")
    at = [tuple(float(word.split('"')[1]) for word in part.split()[:2]) for part in drawn.split("<circle ")[1:]]
    assert len(at) == 3
    assert drawn.count("<path d=") == 1, "what diverged is a cross"
    assert at[0][0] < at[1][0] < at[2][0]
    assert at[0][1] > at[1][1] > at[2][1], "higher up"
    assert at[2][0] - at[1][0] == pytest.approx(2 * (at[1][0] - at[0][0]), abs=0.2), "in logarithms"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"FedAvg.etta": ETAS}, "over FedAvg.etta: FedAvg has no setting 'etta'; did you mean 'eta'?"),
        ({"FedAvgg.eta": ETAS}, "neither a setting nor an algorithm 'FedAvgg'; did you mean 'FedAvg'?"),
        ({"algorithms.FedAvgg.eta": ETAS}, "there is no algorithm 'FedAvgg'; did you mean 'FedAvg'?"),
        ({"*.tau_max": ETAS}, "no algorithm has a setting 'tau_max'"),
        ({"problem.l3": ETAS}, "has no 'l3'; did you mean 'l2'?"),
        ({"data.clients": [2, 3]}, "in a study that was made of objects these can be swept"),
        ({"name": ["a", "b"]}, "'name' cannot be swept"),
        ({"FedAvg.eta": [0.1]}, "has only one point"),
        ({"FedAvg.eta": "log(0.1,1)"}, "how many points"),
        ({"FedAvg.eta": "log(0.1,1,1)"}, "has only one point"),
        ({"FedAvg.K": [1, 2.5]}, "algorithms.FedAvg.K = 2.5 is not allowed"),
        ({"FedAvg.eta": [0.1, -1.0]}, "eta = -1.0 must be a finite number > 0"),
        ({"*.eta": ETAS, "FedAvg.eta": ETAS}, "FedAvg.eta is given twice"),
        ({"topology.n": [1, 2]}, "the algorithms have their own topology"),
        ({}, "must say what to sweep"),
    ],
)
def test_what_cannot_be_swept_is_refused(over: dict, says: str, study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        sweep(study, over, out=tmp_path / "s", progress=False)
    assert says in str(e.value)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "s").exists()


def test_a_measure_that_is_not_there_is_refused(study: Study) -> None:
    with pytest.raises(InputError, match="measure = 'accuracy' cannot be measured here"):
        sweep(study, {"FedAvg.eta": ETAS}, measure="accuracy", progress=False)
    with pytest.raises(InputError, match="measure = 'gap' needs a reference solution"):
        sweep(study, {"FedAvg.eta": ETAS}, measure="gap", progress=False)
