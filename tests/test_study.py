"""A study made of objects: one's own classes are kept, resumed and reported like those of the package."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfed
from proxfed import Entry, Linear, Logistic, Results, Study, compare
from proxfed.algorithms import Depositum, FedAvg, FedCEF
from proxfed.compressors import TopK
from proxfed.data import load
from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import open_folder
from proxfed.participation import UniformSampling
from proxfed.registry import build, describe, plain
from proxfed.regularisers import L1, REGULARISERS
from proxfed.simulate import Timing
from proxfed.topologies import Ring

from support import own_parts as own
from support.cli import proxfed as command
from support.small_experiment import Crash, Rounds, small
from support.toy_problems import problem

pytestmark = pytest.mark.usefixtures("forked")

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}


def timeless(rows: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]


def same_results(a: Results, b: Results) -> None:
    """Rows, status, models and table, to the bit."""
    assert timeless(a.rows) == timeless(b.rows)
    ends = [[{k: v for k, v in s.items() if k != "rows_end"} for s in r.status] for r in (a, b)]
    assert ends[0] == ends[1]
    assert {*a.models} == {*b.models} != set()
    for key in a.models:
        assert a.models[key].numpy().tobytes() == b.models[key].numpy().tobytes()
    assert timeless(a.table()) == timeless(b.table())
    assert a.blocks == b.blocks


# ---- objects and tables ---------------------------------------------------------------------------------------------


def test_objects_and_toml_make_the_same_study(tmp_path: Path) -> None:
    table = small(rounds=4, seeds=[0, 2], every=2)
    labels = ("fedavg", "fedcef", "depositum")
    table["algorithms"] = [a for a in table["algorithms"] if a.get("label", a["name"]) in labels]
    written = build_study(parse(table, "test"))
    data = load("synthetic_binary", **{k: v for k, v in table["data"].items() if k != "name"})
    made = Study(
        Linear(data, Logistic(), l2=0.05, batch=4) + L1(0.01),
        {
            "fedavg": Entry(FedAvg(eta=0.5, K=3), participation=UniformSampling(3)),
            "fedcef": FedCEF(alpha=0.3, K=3, compressor=TopK(k=2)),
            "depositum": Depositum(alpha=0.3, T0=3),
        },
        rounds=4,
        seeds=[0, 2],
        name="small",
        topology=Ring(7),
        every=2,
        reference=True,
    )
    one = proxfed.run_study(written, tmp_path / "one", **QUIET)
    two = proxfed.run_study(made, tmp_path / "two", **QUIET)
    same_results(one, two)
    a, b = written.settings, made.settings
    for key in ("name", "rounds", "seeds", "every", "reference", "algorithms", "regulariser", "dtype"):
        assert a[key] == b[key], key
    assert a["problem"].items() <= (b["problem"] | {"name": "logistic"}).items()


# ---- one's own ------------------------------------------------------------------------------------------------------


def ours(weight: float = 1e-3, chance: float = 0.5) -> dict[str, Any]:
    """Everything is somebody's own: algorithm, network, regulariser, compressor, topology, participation."""
    return {
        "problem": own.digits(own.Shrink(weight)),
        "algorithms": {
            "slow": Entry(own.Slow(0.2), participation=own.Weekdays(chance)),
            "half": FedCEF(alpha=0.1, K=2, compressor=own.FirstHalf()),
            "path": Entry(Depositum(alpha=0.1, T0=2), topology=own.Path(4), rounds=3),
        },
        "rounds": 4,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return compare(**ours(), seeds=2, out=tmp_path_factory.mktemp("whole") / "own", timing="lan", **QUIET)


def study(seeds: int = 2, **more: Any) -> Study:
    return Study(**_entries(ours(**more)), seeds=range(seeds), name="own", timing=Timing.read({"profile": "lan"}))


def _entries(given: dict[str, Any]) -> dict[str, Any]:
    return {"entries" if k == "algorithms" else k: v for k, v in given.items()}


def test_own_classes_are_recorded_by_name_and_source(whole: Results) -> None:
    assert whole.complete
    tables = {t["label"]: t for t in whole.settings["algorithms"]}
    recorded = {
        "Slow": tables["slow"],
        "Weekdays": tables["slow"]["participation"],
        "FirstHalf": tables["half"]["compressor"],
        "Path": tables["path"]["topology"],
        "Shrink": whole.settings["regulariser"],
    }
    for name, table in recorded.items():
        assert table["name"] == f"support.own_parts:{name}"
        assert len(table["source"]) == 12
    assert tables["half"]["compressor"]["half"] == 0.5
    assert whole.settings["regulariser"]["weight"] == 1e-3
    assert whole.settings["problem"]["model"].startswith("support.own_parts:make_net#")
    assert (tables["path"]["rounds"], tables["slow"]["rounds"]) == (3, 4)


def test_settings_do_not_depend_on_where_objects_lie() -> None:
    """An ordinary class has a repr with its address, which is another one in the next process."""
    assert study().settings == study().settings
    assert "0x" not in json.dumps(study().settings)


@pytest.mark.parametrize("after", [1, 2, 5, 6, 9, 14, 19, 24, 28])
def test_own_classes_go_on_after_a_crash_at_any_round(after: int, whole: Results, tmp_path: Path) -> None:
    first = study()
    open_folder(first, folder := RunFolder(tmp_path / "own"), resume=True, force=False)
    with pytest.raises(Crash):
        Execution(first, folder, watch=Rounds(after), checkpoint_seconds=0).run()
    same_results(compare(**ours(), seeds=2, out=tmp_path / "own", timing="lan", **QUIET), whole)


def test_what_is_added_later_is_all_that_is_run(whole: Results, tmp_path: Path) -> None:
    given = ours()
    few = given | {"algorithms": {"half": given["algorithms"]["half"]}}
    one = compare(**few, out=tmp_path / "own", timing="lan", **QUIET)
    assert one.complete
    before = (tmp_path / "own" / "rows.csv").read_bytes()
    ran: list[tuple[str, int]] = []
    all_of_it = study()
    resumed = open_folder(all_of_it, folder := RunFolder(tmp_path / "own"), resume=True, force=False)
    assert resumed
    Execution(all_of_it, folder, watch=lambda p: ran.append((p.label, p.seed))).run()
    assert {*ran} == {(label, seed) for label in given["algorithms"] for seed in (0, 1)} - {("half", 0)}
    assert (tmp_path / "own" / "rows.csv").read_bytes().startswith(before)
    same_results(Results.read(tmp_path / "own"), whole)


def test_only_some_now_and_the_others_later(whole: Results, tmp_path: Path) -> None:
    one = compare(**ours(), seeds=2, out=tmp_path / "own", timing="lan", only="path", **QUIET)
    assert one.labels() == ["path"]
    assert not one.complete
    two = compare(**ours(), seeds=2, out=tmp_path / "own", timing="lan", only=["path", "slow"], **QUIET)
    assert two.labels() == ["slow", "path"]
    same_results(compare(**ours(), seeds=2, out=tmp_path / "own", timing="lan", **QUIET), whole)


def test_results_from_the_folder_are_those_returned(whole: Results, tmp_path: Path) -> None:
    assert whole.folder is not None
    read = Results.read(whole.folder)
    same_results(read, whole)
    assert read.settings == whole.settings
    assert (read.name, read.seeds, read.versions) == (whole.name, whole.seeds, whole.versions)
    assert all(row["sim_seconds"] > 0 for row in whole.rows if row["round"] > 0)


def test_report_of_own_classes(capsys: Any, whole: Results, tmp_path: Path) -> None:
    page = whole.report(tmp_path / "page.html").read_text()
    code, said, complaint = command(capsys, "report", str(whole.folder), "--out", str(tmp_path / "other.html"))
    assert code == 0, complaint
    for label in ("slow", "half", "path"):
        assert label in page
        assert label in said
    assert "fc1.weight" in page


def test_simulated_time_of_own_classes_can_be_computed_again(whole: Results, capsys: Any, tmp_path: Path) -> None:
    """From the names in config.toml alone."""
    code, _, complaint = command(
        capsys, "simulate", str(whole.folder), "--profile", "lan", "--out", str(tmp_path / "again")
    )
    assert code == 0, complaint
    assert timeless(Results.read(tmp_path / "again").rows) == timeless(whole.rows)


@pytest.mark.parametrize("what", ["Slow", "Shrink", "FirstHalf", "Path", "Weekdays", "make_net"])
def test_a_changed_source_is_refused(what: str, whole: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfed import registry

    real = registry.inspect.getsource
    monkeypatch.setattr(
        registry.inspect, "getsource", lambda make: real(make) + "#" * (getattr(make, "__name__", "") == what)
    )
    with pytest.raises(InputError, match=r"has other settings: .* was .*, now .*") as refused:
        compare(**ours(), seeds=2, out=whole.folder, timing="lan", **QUIET)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("other", [{"weight": 2e-3}, {"chance": 0.6}])
def test_other_settings_of_own_classes_are_refused(other: dict[str, float], whole: Results) -> None:
    ((key, value),) = other.items()
    with pytest.raises(InputError, match=rf"{key} was .*, now {value}"):
        compare(**ours(**other), seeds=2, out=whole.folder, timing="lan", **QUIET)


def test_a_function_as_participation_is_recorded(tmp_path: Path) -> None:
    given = {"algorithms": {"a": FedAvg(eta=0.1, K=1)}, "rounds": 2, "out": tmp_path / "run"}
    done = compare(problem(), **given, participation=own.everybody_but_the_first, **QUIET)
    table = done.settings["algorithms"][0]["participation"]
    assert table["name"] == "support.own_parts:everybody_but_the_first"
    assert len(table["source"]) == 12
    with pytest.raises(InputError, match=r"algorithms\.a\.participation\.\w+ was"):
        compare(problem(), **given, participation=own.Weekdays(), **QUIET)


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.5), np.int64(2)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert plain(number) == number
    assert type(plain(number)) in (int, float)


def test_numbers_of_numpy_as_arguments(tmp_path: Path) -> None:
    given = {"rounds": np.int64(2), "seeds": [np.int64(3)], "every": np.int32(1)}
    entry = Entry(FedAvg(eta=np.float64(0.5), K=np.int64(2)), rounds=np.int64(1))
    one = compare(problem(), {"a": entry}, **given, out=tmp_path / "numpy", name="run", **QUIET)
    plainly = Entry(FedAvg(eta=0.5, K=2), rounds=1)
    two = compare(problem(), {"a": plainly}, 2, seeds=[3], out=tmp_path / "plain", name="run", **QUIET)
    same_results(one, two)
    assert one.settings == two.settings


# ---- entries of their own -------------------------------------------------------------------------------------------


def test_an_entry_is_the_study_with_what_is_its_own() -> None:
    """Each is what a study of its own would give."""
    p = problem()
    other = p.f.with_l2(0.5) + L1(0.1)
    avg, dep = FedAvg(eta=0.1, K=2), Depositum(alpha=0.1)
    together = compare(
        p,
        {
            "plain": avg,
            "rounds": Entry(avg, rounds=2),
            "part": Entry(avg, participation=UniformSampling(2)),
            "problem": Entry(avg, problem=other),
            "ring": dep,
            "path": Entry(dep, topology=own.Path(5)),
        },
        4,
        topology=Ring(5),
        **QUIET,
    )
    alone = {
        "plain": compare(p, {"plain": avg}, 4, **QUIET),
        "rounds": compare(p, {"rounds": avg}, 2, **QUIET),
        "part": compare(p, {"part": avg}, 4, participation=UniformSampling(2), **QUIET),
        "problem": compare(other, {"problem": avg}, 4, **QUIET),
        "ring": compare(p, {"ring": dep}, 4, topology=Ring(5), **QUIET),
        "path": compare(p, {"path": dep}, 4, topology=own.Path(5), **QUIET),
    }
    for label, one in alone.items():
        assert timeless(r for r in together.rows if r["algorithm"] == label) == timeless(one.rows)
    assert len({r["objective"] for r in together.rows if r["round"] == 4}) == 5


@pytest.mark.parametrize("change", [{"h": L1(0.3)}, {"l2": 0.7}, {"batch": 3}])
def test_a_changed_problem_of_an_entry_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    p = problem()
    entry = Entry(FedAvg(eta=0.1, K=2), problem=p.f.with_l2(0.5) + p.h)
    compare(p, {"a": entry}, 2, out=tmp_path / "run", **QUIET)
    compare(p, {"a": entry}, 2, out=tmp_path / "run", **QUIET)
    f = replace(p.f, **({"l2": 0.5} | {k: v for k, v in change.items() if k != "h"}))
    other = Entry(FedAvg(eta=0.1, K=2), problem=f + change.get("h", p.h))
    with pytest.raises(InputError, match=r"has other settings: algorithms\.a\."):
        compare(p, {"a": other}, 2, out=tmp_path / "run", **QUIET)


def test_a_problem_of_other_clients_or_another_model_does_not_fit() -> None:
    for other in (problem(sizes=(10, 10)), problem(p=7)):
        with pytest.raises(InputError, match=r"algorithms\.a: its problem must have the clients and the model"):
            compare(problem(), {"a": Entry(FedAvg(eta=0.1, K=1), problem=other)}, 1, **QUIET)


# ---- without a folder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_without_a_folder_nothing_is_left(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"rounds": 3, "seeds": 2, "progress": False, "name": "mine"}
    algorithms = {"a": FedAvg(eta=0.1, K=2), "b": own.Slow(0.1)}
    done = compare(problem(), algorithms, **given, jobs=jobs)
    assert list(tmp_path.iterdir()) == []
    assert (done.name, done.folder) == ("mine", None)
    assert len(done.models) == 4
    kept = compare(problem(), algorithms, **given, jobs=1, out=tmp_path / "kept")
    same_results(done, kept)
    done.report(tmp_path / "page.html")
    assert "mine" in (tmp_path / "page.html").read_text()


def test_without_a_folder_nothing_is_left_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        compare(problem(), {"b": own.Slow(0.1, fails_in=2)}, 3, **QUIET)
    assert list(tmp_path.iterdir()) == []


def test_force_replaces_and_not_resuming_refuses(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 2, "out": tmp_path / "run", **QUIET}
    compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, **given)
    with pytest.raises(InputError, match="holds a run already"):
        compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, resume=False, **given)
    for eta, resume in ((0.2, False), (0.3, True)):
        new = compare(problem(), {"a": FedAvg(eta=eta, K=2)}, resume=resume, force=True, **given)
        same_results(new, compare(problem(), {"a": FedAvg(eta=eta, K=2)}, 2, name="run", **QUIET))


def test_force_begins_anew_where_the_same_run_is_finished(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 2, "out": tmp_path / "run", **QUIET}
    compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, **given)
    then = (tmp_path / "run" / "config.toml").stat().st_mtime_ns
    compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, force=True, **given)
    assert (tmp_path / "run" / "config.toml").stat().st_mtime_ns > then


def test_messages_about_folders_are_in_terms_of_python(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 2, "out": tmp_path / "run", **QUIET}
    compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, **given)
    with pytest.raises(InputError, match=r"resume=True continues it, force=True replaces it, or choose another out$"):
        compare(problem(), {"a": FedAvg(eta=0.1, K=2)}, resume=False, **given)
    with pytest.raises(InputError, match=r"eta was 0[.]1, now 0[.]2; force=True replaces it, or choose another out$"):
        compare(problem(), {"a": FedAvg(eta=0.2, K=2)}, **given)
    with pytest.raises(InputError, match=r"^only: no algorithm has the label 'b'"):
        compare(problem(), {"a": FedAvg(eta=0.2, K=2)}, only="b", **given)


def test_describe_and_build_are_inverse() -> None:
    table = describe(own.Shrink(0.5), REGULARISERS)
    made = build(REGULARISERS, table, "regulariser")
    assert describe(made, REGULARISERS) == table


# ---- several problems ------------------------------------------------------------------------------------------------


def test_several_problems_are_cases_with_a_folder_each(tmp_path: Path) -> None:
    """Each case is what it would be alone; over several jobs, too, and resumed."""
    data = proxfed.load("synthetic_binary", alpha=1.0, beta=1.0, clients=4, samples=30, features=5)
    problems = {f"l1 {w:g}": proxfed.Linear(data, "logistic") + L1(w) for w in (0.01, 0.1)}
    algorithms = {"FedAvg": proxfed.FedAvg(0.5, 2), "FedComposite": proxfed.FedComposite(0.5, 2)}
    both = proxfed.compare(problems, algorithms, 4, seeds=2, out=tmp_path / "both", jobs=2, progress=False)
    assert list(both) == list(problems)
    for case, one in problems.items():
        alone = proxfed.compare(one, algorithms, 4, seeds=2, name="both", **QUIET)
        assert unclocked(both[case].rows) == unclocked(alone.rows)
        assert both[case].complete
    assert (tmp_path / "both" / "l1-0.01" / "rows.csv").exists()
    again = proxfed.compare(problems, algorithms, 4, seeds=3, out=tmp_path / "both", **QUIET)
    assert [len(results.rows) for results in again.values()] == [30, 30]
    assert "l1 0.1" in str(again)
    assert "<h4>l1 0.1</h4>" in again._repr_html_()
    assert "l1 0.1" in again.report(tmp_path / "page.html").read_text()


def unclocked(rows: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]


@pytest.mark.parametrize("names", [("a", "A"), ("a b", "a-b"), ("",), ("!",)])
def test_cases_need_folders_of_their_own(names: tuple[str, ...]) -> None:
    data = proxfed.load("synthetic_binary", alpha=1.0, beta=1.0, clients=2, samples=10, features=3)
    problems = dict.fromkeys(names, proxfed.Linear(data, "logistic"))
    with pytest.raises(proxfed.InputError, match="a folder of its own"):
        proxfed.compare(problems, {"FedAvg": proxfed.FedAvg(0.5, 2)}, 2)


def test_a_file_gives_the_study_that_the_command_line_runs(tmp_path: Path) -> None:
    study = proxfed.read_study("demo", ["rounds=2", "seeds=[1]"])
    assert (study.name, study.rounds, study.seeds) == ("demo", 2, [1])
    out = tmp_path / "run"
    results = proxfed.run_study(study, out, only="FedAvg", **QUIET)
    assert [row["round"] for row in results.rows] == [0, 2]
    with pytest.raises(proxfed.InputError, match="must be one of its cases: "):
        proxfed.read_study("depositum/table3_mlp")
