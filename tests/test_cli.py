"""The command line as a user meets it: results, help, and one clear sentence for bad input."""

# ruff: noqa: E501
from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

from proxfed import __version__
from proxfed.algorithms import ALGORITHMS
from proxfed.harness import build as building
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.papers.cli.pages import commands

from support.cli import proxfed, refused
from support.small_experiment import small, write

FEDAVG = '{name = "fedavg", eta = 0.5, K = 3}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.toml", small(rounds=2, seeds=[0]))


def test_run_writes_a_folder_and_prints_a_table(capsys: Any, file: Path, tmp_path: Path) -> None:
    code, said, _ = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert code == 0
    for a in small()["algorithms"]:
        assert a.get("label", a["name"]) in said
    for name in ("config.toml", "versions.json", "rows.csv", "status.json", "report.html"):
        assert (tmp_path / "run" / name).stat().st_size > 0


def test_json_is_what_the_rows_say(capsys: Any, file: Path, tmp_path: Path) -> None:
    code, said, _ = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"), "--format", "json")
    assert code == 0
    results = {r["algorithm"]: r for r in json.loads(said)["results"]}
    last = {row["algorithm"]: row for row in RunFolder(tmp_path / "run").rows() if row["round"] == 2}
    assert results.keys() == last.keys()
    for name, result in results.items():
        assert result["objective"] == last[name]["objective"]
        assert result["gradients_per_client"] == last[name]["gradients"] / small()["data"]["clients"]


def test_the_resolved_configuration_runs_again_to_the_same_rows(capsys: Any, file: Path, tmp_path: Path) -> None:
    proxfed(capsys, "run", str(file), "--out", str(tmp_path / "one"))
    resolved = tmp_path / "one" / "config.toml"
    assert proxfed(capsys, "run", str(resolved), "--out", str(tmp_path / "two"))[0] == 0
    one, two = (RunFolder(tmp_path / k) for k in ("one", "two"))
    assert one.config() == two.config()
    rows = [[{k: v for k, v in row.items() if k != "wall_seconds"} for row in folder.rows()] for folder in (one, two)]
    assert rows[0] == rows[1]


def test_settings_can_be_changed_on_the_command_line(capsys: Any, file: Path, tmp_path: Path) -> None:
    changes = ["rounds=3", "problem.l2=0.1", "algorithms.fedavg.eta=0.25", "algorithms.0.K=2", "topology.name=star"]
    flags = [word for change in changes for word in ("-c", change)]
    assert proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"), *flags)[0] == 0
    config = RunFolder(tmp_path / "run").config()
    assert config["rounds"] == 3
    assert config["problem"]["l2"] == 0.1
    assert (config["algorithms"][0]["eta"], config["algorithms"][0]["K"]) == (0.25, 2)
    assert next(a for a in config["algorithms"] if a["label"] == "depositum")["topology"]["name"] == "star"


def test_only_what_is_asked_for_is_built(
    capsys: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one folder, which then is that of a run of all of them."""
    built: list[str] = []
    entry = building._entry
    monkeypatch.setattr(
        building, "_entry", lambda table, label, *rest: built.append(label) or entry(table, label, *rest)
    )
    labels = [a.get("label", a["name"]) for a in small()["algorithms"]]
    first, second = labels[:2]
    out = "--out", str(tmp_path / "run")
    assert proxfed(capsys, "run", str(file), *out, "--only", second)[0] == 0
    assert proxfed(capsys, "run", str(file), *out, "--only", first, "--resume")[0] == 0
    assert {*built} == {first, second}
    folder = RunFolder(tmp_path / "run")
    assert [a["label"] for a in folder.config()["algorithms"]] == [second, first]
    before = {(r["algorithm"], r["round"]): r for r in folder.rows()}
    assert {name for name, _ in before} == {first, second}
    assert "eta was" in refused(
        capsys, "run", str(file), *out, "--only", "fedavg", "--resume", "-c", "algorithms.fedavg.eta=9.0"
    )
    assert proxfed(capsys, "run", str(file), *out, "--resume")[0] == 0
    folder = RunFolder(tmp_path / "run")
    assert [a["label"] for a in folder.config()["algorithms"]] == labels
    after = {(r["algorithm"], r["round"]): r for r in folder.rows()}
    assert {name for name, _ in after} == {*labels}
    assert all(after[key] == row for key, row in before.items())


def test_nothing_is_said_of_the_steps_of_those_that_are_not_asked_for(capsys: Any, tmp_path: Path) -> None:
    theory = {"name": "gradient_descent", "theory": True}
    table = small(rounds=1, regulariser={"name": "zero"}, algorithms=[theory, {"name": "fedavg", "eta": 0.1, "K": 2}])
    file = write(tmp_path / "a.toml", table)
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"), "--only", "fedavg")
    assert (code, "the theory gives" in said) == (0, False), said


def test_theory_step_sizes_are_written_out(capsys: Any, tmp_path: Path) -> None:
    algorithms = [
        {"name": "depositum", "theory": True, "T0": 2},
        {"name": "depositum", "label": "speed-up", "theory": True, "schedule": "speed_up", "T0": 2},
        {"name": "fedcef", "theory": True, "K": 2, "compressor": {"name": "top_k", "k": 5}},
        {"name": "fedcomposite", "theory": True, "tau": 2},
        {"name": "dfedadmm", "theory": True, "K": 4, "sam": True},
        {"name": "fednag", "theory": True, "tau": 2},
    ]
    ridge = {"name": "squared_l2", "weight": 0.1}
    path = write(tmp_path / "theory.toml", small(rounds=4, seeds=[0], regulariser=ridge, algorithms=algorithms))
    assert proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))[0] == 0
    resolved = {a["label"]: a for a in RunFolder(tmp_path / "run").config()["algorithms"]}
    assert resolved["fednag"]["eta"] > 0
    assert resolved["depositum"]["alpha"] > 0
    assert "theory" not in resolved["depositum"]
    assert resolved["fedcef"]["compressor"] == {"name": "top_k", "k": 5}


def test_theory_step_sizes_know_of_a_regulariser_inside_f(capsys: Any, tmp_path: Path) -> None:
    """Methods without prox steps follow the gradient of f + h: steps for f alone would diverge on this h."""
    algorithms = [{"name": name, "theory": True} for name in ("gradient_descent", "nesterov", "heavy_ball")]
    algorithms += [{"name": "fednag", "theory": True, "tau": 1}, {"name": "dfedadmm", "theory": True, "K": 1}]
    ridge = {"name": "squared_l2", "weight": 20.0}
    path = write(tmp_path / "theory.toml", small(rounds=60, seeds=[0], regulariser=ridge, algorithms=algorithms))
    assert proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))[0] == 0
    folder = RunFolder(tmp_path / "run")
    resolved = {a["label"]: a for a in folder.config()["algorithms"]}
    assert max(resolved[label]["eta"] for label in ("gradient_descent", "nesterov", "fednag")) <= 1 / 20
    assert resolved["dfedadmm"]["eta_l"] <= 1 / (96 * 20)
    for label in resolved:
        rows = [row for row in folder.rows() if row["algorithm"] == label]
        assert rows[-1]["stationarity"] < rows[0]["stationarity"]


def test_report_compares_folders(capsys: Any, file: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        proxfed(capsys, "run", str(file), "--out", str(tmp_path / name))
    page = tmp_path / "both.html"
    code, said, _ = proxfed(capsys, "report", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(page))
    assert code == 0
    assert str(page) in said.replace("\n", "")
    assert page.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", ["o[quick]", "oa[/b]"])
def test_brackets_in_the_name_of_a_folder_are_no_markup(capsys: Any, file: Path, tmp_path: Path, name: str) -> None:
    """And its name is not broken where the terminal ends."""
    folder, fedavg = tmp_path / name, ("-c", f"algorithms=[{FEDAVG}]")
    code, said, complaint = proxfed(capsys, "run", str(file), "--out", str(folder), *fedavg, width=40)
    assert code == 0, complaint
    assert f"The report is in {folder / 'report.html'}\n" in said
    code, said, _ = proxfed(capsys, "report", str(folder), "--out", str(folder / "[b].html"), width=40)
    assert code == 0
    assert f"{folder}\n" in said
    assert f"The report is in {folder / '[b].html'}\n" in said


def test_brackets_in_the_resume_hint_are_no_markup(
    capsys: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfed.cli.run.stop_on_signal", lambda: nullcontext(lambda: True))
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "o[/b]"))
    assert code == 130
    assert f"to resume: proxfed run {file} --out '{tmp_path / 'o[/b]'}' --resume" in said


@pytest.mark.parametrize(
    "kind", ["algorithms", "problems", "models", "regularisers", "compressors", "topologies", "datasets", "experiments"]
)
def test_list_says_what_everything_is(capsys: Any, kind: str) -> None:
    code, said, _ = proxfed(capsys, "list", kind, "--format", "json")
    assert code == 0
    entries = json.loads(said)[kind]
    assert entries
    assert all(entry["about"] for entry in entries), "every entry says what it is"


def test_list_has_one_line_per_algorithm(capsys: Any) -> None:
    _, said, _ = proxfed(capsys, "list", "algorithms")
    names = [line.split()[0] for line in said.splitlines()[1:] if line and not line.startswith("proxfed list")]
    assert names == ALGORITHMS.names()


def test_list_filters_algorithms(capsys: Any) -> None:
    def names(*filters: str) -> set[str]:
        _, said, _ = proxfed(capsys, "list", "algorithms", *filters, "--format", "json")
        return {entry["name"] for entry in json.loads(said)["algorithms"]}

    assert names("--server") | names("--peers") == names() == {*ALGORITHMS.names()}
    assert names("--server", "--peers") == set()
    assert names("--prox", "--exact", "--compressed") >= {"pledge", "fedcef", "prox_lead"}
    assert names("--exact").isdisjoint({"fedavg", "choco_sgd"})
    assert "filters the list of algorithms" in refused(capsys, "list", "compressors", "--exact")


def test_every_dataset_can_be_limited(capsys: Any) -> None:
    _, said, _ = proxfed(capsys, "list", "datasets", "--format", "json")
    assert all("limit = None, test_limit = None" in entry["settings"] for entry in json.loads(said)["datasets"])


@pytest.mark.parametrize("command", [[], ["run"], ["report"], ["list"]])
def test_help_is_printed(capsys: Any, command: list[str]) -> None:
    code, said, _ = proxfed(capsys, *command, "--help")
    assert code == 0
    assert "Usage" in said
    assert not command or "Example" in said


@pytest.mark.parametrize(("words", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands()])
def test_every_example_of_a_help_is_a_line_of_its_own(words: list[str], command: Any) -> None:
    _, several, examples = re.split("Example(s?):[ \n]", command.help)
    lines = examples.splitlines()
    assert len(lines) > 1 if several else len(lines) == 1
    assert all(line.startswith(f"[bold]proxfed {' '.join(words)}") and line.endswith("[/bold]") for line in lines)


def test_no_word_of_a_help_is_taken_for_markup() -> None:
    for _, command in commands():
        for text in (command.help, *(getattr(each, "help", None) for each in command.params)):
            plain = (text or "").replace("[bold]", "").replace("[/bold]", "")
            assert Text.from_markup(plain).plain == plain


def test_the_version_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "proxfed", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


# ---- bad input -----------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"ronds": 3}, "unknown key 'ronds'; did you mean 'rounds'?"),
    ({"eta": 1.0}, "unknown key 'eta'; it stands one level down: algorithms.*.eta"),
    ({"l2": 1.0}, "unknown key 'l2'; it stands one level down: problem.l2"),
    ({"lr": 1.0}, "unknown key 'lr'; it is called algorithms.*.eta here"),
    ({"local_steps": 5}, "unknown key 'local_steps'; it is called algorithms.*.K here"),
    ({"batch_size": 5}, "unknown key 'batch_size'; it is called problem.batch here"),
    ({"num_rounds": 5}, "unknown key 'num_rounds'; it is called 'rounds' here"),
    ({"problem": {"name": "logistic", "batch_size": 5}}, "problem: unknown key 'batch_size'; it is called 'batch' here"),
    ({"problem": {"name": "logistic", "lr": 5}}, "problem: unknown key 'lr'; known: batch"),
    ({"problem": {"name": "logistic", "device": "cpu"}}, "problem: 'device' stands above the tables, not inside [problem]"),
    ({"problem": {"name": "logistic", "dtype": "float32"}}, "problem: 'dtype' stands above the tables"),
    ({"measures": ["train_accuracy"], "targets": {"train_accuracy": 95}}, "targets.train_accuracy = 95.0 is not a fraction between 0 and 1"),
    ({"measures": ["train_accuracy"], "targets": {"train_accuracy": [0.5, 95]}}, "targets.train_accuracy = 95.0 is not a fraction"),
    ({"problem": {"name": "logistic"}, "algorithms": [{"name": "fedavg", "eta": 1.0, "K": {"epochs": 1}}]}, "algorithms.fedavg.K: epochs need minibatches; give problem.batch"),
    ({"targets": {"gap": "small"}}, "targets.gap = 'small' is not allowed"),
    ({"rounds": 0}, "rounds = 0"),
    ({"rounds": "many"}, "rounds = 'many'"),
    ({"seeds": []}, "seeds = []"),
    ({"seeds": [0, 1, 0]}, "seeds = [0, 1, 0] is not allowed: a seed is given twice"),
    ({"device": "gpu"}, "device = 'gpu' is not available"),
    ({"problem": {"name": [1]}}, "problem: there is no [1]"),
    ({"problem": {"name": "network", "model": "mlp"}, "reference": True}, "no solver for the problem 'network'"),
    ({"regulariser": {"name": "l1", "weight": 0.1, "blocks": [5]}}, "regulariser.blocks = [5] must be a list of names"),
    ({"regulariser": [{"name": "l1", "weight": w, "blocks": ["weight"]} for w in (0.1, 0.0)]}, "two tables name the block 'weight'"),
    ({"dtype": "float16"}, "dtype = 'float16' is not one of float32, float64"),
    ({"algorithms": []}, "algorithms = []"),
    ({"problem": {"name": "logistik"}}, "there is no 'logistik'; did you mean 'logistic'?"),
    ({"problem": {"name": "logistic", "L2": 1}}, "problem: unknown key 'L2'; did you mean 'l2'?"),
    ({"problem": {"name": "logistic", "l2": -1.0}}, "l2 = -1.0"),
    ({"problem": {"name": "logistic", "batch": 0}}, "batch = 0"),
    ({"problem": {"name": "softmax"}}, "needs class labels"),
    ({"data": {"name": "sintetic"}}, "there is no 'sintetic'; did you mean 'synthetic'?"),
    ({"data": {"name": "synthetic_binary", "alpha": 1.0, "beta": 1.0, "clents": 3}}, "unknown key 'clents'"),
    ({"data": {"name": "digits"}}, "partition"),
    ({"regulariser": {"name": "l2_norm", "weight": 1.0}}, "there is no 'l2_norm'; did you mean"),
    ({"regulariser": {"name": "l1"}}, "the key 'weight' is missing"),
    ({"regulariser": {"name": "l1", "weight": -0.1}}, "weight = -0.1"),
    ({"regulariser": {"name": "l1", "weight": 0.1, "blocks": ["bias"]}}, "no block is called 'bias'"),
    ({"regulariser": {"name": "mcp", "weight": 0.1, "theta": 0.25}}, "takes prox steps up to"),
    ({"regulariser": {"name": "scad", "weight": 0.1, "a": 2.2}, "algorithms": [{"name": "fedcomposite", "eta": 1.0, "tau": 5}]}, "FedComposite takes prox steps up to 5, but SCAD allows only steps < 1.2"),
    ({"regulariser": {"name": "box", "low": 0.0, "high": 1.0}}, "cannot keep to the constraint Box"),
    ({"topology": {"name": "rng"}}, "there is no 'rng'; did you mean 'ring'?"),
    ({"data": {"name": "synthetic_binary", "alpha": 1.0, "beta": 1.0, "clients": 2}, "topology": {"name": "matrix", "matrix": [[1.0, 0.0], [0.5, 0.5]]}}, "sums to"),
    ({"topology": {"name": "graph", "edges": [[0, 1], [2, 3], [4, 5], [5, 6]]}}, "client 2 cannot be reached from client 0"),
    ({"participation": {"name": "uniform", "m": 3}}, "needs every client in every round"),
    ({"participation": {"name": "uniform"}}, "error: participation: the key 'm' is missing"),
    ({"participation": {"name": "unifrm"}}, "error: participation: there is no 'unifrm'; did you mean 'uniform'?"),
    ({"topology": {"name": "ring", "weight": "lazy"}}, "error: topology: unknown key 'weight'; did you mean 'weights'?"),
    ({"topology": {"name": [1]}}, "error: topology: there is no [1]; known: complete"),
    ({"regulariser": "l1"}, ": regulariser = 'l1' is not allowed: input should be a valid dictionary"),
    ({"reported": [{"measure": "objective", "values": {"fedavg": [1]}}]}, ": reported.0.values.fedavg = [1] is not allowed"),
    ({"reported": [{"values": {}}]}, "the key 'reported.0.measure' is missing"),
    ({"reported": [{"measure": "objective", "values": {}, "cases": "x"}]}, "unknown key 'reported.0.cases'; did you mean 'case'?"),
]  # fmt: skip
BAD_ALGORITHM: list[tuple[dict[str, Any], str]] = [
    ({"name": "fedcomposit", "eta": 1.0, "tau": 5}, "there is no 'fedcomposit'; did you mean 'fedcomposite'?"),
    ({"name": "fedavg", "K": 5}, "the key 'eta' is missing"),
    ({"name": "fedavg", "eta": -1.0, "K": 5}, "eta = -1.0 must be a finite number > 0"),
    ({"name": "fedavg", "eta": "big", "K": 5}, "algorithms.fedavg.eta = 'big'"),
    ({"name": "fedavg", "eta": 1.0, "K": 0}, "K = 0 must be a whole number >= 1"),
    ({"name": "fedavg", "eta": 1.0, "k": 5}, "unknown key 'k'"),
    ({"name": "fedavg", "lr": 1.0, "K": 5}, "algorithms.fedavg: unknown key 'lr'; the step size is called 'eta' here"),
    ({"name": "depositum", "learning_rate": 1.0}, "unknown key 'learning_rate'; the step size is called 'alpha' here"),
    ({"name": "fedcomposite", "eta": 1.0, "local_steps": 5}, "unknown key 'local_steps'; the number of local steps is called 'tau' here"),
    ({"name": "fedavg", "eta": 1.0, "K": {"epochs": 0}}, "algorithms.fedavg.K.epochs = 0 must be a whole number >= 1"),
    ({"name": "fedavg", "eta": 1.0, "K": {"epochs": True}}, "algorithms.fedavg.K.epochs = True must be a whole number >= 1"),
    ({"name": "fedavg", "eta": 1.0, "K": 5, "rounds": 0}, "algorithms.fedavg.rounds = 0"),
    ({"name": "fedavg", "eta": 1.0, "K": 5, "rounds": True}, "algorithms.fedavg.rounds = True"),
    ({"name": "fedavg", "eta": 1.0, "K": 5, "topology": {"name": "rinng"}}, "'fedavg' has a server and takes no graph"),
    ({"name": "dpsgd", "eta": 1.0, "topology": "ring"}, "algorithms.dpsgd.topology = 'ring' must be a table with a name"),
    ({"name": "dpsgd", "eta": 1.0, "topology": {"name": [1]}}, "algorithms.dpsgd.topology: there is no [1]"),
    ({"name": "dpsgd", "eta": 1.0, "topology": {}}, "algorithms.dpsgd.topology: the key 'name' is missing"),
    ({"name": "fedavg", "eta": 1.0, "K": 5, "participation": {"name": "uniform"}}, "algorithms.fedavg.participation: the key 'm' is missing"),
    ({"name": "fedavg", "eta": 1.0, "K": 5, "participation": "uniform"}, "algorithms.fedavg.participation = 'uniform' must be a table"),
    ({"name": "fedcomposite", "theory": "no", "tau": 5}, "theory = 'no' must be true or false"),
    ({"name": "depositum", "alpha": 1.0, "gamma": 1.0}, "gamma = 1.0 must be in [0, 1)"),
    ({"name": "depositum", "alpha": 1.0, "option": "nestorov"}, "option = 'nestorov' is not one of 'polyak', 'nesterov'"),
    ({"name": "dfedadmm", "eta_l": 1.0, "K": 5, "lam": 0.1}, "eta_l = 1.0 must be in (0, lam = 0.1]"),
    ({"name": "dfedadmm", "eta_l": 1.0, "K": 5}, "exactly one of lam and inverse_penalty"),
    ({"name": "fedcef", "alpha": 1.0, "K": 5, "compressor": {"name": "top_k", "k": 0}}, "k = 0"),
    ({"name": "fedcef", "alpha": 1.0, "K": 5, "compressor": {"name": "topk", "k": 1}}, "there is no 'topk'; did you mean 'top_k'?"),
    ({"name": "fedcef", "alpha": 1.0, "K": 5, "compressor": {"name": "rand_k", "k": 1, "unbiased": True}}, "needs a contractive compressor"),
    ({"name": "scallion", "eta": 1.0, "K": 5, "compressor": {"name": "top_k", "k": 1}}, "Scallion needs an unbiased compressor"),
    ({"name": "fedavg", "theory": True, "K": 5}, "no step sizes of the theory for 'fedavg'"),
    ({"name": "gradient_descent", "theory": True}, "no step sizes of the theory with L1(weight=0.01), which is not smooth"),
    ({"name": "fedcomposite", "theory": True, "tau": 0}, "tau = 0 must be"),
    ({"name": "fedcef", "theory": True, "K": 0}, "K = 0 must be"),
    ({"name": "fedcef", "theory": True, "K": 2, "eta": 0.0}, "eta = 0.0 must be"),
    ({"name": "fedcef", "theory": True, "K": 2, "compressor": {"name": "rand_k", "k": 1, "unbiased": True}}, "needs a contractive compressor"),
    ({"name": "ef21", "theory": True, "compressor": {"name": "rand_k", "k": 1, "unbiased": True}}, "needs a contractive compressor"),
    ({"name": "depositum", "theory": True, "T0": 0}, "T0 = 0 must be"),
    ({"name": "depositum", "theory": True, "gamma": 1.0}, "gamma = 1.0 must be"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[s for _, s in BAD])
def test_bad_settings(capsys: Any, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path / "bad.toml", small(**change))
    assert sentence in refused(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists(), "nothing was computed"


@pytest.mark.parametrize(("algorithm", "sentence"), BAD_ALGORITHM, ids=[s for _, s in BAD_ALGORITHM])
def test_bad_algorithms(capsys: Any, tmp_path: Path, algorithm: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path / "bad.toml", small(algorithms=[algorithm]))
    assert sentence in refused(capsys, "run", str(path), "--out", str(tmp_path / "run"))


def test_a_target_may_be_one_number(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", small(rounds=1, seeds=[0], targets={"objective": 0.5}))
    assert proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))[0] == 0
    assert RunFolder(tmp_path / "run").config()["targets"] == {"objective": [0.5]}


def test_mean_epochs_are_passes_over_a_client_of_mean_size(capsys: Any, tmp_path: Path) -> None:
    """As many steps for every client, also for those that hold more or less."""
    data = {"name": "digits", "partition": {"name": "sizes", "partition_sizes": [10, 20, 90]}}
    algorithm = {"name": "fedavg", "eta": 0.1, "K": {"mean_epochs": 3}}
    table = small(rounds=1, seeds=[0], data=data, problem={"name": "softmax", "batch": 7}, algorithms=[algorithm])
    assert proxfed(capsys, "run", str(write(tmp_path / "a.toml", table)), "--out", str(tmp_path / "run"))[0] == 0
    assert RunFolder(tmp_path / "run").config()["algorithms"][0]["K"] == 3 * 6  # 40 / 7 is below 6


def test_two_algorithms_with_one_label_are_refused(capsys: Any, tmp_path: Path) -> None:
    twice = [small()["algorithms"][0]] * 2
    path = write(tmp_path / "bad.toml", small(algorithms=twice))
    assert "two algorithms are called 'fedavg'" in refused(capsys, "run", str(path), "--out", str(tmp_path / "run"))


def test_an_unknown_experiment_is_refused_with_the_nearest_name(capsys: Any) -> None:
    assert "there is no experiment 'dmo'; did you mean 'demo'?" in refused(capsys, "run", "dmo")


def test_a_missing_file_is_refused(capsys: Any, tmp_path: Path) -> None:
    assert "No such file" in refused(capsys, "run", str(tmp_path / "nowhere.toml"))


def test_a_file_that_is_not_toml_is_refused(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3\n")
    assert "is not valid TOML" in refused(capsys, "run", str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("change", ["rounds=1", "topology.name=star", 'participation={name="uniform",m=1}'])
def test_a_change_that_every_algorithm_overrules_is_refused(
    capsys: Any, file: Path, tmp_path: Path, change: str
) -> None:
    """In the config.toml of a run each algorithm has its own rounds, graph and participation."""
    proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    again = str(tmp_path / "run" / "config.toml")
    assert "algorithms have their own" in refused(capsys, "run", again, "--out", str(tmp_path / "two"), "-c", change)


def test_bad_override(capsys: Any, file: Path) -> None:
    assert "not of the form key=value" in refused(capsys, "run", str(file), "-c", "rounds")
    assert "names 2 entries" in refused(capsys, "run", str(file), "-c", "algorithms.fedcef.K=3")
    assert "problem: unknown key 'bach'" in refused(capsys, "run", str(file), "-c", "problem.bach=3")


def test_unknown_flag_and_command(capsys: Any, file: Path) -> None:
    assert "--bogus" in refused(capsys, "run", str(file), "--bogus")
    assert "rnu" in refused(capsys, "rnu")


def test_a_run_is_not_overwritten(capsys: Any, file: Path, tmp_path: Path) -> None:
    assert proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))[0] == 0
    assert "--resume continues it" in refused(capsys, "run", str(file), "--out", str(tmp_path / "run"))


@pytest.mark.parametrize("command", ["run", "tune", "sweep", "deploy"])
def test_resume_and_force_exclude_each_other(capsys: Any, file: Path, tmp_path: Path, command: str) -> None:
    over = ["--over", "fedavg.eta=[0.1]"] if command in ("tune", "sweep") else []
    more = ["--budget", "10"] if command == "tune" else []
    out = "--out", str(tmp_path / "run")
    said = refused(capsys, command, str(file), *over, *more, *out, "--resume", "--force")
    assert said == "error: --resume continues what is there and --force replaces it: give one of them\n"
    assert not (tmp_path / "run").exists()


def test_members_of_a_slurm_array_do_not_replace_each_others_work(
    capsys: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    said = refused(capsys, "run", str(file), "--out", str(tmp_path / "run"), "--force")
    assert "--force: members of a Slurm array would replace each other's work" in said


def test_messages_are_in_terms_of_the_command_line(capsys: Any, file: Path, tmp_path: Path) -> None:
    out = "--out", str(tmp_path / "run")
    proxfed(capsys, "run", str(file), *out)
    assert "--resume continues it, --force replaces it, or choose another --out" in refused(
        capsys, "run", str(file), *out
    )
    changed = refused(capsys, "run", str(file), *out, "--resume", "-c", "rounds=1")
    assert "rounds was 2, now 1; --force replaces it, or choose another --out" in changed
    assert "--only: no algorithm" in refused(capsys, "run", str(file), "--only", "none")


@pytest.mark.parametrize("carrier", ["nvflare", "flower"])
def test_a_refused_deployment_leaves_nothing_behind(
    capsys: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is missing" in refused(capsys, "deploy", str(file), "--carrier", carrier)
    assert not Path("runs").exists()
    refused(capsys, "deploy", str(file), "--loopback", "3")  # it has another number of clients
    assert list(tmp_path.rglob("*.carrier")) == []


def test_a_folder_of_something_else_is_left_alone(capsys: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert "is not a run folder" in refused(capsys, "run", str(file), "--out", str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_reports_of_what_is_no_run(capsys: Any, file: Path, tmp_path: Path) -> None:
    assert "not a readable run folder" in refused(capsys, "report", str(tmp_path / "nowhere"))
    proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    (tmp_path / "run" / "config.toml").write_text("half of a = ")
    assert "config.toml is damaged" in refused(capsys, "report", str(tmp_path / "run"))


def test_a_half_written_row_does_not_hurt_the_report(capsys: Any, file: Path, tmp_path: Path) -> None:
    proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    with (tmp_path / "run" / "rows.csv").open("a") as f:
        f.write("small,fedavg,0,3,12.")
    code, said, _ = proxfed(capsys, "report", str(tmp_path / "run"), "--format", "json")
    assert code == 0
    assert all(r["rounds"] == 2 for r in next(iter(json.loads(said)["results"].values())))


def test_a_diverging_run_stops_and_keeps_its_rows(capsys: Any, tmp_path: Path) -> None:
    """The step is far too large for one of two algorithms: it stops, and the other one is done: a result, not a failure."""
    wild = {"name": "fedavg", "label": "wild", "eta": 1e6, "K": 3}
    tame = {"name": "fedavg", "label": "tame", "eta": 0.1, "K": 3}
    path = write(tmp_path / "w.toml", small(rounds=200, seeds=[0], algorithms=[wild, tame]))
    code, _, said = proxfed(capsys, "run", str(path), "--out", str(tmp_path / "run"))
    assert code == 0
    assert "wild, seed 0: diverged" in said
    rows = RunFolder(tmp_path / "run").rows()
    kept = [row["round"] for row in rows if row["algorithm"] == "wild"]
    assert kept == list(range(len(kept)))
    (stopped,) = [s["round"] for s in RunFolder(tmp_path / "run").status() if s["algorithm"] == "wild"]
    assert 0 < stopped == kept[-1] < 199
    assert max(row["round"] for row in rows if row["algorithm"] == "tame") == 200
    assert {s["algorithm"]: s["status"] for s in RunFolder(tmp_path / "run").status()} == {
        "wild": "diverged",
        "tame": "finished",
    }


@pytest.mark.parametrize(
    ("labels", "features", "sentence"),
    [
        ([0, 1, 2, 9], None, "9"),
        ([0, 1, 2, 1], np.nan, "row 1 of client 1 has a feature that is NaN"),
    ],
)
def test_bad_data(labels: list[int], features: float | None, sentence: str) -> None:
    from proxfed import Federated, InputError

    A = np.ones((2, 3))
    if features is not None:
        A[1, 2] = features
    with pytest.raises(InputError, match=sentence):
        Federated.from_clients([(np.ones((2, 3)), labels[:2]), (A, labels[2:])], classes=3)


def test_an_empty_client() -> None:
    from proxfed import Federated, InputError

    with pytest.raises(InputError, match="client 1"):
        Federated.from_clients([(np.ones((2, 3)), [0, 1]), (np.ones((0, 3)), [])], classes=2)


def test_a_kernel_that_was_only_imported_is_no_notebook(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """JSON on the standard output stays JSON, whatever else is loaded."""
    pytest.importorskip("ipykernel")
    changes = ["-c", "rounds=2", "-c", "data.samples=5"]
    _, said, _ = proxfed(capsys, "run", "demo", *changes, "--out", str(tmp_path / "run"), "--format", "json")
    assert json.loads(said)["results"]


def test_report_writes_figures_and_tables_for_a_paper(capsys: Any, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, complaint = proxfed(capsys, "run", str(file), "--out", str(out), "-c", f"algorithms=[{FEDAVG}]")
    assert code == 0, complaint
    tex, table = tmp_path / "table.tex", tmp_path / "table.csv"
    options = ("--figures", "svg", "--latex", str(tex), "--csv", str(table), "--stat", "mean")
    code, said, complaint = proxfed(capsys, "report", str(out), *options)
    assert code == 0, complaint
    assert tex.read_text().startswith(r"\begin{tabular}")
    assert table.read_text().startswith("algorithm,status,")
    figures = sorted(path.name for path in out.glob("*.svg"))
    assert {"gap-bytes.svg", "gap-round.svg", "objective-round.svg"} <= {*figures}
    assert all(f"wrote {out / name}" in said for name in figures)
    assert "'gif' is not one of pdf, svg, png" in refused(capsys, "report", str(out), "--figures", "gif")
    assert "of one run" in refused(capsys, "report", str(out), str(out), "--latex", str(tex))


def test_a_first_experiment_runs_as_it_is_written(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, complaint = proxfed(capsys, "init", "mine.toml")
    assert code == 0, complaint
    assert "proxfed run mine.toml" in said
    code, said, complaint = proxfed(capsys, "run", "mine.toml", "-c", "rounds=2", "--jobs", "1")
    assert code == 0, complaint
    assert "pledge" in said
    assert "mine.toml exists: choose another name" in refused(capsys, "init", "mine.toml")
    assert "must end in .toml" in refused(capsys, "init", "mine")
