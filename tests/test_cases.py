"""Cases of an experiment: which settings win, a folder each, resuming, targets in the tables, fewer data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.data import load, read
from proxfed.data.partitions import IID
from proxfed.errors import InputError
from proxfed.harness.experiment import read_cases, slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.overrides import assign, override
from proxfed.harness.plan import Plan
from proxfed.papers.paper_file import PaperFile

from support.cli import proxfed, refused
from support.small_experiment import small, write

pytestmark = pytest.mark.usefixtures("forked")

FAST = {"name": "fedavg", "label": "FedAvg", "eta": 0.5, "K": 3}
SLOW = {"name": "fedavg", "label": "eta = 0.05", "eta": 0.05, "K": 3}
CASES = {"Few Clients, easy": {"data.clients": 3}, "many": {"data.clients": 9, "algorithms.eta = 0.05.eta": 0.04}}


def two(**changes: Any) -> dict[str, Any]:
    """Two algorithms in two cases."""
    return small(**{"rounds": 4, "seeds": [0], "algorithms": [FAST, SLOW], "cases": CASES} | changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "two.toml", two())


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in RunFolder(path).rows()]


# ---- settings ------------------------------------------------------------------------------------------------------


def test_what_is_set_later_wins(tmp_path: Path) -> None:
    """The file, the case, the quick form, the variant, the command line."""
    paper = {
        "title": "t", "figure": "f",
        "quick": {"problem.batch": 3, "every": 3, "dtype": "float32"},
        "variants": {"other": {"every": 4, "dtype": "float64"}},
    }  # fmt: skip
    cases = {"a": {"rounds": 2, "problem.batch": 2, "every": 2, "dtype": "float64"}}
    path = str(write(tmp_path / "p.toml", two(rounds=1, every=1, paper=paper, cases=cases)))

    def settings(*changes: str, **form: Any) -> tuple[Any, ...]:
        e = PaperFile(path).form(changes, **form)["a"]
        return e.rounds, e.problem["batch"], e.every, e.dtype

    assert settings() == (2, 2, 2, "float64")
    assert settings(quick=True) == (2, 3, 3, "float32")
    assert settings(quick=True, variant="other") == (2, 3, 4, "float64")
    assert settings("every=5", quick=True, variant="other") == (2, 3, 5, "float64")


def test_a_case_is_an_experiment_of_its_own(file: Path) -> None:
    cases = read_cases(str(file))
    assert list(cases) == list(CASES)
    few, many = cases.values()
    assert (few.data["clients"], many.data["clients"]) == (3, 9)
    assert [a["eta"] for a in few.algorithms] == [0.5, 0.05]
    assert [a["eta"] for a in many.algorithms] == [0.5, 0.04], "a label may have dots in it"
    assert many.case == "many"
    assert many.cases == {}
    assert list(read_cases(str(file), only=["few-clients-easy"])) == ["Few Clients, easy"]


def test_a_label_may_have_an_equals_sign_in_it() -> None:
    table: dict[str, Any] = {"algorithms": [{"name": "fedavg", "label": "eta=0.5"}, {"name": "fedavg", "label": "eta"}]}
    override(table, "algorithms.eta=0.5.eta=0.25")
    override(table, 'algorithms.eta.note="a=b"')
    assert [a.get("eta") for a in table["algorithms"]] == [0.25, None]
    assert table["algorithms"][1]["note"] == "a=b"


def test_without_cases_there_is_one(tmp_path: Path) -> None:
    assert list(read_cases(str(write(tmp_path / "one.toml", small())))) == [""]


def test_all_algorithms_at_once_and_values_are_not_shared() -> None:
    table: dict[str, Any] = {"algorithms": [dict(FAST), dict(SLOW)]}
    assign(table, "algorithms.*.participation", {"name": "uniform"}, "here")
    assign(table, "algorithms.FedAvg.participation.m", 3, "here")
    first, second = table["algorithms"]
    assert first["participation"] == {"name": "uniform", "m": 3}
    assert second["participation"] == {"name": "uniform"}


@pytest.mark.parametrize(
    ("name", "folder"), [("MNIST MLP IID", "mnist-mlp-iid"), ("γ = 0.5, K=5", "γ-0.5-k-5"), ("", "")]
)
def test_folders_have_readable_names(name: str, folder: str) -> None:
    assert slug(name) == folder


NEAR = {"says": "so", "measure": "error", "label": "FedAvg"}
CLAIM = NEAR | {"below": 1.0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cases": {"A b": {}, "a-B": {}}}, "nearly the same name"),
        ({"paper": {"title": "", "figure": "", "variants": {"a b": {}}}}, "the variant 'a b' needs a name of letters"),
        ({"paper": {"title": "", "figure": "", "departures": ["a"]}}, "departures: there is no variant 'a'"),
        ({"cases": {"%": {}}}, "needs a name with letters or digits"),
        ({"cases": {"a": {"problem.bach": 3}}}, "problem: unknown key 'bach'"),
        ({"cases": {"a": {"algorithms.FedProx.eta": 3}}}, "'FedProx' names 0 entries; known: FedAvg, eta = 0.05"),
        ({"claims": [CLAIM | {"case": "mny"}]}, "there is no case 'mny'; did you mean 'many'?"),
        ({"claims": [CLAIM | {"label": "FedAv"}]}, "no algorithm has the label 'FedAv'"),
        ({"claims": [CLAIM | {"across": True}]}, "no algorithm has the label 'FedAvg'"),
        ({"claims": [CLAIM | {"order": ["FedAvg", "eta = 0.05"]}]}, "exactly one of label, order and labels"),
        ({"claims": [{"says": "so", "label": "FedAvg"}]}, "needs one of below, above"),
        ({"claims": [NEAR | {"near": 1.0}]}, "the key 'claims.0.tolerance' is missing"),
        ({"claims": [NEAR | {"tolerance": 1.0}]}, "the key 'claims.0.near' is missing"),
        ({"claims": [NEAR | {"near": 1.0, "tolerance": 0.0}]}, "claims.0.tolerance = 0.0 is not allowed"),
        ({"claims": [CLAIM | {"near": 1.0, "tolerance": 1.0}]}, "the claim 'so' asks for near, which takes no 'below'"),
        ({"claims": [CLAIM | {"diverges": False}]}, "the claim 'so' asks for diverges, which takes no 'measure'"),
        ({"claims": [CLAIM | {"target": 1.0, "round": 3}]}, "takes only one of target, round and steps"),
        ({"claims": [CLAIM | {"diverge": True}]}, "unknown key 'claims.0.diverge'; did you mean 'diverges'?"),
        (
            {"paper": {"title": "", "figure": "", "figures": 2 * [{"name": "a", "y": "error"}]}},
            "two figures are called 'a'",
        ),
        (
            {
                "paper": {
                    "title": "",
                    "figure": "",
                    "figures": [{"name": "a", "y": "error", "target": 1, "log_y": True}],
                }
            },
            "the figure 'a' has a target, so bars: they take no log_x or log_y",
        ),
        (
            {"claims": [CLAIM | {"lost_from": "many"}]},
            "the claim 'so' has lost_from, which needs a case, and no target",
        ),
        ({"claims": [CLAIM | {"case": "many", "lost_from": "on"}]}, "there is no case 'on'"),
        (
            {"claims": [CLAIM | {"within_factor": 2.0}]},
            "asks for within_factor, which takes no 'label'; did you mean 'labels'?",
        ),
        ({"reported": [{"measure": "error", "values": {"FedProx": 1.0}}]}, "no algorithm has the label 'FedProx'"),
        ({"reported": [{"measure": "error", "values": {}, "case": "x"}]}, "there is no case 'x'"),
    ],
)
def test_bad_cases(capsys: Any, tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path / "bad.toml", two(**changes))
    assert sentence in refused(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_figure_speaks_of_labels_that_one_of_its_cases_has(capsys: Any, tmp_path: Path) -> None:
    """Each of the cases has a label of its own."""
    cases = {"one": {"algorithms.FedAvg.label": "first"}, "two": {"algorithms.FedAvg.label": "second"}, "three": {}}

    def shows(labels: list[str], some: list[str]) -> str:
        figure = {"name": "a", "y": "error", "cases": some, "labels": labels}
        paper = {"title": "", "figure": "", "figures": [figure]}
        return str(write(tmp_path / "p.toml", two(cases=cases, paper=paper)))

    read_cases(shows(["first", "second", "eta = 0.05"], ["one", "two"]))
    read_cases(shows(["first", "second", "FedAvg"], []))
    with pytest.raises(InputError, match=r"no algorithm has the label 'FedAvg'; known: eta = 0\.05, first, second"):
        read_cases(shows(["FedAvg"], ["one", "two"]))


@pytest.mark.parametrize("only", [[], ["many"], ["Few Clients, easy"]])
def test_a_variant_that_changes_nothing_in_the_form_is_refused(tmp_path: Path, only: list[str]) -> None:
    """It would be the same run under another name; one case that it changes is enough."""
    quick = {"problem.batch": 3, "data.clients": 3}
    variants = {"small": {"problem.batch": 3}, "few": {"data.clients": 3}, "nothing": {}}
    paper = {"title": "t", "figure": "f", "quick": quick, "variants": variants}
    path = str(write(tmp_path / "p.toml", two(paper=paper)))
    for variant in ("small", "few"):
        assert PaperFile(path).form(variant=variant, only=only)
        with pytest.raises(InputError, match=f"the variant '{variant}' changes nothing in the quick form"):
            PaperFile(path).form(quick=True, variant=variant, only=only)
    with pytest.raises(InputError, match="the variant 'nothing' changes nothing in the full form"):
        PaperFile(path).form(variant="nothing", only=only)


def test_a_variant_may_change_a_case_that_the_quick_form_leaves_out(tmp_path: Path) -> None:
    variants = {"few": {"data.clients": 3}}
    paper = {"title": "t", "figure": "f", "quick_cases": ["Few Clients, easy"], "variants": variants}
    path = str(write(tmp_path / "p.toml", two(paper=paper)))
    with pytest.raises(InputError, match="changes nothing in the quick form"):
        PaperFile(path).form(quick=True, variant="few")
    assert list(PaperFile(path).form(quick=True, variant="few", only=["many"])) == ["many"]


def test_a_bad_second_case_is_refused_before_the_first_begins(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.toml", two(cases={"good": {}, "bad": {"problem.l2": -1.0}}))
    assert "l2 = -1.0" in refused(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_cases_cannot_be_changed_from_outside(capsys: Any, file: Path) -> None:
    assert "'cases'" in refused(capsys, "run", str(file), "-c", "cases.many.rounds=3")
    assert "has no case 'mny'; did you mean 'many'?" in refused(capsys, "run", str(file), "--case", "mny")


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_every_case_has_a_folder_and_a_table(capsys: Any, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, _ = proxfed(capsys, "run", str(file), "--out", str(out))
    assert code == 0
    assert all(case in said for case in CASES)
    assert {path.name for path in out.iterdir()} == {"few-clients-easy", "many"}
    assert RunFolder(out / "many").config()["case"] == "many"
    assert len(RunFolder(out / "many").clients() or ()) == 9
    page = (out / "many" / "report.html").read_text()
    assert "small: many" in page

    code, said, _ = proxfed(capsys, "run", str(file), "--out", str(out), "--resume", "--format", "json")
    assert code == 0
    found = json.loads(said)["cases"]
    assert found.keys() == CASES.keys()
    assert found["many"]["folder"] == str(out / "many")
    assert [r["algorithm"] for r in found["many"]["results"]] == ["FedAvg", "eta = 0.05"]
    assert "holds a run already" in refused(capsys, "run", str(file), "--out", str(out))


def test_a_recorded_case_runs_again(capsys: Any, file: Path, tmp_path: Path) -> None:
    proxfed(capsys, "run", str(file), "--out", str(tmp_path / "one"))
    config = tmp_path / "one" / "many" / "config.toml"
    assert proxfed(capsys, "run", str(config), "--out", str(tmp_path / "two"))[0] == 0
    assert rows(tmp_path / "two" / "many") == rows(tmp_path / "one" / "many")


def test_nothing_to_resume(capsys: Any, file: Path, tmp_path: Path) -> None:
    said = refused(capsys, "run", str(file), "--out", str(tmp_path / "run"), "--resume")
    assert "there is no run to resume" in said


def test_killed_in_the_first_case_and_resumed(capsys: Any, tmp_path: Path) -> None:
    """The second case had not begun; complete cases are left as they are."""
    file, out = str(write(tmp_path / "two.toml", two(rounds=100))), tmp_path / "run"
    command = [sys.executable, "-m", "proxfed", "run", file, "--checkpoint", "0", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    record = out / "few-clients-easy" / "rows.csv"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (record.exists() and record.read_bytes().count(b"\n") > 10):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert RunFolder(out / "many").rows() == []

    assert proxfed(capsys, "run", file, "--out", str(out), "--resume")[0] == 0
    assert proxfed(capsys, "run", file, "--out", str(tmp_path / "whole"))[0] == 0
    records = [out / case / "rows.csv" for case in ("few-clients-easy", "many")]
    for record in records:
        assert rows(record.parent) == rows(tmp_path / "whole" / record.parent.name)
    before = [record.stat().st_mtime_ns for record in records]
    assert proxfed(capsys, "run", file, "--out", str(out), "--resume")[0] == 0
    assert [record.stat().st_mtime_ns for record in records] == before


def test_what_is_said_of_the_results_may_change_on_resume(capsys: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert proxfed(capsys, "run", str(write(tmp_path / "a.toml", two())), "--out", out)[0] == 0
    other = write(tmp_path / "b.toml", two(claims=[CLAIM], description="better words"))
    assert proxfed(capsys, "run", str(other), "--out", out, "--resume")[0] == 0
    other = write(tmp_path / "c.toml", two(seeds=[7]))
    assert "other settings" in refused(capsys, "run", str(other), "--out", out, "--resume")


# ---- targets -------------------------------------------------------------------------------------------------------


def test_targets_are_in_the_table_and_on_the_page(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.toml", two(rounds=30, cases={}, targets={"objective": [0.6, -1.0]}))
    code, said, _ = proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert code == 0
    record = rows(tmp_path / "run")
    first = next(r for r in record if r["algorithm"] == "FedAvg" and r["objective"] <= 0.6)
    line = next(line for line in said.splitlines() if line.startswith("objective 0.6") and "FedAvg" in line)
    assert f" {first['round']} " in line
    assert "kB" in line
    for line in (line for line in said.splitlines() if line.startswith("objective -1")):
        assert "Did not reach" in line
    page = (tmp_path / "run" / "report.html").read_text()
    assert "objective 0.6" in page
    assert "Did not reach" in page

    _, said, _ = proxfed(capsys, "report", str(tmp_path / "run"), "--format", "json")
    (table,) = json.loads(said)["results"].values()
    easy, impossible = table[0]["reached"]
    assert (easy["rounds"], easy["bytes_total"]) == (first["round"], first["bytes_up"] + first["bytes_down"])
    assert impossible["rounds"] is None
    assert impossible["measured"]


def test_a_target_of_a_measure_that_has_no_values_is_not_called_missed(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.toml", two(rounds=3, cases={}, targets={"consensus": [0.1]}))
    code, said, _ = proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert code == 0
    assert "Not measured" in said
    assert "Did not reach" not in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Not measured" in page
    assert "Did not reach" not in page


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("targets", {"targets": {"objektive": [0.1]}}),
        ("claims", {"claims": [{"says": "it falls", "label": "FedAvg", "measure": "objektive", "below": 1.0}]}),
        (
            "claims",
            {"claims": [{"says": "soon", "label": "FedAvg", "target": 0.1, "axis": "objektive", "below": 1.0}]},
        ),
        ("reported", {"reported": [{"measure": "objektive", "values": {"FedAvg": 0.3}}]}),
        ("paper.figures", {"paper": {"title": "p", "figure": "1", "figures": [{"name": "a", "y": "objektive"}]}}),
    ],
)
def test_a_measure_that_is_not_there_is_refused(capsys: Any, tmp_path: Path, where: str, asked: Any) -> None:
    path = write(tmp_path / "t.toml", two(rounds=3, cases={}, **asked))
    code, _, said = proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert code == 2
    assert f"{where}: there is no measure 'objektive'; did you mean 'objective'?" in said
    assert not (tmp_path / "run" / "rows.csv").exists()


# ---- fewer data ----------------------------------------------------------------------------------------------------


def test_a_limit_is_a_subset_that_grows() -> None:
    whole, some, more = read("digits"), read("digits", limit=50, test_limit=7), read("digits", limit=80)
    assert (len(some.labels), len(some.features), len(more.labels)) == (50, 50, 80)
    assert some.test is not None
    assert len(some.test[1]) == 7
    assert whole.test is not None
    assert more.test is not None
    assert len(more.test[1]) == len(whole.test[1])
    known = {(x.tobytes(), int(y)) for x, y in zip(more.features, more.labels, strict=True)}
    assert all((x.tobytes(), int(y)) in known for x, y in zip(some.features, some.labels, strict=True))
    assert np.array_equal(read("digits", limit=50).features, some.features), "the same every time"
    assert len(np.unique(some.labels)) == 10, "at random, not the first ones"


def test_a_limit_is_taken_before_the_partition() -> None:
    assert load("digits", IID(7), limit=70).sizes.tolist() == [10] * 7


def test_a_limit_of_data_with_clients() -> None:
    options = {"alpha": 1.0, "beta": 1.0, "clients": 3, "samples": 30, "features": 4}
    whole, some = load("synthetic_binary", **options), load("synthetic_binary", limit=60, **options)
    assert some.sizes.sum() == 60
    assert len(some) == 3
    for i in range(3):
        theirs = {x.tobytes() for x in whole.client(i)[0]}
        assert all(x.tobytes() in theirs for x in some.client(i)[0]), "every sample stays with its client"
    with pytest.raises(InputError, match="limit = 2 is too few"):
        load("synthetic_binary", limit=2, **options)


@pytest.mark.parametrize("key", ["limit", "test_limit"])
@pytest.mark.parametrize("value", [0, -3, 2.5, True, 10**6])
def test_limits_that_make_no_sense(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{key} = {value!r} must be a whole number from 1 to \d+: digits has"):
        read("digits", **{key: value})


def test_a_test_limit_needs_a_test_set() -> None:
    with pytest.raises(InputError, match="has no test samples"):
        load("synthetic_binary", alpha=1.0, beta=1.0, clients=3, test_limit=5)


def test_limits_are_recorded(capsys: Any, tmp_path: Path) -> None:
    data = {"name": "digits", "limit": 60, "test_limit": 20, "partition": {"name": "iid", "num_partitions": 3}}
    path = write(tmp_path / "l.toml", two(rounds=1, cases={}, data=data, problem={"name": "softmax"}))
    assert proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))[0] == 0
    folder = RunFolder(tmp_path / "run")
    config = folder.config()["data"]
    assert (config["limit"], config["test_limit"]) == (60, 20)
    stats = folder.clients()
    assert stats is not None
    assert stats.sizes.tolist() == [20, 20, 20]


def test_a_plan_keeps_no_more_data_than_it_may(tmp_path: Path) -> None:
    """What it does not keep is loaded again, and gives the same rows."""
    cases = read_cases(str(write(tmp_path / "two.toml", two())))
    found = {}
    for keep in (0, 1 << 30):
        plan = Plan(cases, {name: RunFolder(tmp_path / str(keep) / slug(name)) for name in cases}, keep=keep)
        assert len(plan._ready) == (len(cases) if keep else 0)
        found[keep] = plan.run(lambda: False, progress=False)
    for name in cases:
        one, other = (found[keep][name].folder for keep in found)
        assert rows(one) == rows(other)
