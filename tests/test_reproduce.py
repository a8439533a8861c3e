"""`proxfed reproduce` on a tiny paper: ours beside its numbers, its claims, variants, divergence, going on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proxfed.harness import experiment as config
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Plan
from proxfed.papers import reproduce

from support.cli import proxfed, refused
from support.small_experiment import small, write
from support.toy_paper import run

FAST = {"name": "fedavg", "label": "FedAvg", "eta": 0.5, "K": 3}
WILD = {"name": "fedavg", "label": "wild", "eta": 1e9, "K": 3}

FIRST = small(
    rounds=30,
    seeds=[0, 1, 2],
    algorithms=[FAST, WILD],
    cases={"few": {"data.clients": 3}, "many": {"data.clients": 9}},
    paper={
        "title": "On toys",
        "figure": "Table 1",
        "quick": {"rounds": 12},
        "variants": {"small_steps": {"algorithms.FedAvg.eta": 0.05}},
    },
    reported=[
        {"measure": "objective", "case": "few", "values": {"FedAvg": 0.25}},
        {"measure": "objective", "target": -1.0, "values": {"FedAvg": "> 300"}},
        {"measure": "objective", "target": 1e9, "values": {"FedAvg": 3}},
    ],
    claims=[
        {"says": "FedAvg learns", "label": "FedAvg", "below": 0.69},
        {"says": "FedAvg is perfect", "label": "FedAvg", "below": 0.0},
        {"says": "large steps diverge", "label": "wild", "diverges": True},
        {"says": "in the end", "label": "FedAvg", "below": 0.69, "form": "full"},
    ],
)
SECOND = small(rounds=2, seeds=[0], algorithms=[FAST], paper={"title": "On toys", "figure": "Fig. 2"})


@pytest.fixture
def toys(tmp_path: Path, experiments: Path) -> Path:
    """A paper 'toys' with two experiments; where its runs go."""
    (experiments / "toys").mkdir()
    write(experiments / "toys" / "table1.toml", FIRST)
    write(experiments / "toys" / "fig2.toml", SECOND)
    return tmp_path / "out"


def found(capsys: Any, out: Path, *arguments: str) -> dict[str, Any]:
    code, said, _ = proxfed(capsys, "reproduce", *arguments, "--out", str(out), "--format", "json")
    assert code == 0
    return json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_whole_paper_is_run_and_judged(capsys: Any, toys: Path) -> None:
    code, said, warned = proxfed(capsys, "reproduce", "toys", "--out", str(toys))
    assert code == 0
    assert "few: wild, seed 0: diverged" in warned
    verdicts = {line.split("  ")[0] for line in said.splitlines()}
    assert {"confirmed", "not confirmed", "not run"} <= verdicts
    assert "> 12" in said
    assert "> 300" in said
    assert (toys / "toys-table1" / "quick" / "few" / "report.html").exists()
    assert RunFolder(toys / "toys-fig2" / "quick").exists(), "without cases there is no folder for one"


def test_json_has_all_of_it_and_nothing_is_run_twice(capsys: Any, toys: Path) -> None:
    first = found(capsys, toys, "toys/table1")
    records = list(toys.glob("*/*/*/rows.csv"))
    before = [path.stat().st_mtime_ns for path in records]
    assert found(capsys, toys, "toys/table1") == first
    assert found(capsys, toys, "toys/table1", "--no-run") == first
    assert [path.stat().st_mtime_ns for path in records] == before
    result = first["toys/table1"]
    assert [claim["status"] for claim in result["claims"]] == ["confirmed", "not confirmed", "confirmed", "not run"]
    assert [case["case"] for case in result["claims"][0]["cases"]] == ["few", "many"]
    assert {(d["case"], d["algorithm"], d["seed"]) for d in result["diverged"]} == {
        (case, "wild", seed) for case in ("few", "many") for seed in range(3)
    }
    objective, never_few, never_many, at_once, _ = result["reported"]
    last = [r["objective"] for r in RunFolder(toys / "toys-table1/quick/few").rows() if r["round"] == 12]
    assert sorted(objective["seeds"]) == sorted(last)
    assert (objective["paper"], objective["case"], objective["label"]) == (0.25, "few", "FedAvg")
    assert never_few["seeds"] == never_many["seeds"] == [None] * 3
    assert (at_once["seeds"], at_once["axis"], at_once["target"]) == ([0, 0, 0], "round", 1e9)


def test_files_and_run_folders_are_read_once(capsys: Any, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(capsys, toys, "toys")
    reads: Counter[str] = Counter()

    def counted(name: str, plain: Any) -> Any:
        def call(of: Any) -> Any:
            reads[f"{name} {of.path.name if isinstance(of, RunFolder) else of.name}"] += 1
            return plain(of)

        return call

    monkeypatch.setattr(config, "read_named", counted("text", config.read_named))
    monkeypatch.setattr(RunFolder, "rows", counted("rows", RunFolder.rows))
    found(capsys, toys, "toys", "--no-run")
    assert reads == {"text table1.toml": 1, "text fig2.toml": 1, "rows few": 1, "rows many": 1, "rows quick": 1}


def test_without_running_there_is_nothing_to_judge(capsys: Any, toys: Path) -> None:
    result = found(capsys, toys, "toys/table1", "--no-run")["toys/table1"]
    assert {claim["status"] for claim in result["claims"]} == {"not run"}
    assert not toys.exists()


def test_one_case_with_few_seeds_and_other_settings(capsys: Any, toys: Path) -> None:
    result = found(capsys, toys, "toys/table1", "--case", "many", "--seeds", "1", "-c", "rounds=3")["toys/table1"]
    assert [path.name for path in (toys / "toys-table1" / "quick").iterdir()] == ["many"]
    rows = RunFolder(toys / "toys-table1" / "quick" / "many").rows()
    assert {row["seed"] for row in rows} == {0}
    assert max(row["round"] for row in rows) == 3
    assert [line["ours"] for line in result["reported"] if line["case"] == "few"] == ["not run"]
    said = refused(capsys, "reproduce", "toys/table1", "--case", "many", "--seeds", "1", "--out", str(toys))
    assert "other settings" in said


def test_one_algorithm_alone_and_the_others_later(capsys: Any, toys: Path) -> None:
    result = found(capsys, toys, "toys/table1", "--case", "few", "--only", "FedAvg")["toys/table1"]
    folder = RunFolder(toys / "toys-table1" / "quick" / "few")
    assert {(state["algorithm"], state["seed"]) for state in folder.status()} == {("FedAvg", s) for s in (0, 1, 2)}
    status = {claim["says"]: claim["status"] for claim in result["claims"]}
    assert (status["FedAvg learns"], status["large steps diverge"]) == ("confirmed", "not run")
    before = folder.rows()
    found(capsys, toys, "toys/table1", "--case", "few")
    assert [row for row in folder.rows() if row["algorithm"] == "FedAvg"] == before
    assert {state["algorithm"] for state in folder.status()} == {"FedAvg", "wild"}
    said = refused(capsys, "reproduce", "toys/table1", "--only", "FedAbg", "--out", str(toys))
    assert "no algorithm has the label 'FedAbg'" in said


def test_cases_that_were_run_before_count(capsys: Any, toys: Path) -> None:
    whole = found(capsys, toys, "toys/table1", "--seeds", "1")
    assert found(capsys, toys, "toys/table1", "--seeds", "1", "--case", "many") == whole


def test_ctrl_c_while_it_is_planned_ends_it_at_once(capsys: Any, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "__post_init__", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, said = proxfed(capsys, "reproduce", "toys", "--out", str(toys))
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert said.endswith("interrupted\n")


def test_what_is_said_about_a_complete_run_may_change(capsys: Any, tmp_path: Path) -> None:
    table = FIRST | {"name": "mine", "cases": {}, "seeds": [0], "reported": [], "algorithms": [FAST], "claims": []}
    path = write(tmp_path / "mine.toml", table | {"targets": {"objective": [0.5]}})
    out = tmp_path / "out"
    found(capsys, out, str(path))
    write(path, table | {"targets": {"objective": [0.4]}, "description": "Another one."})
    found(capsys, out, str(path))
    config = RunFolder(out / "mine" / "quick").config()
    assert config["targets"] == {"objective": [0.4]}
    assert config["description"] == "Another one."


def test_a_refusal_comes_before_anything_is_run(capsys: Any, toys: Path, tmp_path: Path) -> None:
    """Of a later experiment of the paper, and of a later case."""
    found(capsys, toys, "toys/fig2")
    assert ".rounds was 2, now 3" in refused(capsys, "reproduce", "toys", "-c", "rounds=3", "--out", str(toys))
    assert not (toys / "toys-table1").exists()
    misspelt = {"says": "so", "case": "many", "measure": "objectiv", "label": "FedAvg", "below": 1.0}
    path = write(tmp_path / "mine.toml", FIRST | {"name": "mine", "claims": [misspelt]})
    assert "there is no measure 'objectiv'" in refused(capsys, "reproduce", str(path), "--out", str(toys))
    assert not (toys / "mine").exists()


@pytest.mark.parametrize("change", ["claims.0.below=1", "reported=[]", "paper.figure=x", "cases={}"])
def test_what_the_file_says_is_not_changed_from_outside(capsys: Any, toys: Path, change: str) -> None:
    said = refused(capsys, "reproduce", "toys/table1", "-c", change, "--out", str(toys))
    assert f"{change.partition('=')[0].partition('.')[0]!r} cannot be overridden" in said


def test_judging_what_is_there_takes_all_its_seeds(capsys: Any, toys: Path) -> None:
    for option in (("--seeds", "1"), ("--only", "FedAvg")):
        assert "--no-run judges" in refused(capsys, "reproduce", "toys", "--no-run", *option, "--out", str(toys))


def test_rows_of_other_settings_are_not_judged(capsys: Any, toys: Path) -> None:
    """Neither without running nor as another case of the same form; with the same change they are."""
    change = ("-c", "algorithms.FedAvg.eta=0.25")
    changed = found(capsys, toys, "toys/table1", "--case", "many", "--seeds", "1", *change)
    for arguments in (("--no-run",), ("--case", "few"), ("--case", "few", "--no-run")):
        said = refused(capsys, "reproduce", "toys/table1", *arguments, "--out", str(toys))
        assert "many has other settings: algorithms.FedAvg.eta was 0.25, now " in said
    assert not (toys / "toys-table1" / "quick" / "few").exists()
    assert found(capsys, toys, "toys/table1", "--no-run", *change) == changed


def test_a_graph_for_all_algorithms_is_a_setting_of_each(capsys: Any, tmp_path: Path) -> None:
    peer = {"name": "dfedavg", "eta": 0.1, "K": 2}
    table = FIRST | {"name": "mine", "cases": {}, "seeds": [0], "reported": [], "claims": [], "algorithms": [peer]}
    path = write(tmp_path / "mine.toml", table | {"topology": {"name": "ring"}})
    found(capsys, tmp_path, str(path))
    write(path, table | {"topology": {"name": "complete"}})
    said = refused(capsys, "reproduce", str(path), "--no-run", "--out", str(tmp_path))
    assert "algorithms.dfedavg.topology.name was 'ring', now 'complete'" in said


def test_brackets_and_dollars_are_what_they_are(capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paper = FIRST["paper"] | {"figure": "Fig. 3 [left]", "figures": [{"name": "loss", "y": "objective"}]}
    cases = {"a $\\frac$ [/b]": {"data.clients": 3}}
    table = FIRST | {"name": "mine", "cases": cases, "seeds": [0], "reported": [], "paper": paper}
    path = write(tmp_path / "mine.toml", table | {"claims": FIRST["claims"][:1]})
    code, said, _ = proxfed(capsys, "reproduce", str(path), "--out", str(tmp_path / "o[/blue]"))
    assert code == 0
    assert "Fig. 3 [left]" in said
    assert "o[/blue]" in said.replace("\n", "")
    assert "$\\frac$" in (tmp_path / "o[/blue]" / "mine" / "quick" / "loss.svg").read_text()


def test_more_seeds_go_on_where_fewer_ended(capsys: Any, toys: Path) -> None:
    arguments = ("toys/table1", "--case", "many", "--seeds")
    found(capsys, toys, *arguments, "1")
    folder = RunFolder(toys / "toys-table1" / "quick" / "many")
    before = folder.rows()
    assert {row["seed"] for row in before} == {0}
    found(capsys, toys, *arguments, "3")
    assert folder.rows()[: len(before)] == before
    assert {row["seed"] for row in folder.rows()} == {0, 1, 2}
    assert "other settings: seeds" in refused(capsys, "reproduce", *arguments, "2", "--out", str(toys))


def test_a_variant_has_its_own_folder(capsys: Any, toys: Path) -> None:
    arguments = ("--variant", "small_steps", "--seeds", "1", "--case", "few")
    assert found(capsys, toys, "toys", *arguments).keys() == {"toys/table1"}, "the other experiment has no such variant"
    folder = RunFolder(toys / "toys-table1" / "quick+small_steps" / "few")
    assert folder.config()["algorithms"][0]["eta"] == 0.05
    assert not (toys / "toys-table1" / "quick").exists()


def test_the_full_form_has_all_rounds(capsys: Any, toys: Path) -> None:
    result = found(capsys, toys, "toys/table1", "--full", "--seeds", "1")["toys/table1"]
    assert result["claims"][3]["status"] == "confirmed"
    assert max(row["round"] for row in RunFolder(toys / "toys-table1" / "full" / "few").rows()) == 30


def test_a_file_of_the_user_is_reproduced(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", FIRST | {"name": "mine", "cases": {}, "seeds": [0], "reported": []})
    result = found(capsys, tmp_path / "out", str(path))[str(path)]
    assert result["claims"][0]["status"] == "confirmed"
    assert RunFolder(tmp_path / "out" / "mine" / "quick").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["toyz"], "did you mean 'toys'?"),
        (["toys/table2"], "did you mean 'toys/table1'?"),
        (["toys/table1", "--variant", "small_step"], "has no variant 'small_step'"),
        (["toys/fig2", "--variant", "x"], "has no variant 'x'"),
        (["toys", "--variant", "x"], "no experiment of toys has the variant 'x'; known: small_steps"),
        (["toys", "--case", "none"], "no experiment of toys has the case 'none'"),
        (["toys/table1", "--case", "none"], "has no case 'none'"),
    ],
)
def test_unknown_papers_cases_and_variants_are_refused(
    capsys: Any, toys: Path, arguments: list[str], sentence: str
) -> None:
    assert sentence in refused(capsys, "reproduce", *arguments, "--out", str(toys))


def test_cases_whose_data_are_missing_are_left_out_and_named(capsys: Any, tmp_path: Path) -> None:
    there, not_there = {"data.clients": 3}, {"data": {"name": "a9a", "partition": {"name": "iid", "num_partitions": 3}}}
    table = FIRST | {"name": "mine", "cases": {"few": there, "lost": not_there}, "seeds": [0], "algorithms": [FAST]}
    path = write(tmp_path / "mine.toml", table | {"reported": [], "claims": FIRST["claims"][:1]})
    where = ("--out", str(tmp_path / "out"), "--data", str(tmp_path / "nothing"))
    code, said, warned = proxfed(capsys, "reproduce", str(path), *where)
    assert code == 0
    assert "lost: there is no a9a" in warned
    assert "holds in 1 of 1 cases, 1 more not run" in " ".join(said.split())
    [claim] = found(capsys, tmp_path / "out", str(path), "--no-run")[str(path)]["claims"]
    assert claim["not_run"] == ["lost"]
    assert RunFolder(tmp_path / "out" / "mine" / "quick" / "few").exists()
    assert "there is no a9a" in refused(capsys, "reproduce", str(path), "--case", "lost", *where)


# ---- figures --------------------------------------------------------------------------------------------------------


def test_a_reproduction_draws_its_figures_into_the_folder_of_its_form(tmp_path: Path, toy_paper: Path) -> None:
    pytest.importorskip("matplotlib")
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    (part,) = reproduce.select("toy/fig1", tmp_path / "runs", quick=False)
    assert part.draw() == [tmp_path / "runs" / "toy-fig1" / "full" / "loss.svg"]
    text = (part.folder / "loss.svg").read_text()
    assert ">IID<" in text
    assert ">very skewed<" in text
    assert (part.folder / "loss.png").exists()


def test_a_figure_also_shows_the_cases_that_were_run_before(tmp_path: Path, toy_paper: Path) -> None:
    pytest.importorskip("matplotlib")
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    (part,) = reproduce.select("toy/fig1", tmp_path / "runs", quick=False, cases=["very skewed"])
    (svg,) = part.draw()
    assert svg.read_text().index(">IID<") < svg.read_text().index(">very skewed<")


def test_without_matplotlib_a_reproduction_has_no_figures_and_goes_on(
    tmp_path: Path, toy_paper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "runs")
    (part,) = reproduce.select("toy/fig1", tmp_path / "runs", quick=True)
    monkeypatch.setattr(reproduce, "available", lambda: False)
    assert part.draw() == []
    assert [v.status for v in part.verdicts()] == ["confirmed", "not run"]


# ---- a building of its own -------------------------------------------------------------------------------------------


def test_nothing_else_imports_the_papers() -> None:
    """Not even for a type checker, which the linter of imports leaves out."""
    source = Path(reproduce.__file__).parents[1]
    others = [path for path in source.rglob("*.py") if not path.is_relative_to(source / "papers")]
    assert len(others) > 100
    imports = re.compile(r"^\s*(from|import) proxfed\.papers|^\s*from proxfed import .*\bpapers\b", re.MULTILINE)
    assert [path for path in others if imports.search(path.read_text())] == []


def test_an_experiment_without_claims_loads_nothing_of_them() -> None:
    program = "import sys; from proxfed.harness.experiment import read_cases; read_cases('demo'); print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "'proxfed.harness.experiment'" in loaded
    assert "proxfed.papers" not in loaded
