"""Names of what is no part of the package: of modules, of files beside the configuration, of installed packages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxfed import Results
from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.catalogue import KINDS
from proxfed.harness.experiment import parse, read

from support.cli import proxfed, refused
from support.small_experiment import small, write

pytestmark = pytest.mark.usefixtures("forked")

MINE = '''
"""What somebody has beside their configuration."""
from dataclasses import dataclass

import numpy as np
from torch import nn

from proxfed.algorithms import FedAvg
from proxfed.compressors import TopK
from proxfed.data import load
from proxfed.data.federated import Dataset
from proxfed.participation import UniformSampling
from proxfed.regularisers import L1
from proxfed.topologies import Ring


class MyAvg(FedAvg):
    """My own averaging."""

class MyL1(L1):
    """My own penalty."""

class MyTopK(TopK):
    """My own choice of entries."""

class MyRing(Ring):
    """My own ring."""

class MySampling(UniformSampling):
    """My own sampling."""

@dataclass(frozen=True)
class MyDecay:
    """My own step sizes."""
    start: float
    def __call__(self, t):
        return self.start / t

@dataclass(frozen=True)
class MyParts:
    """My own clients."""
    parts: int
    def __call__(self, labels, groups=None):
        return [np.arange(len(labels))[k :: self.parts] for k in range(self.parts)]

def my_data(size: int = 40):
    """My own data."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(size, 3))
    return Dataset(name="mine", features=features, labels=np.where(features[:, 0] > 0, 1, 0), classes=2)

def my_net(channels, side, classes):
    """My own network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, classes))

a_number = 7
'''

PARTS = {
    "algorithms": "MyAvg",
    "regularisers": "MyL1",
    "compressors": "MyTopK",
    "topologies": "MyRing",
    "participations": "MySampling",
    "schedules": "MyDecay",
    "partitions": "MyParts",
    "datasets": "my_data",
    "models": "my_net",
}


def experiment(name: Any) -> dict[str, Any]:
    """With one of each kind; `name(kind)` is what it is called."""
    return {
        "name": "mine",
        "rounds": 2,
        "dtype": "float64",
        "data": {"name": name("datasets"), "size": 30, "partition": {"name": name("partitions"), "parts": 5}},
        "problem": {"name": "network", "model": name("models"), "train_measures": True},
        "regulariser": {"name": name("regularisers"), "weight": 0.01},
        "topology": {"name": name("topologies")},
        "algorithms": [
            {
                "name": name("algorithms"),
                "label": "avg",
                "eta": 0.1,
                "K": 2,
                "participation": {"name": name("participations"), "m": 2},
            },
            {"name": "fedcef", "alpha": 0.1, "K": 2, "compressor": {"name": name("compressors"), "k": 2}},
            {"name": "depositum", "alpha": 0.1},
            {"name": "dpsgd", "eta": {"name": name("schedules"), "start": 0.1}},
        ],
    }


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in Results.read(path).rows]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with mine.py."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "there"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as a package with entry points."""
    place = tmp_path / "site"
    about = place / "their_package-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "their_package.py").write_text(MINE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    lines = [f"[proxfed.{kind}]\ntheir_{kind} = their_package:{part}\n" for kind, part in PARTS.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(place))
    for registry in KINDS.values():
        registry.__dict__.pop("plugins", None)
    yield
    monkeypatch.undo()
    sys.modules.pop("their_package", None)
    for registry in KINDS.values():
        registry.__dict__.pop("plugins", None)


def test_files_beside_the_configuration(capsys: Any, beside: Path, tmp_path: Path) -> None:
    """From any directory, and again from what the run folder has recorded."""
    file = write(beside / "mine.toml", experiment(lambda kind: f"./mine.py:{PARTS[kind]}"))
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "one"), "--jobs", "1")
    assert code == 0, said
    again = tmp_path / "one" / "config.toml"
    code, _, said = proxfed(capsys, "run", str(again), "--out", str(tmp_path / "two"), "--jobs", "1")
    assert code == 0, said
    assert rows(tmp_path / "one") == rows(tmp_path / "two") != []
    config = Results.read(tmp_path / "one").settings
    assert config["algorithms"][0]["name"] == f"{beside / 'mine.py'}:MyAvg"
    assert len(config["algorithms"][0]["source"]) == 12


def test_modules_beside_the_user_and_files_are_the_same(beside: Path, tmp_path: Path) -> None:
    """In a process of its own, whose directory is not yet on the path."""
    write(beside / "file.toml", experiment(lambda kind: f"./mine.py:{PARTS[kind]}"))
    write(beside / "module.toml", experiment(lambda kind: f"mine:{PARTS[kind]}"))
    for form in ("file", "module"):
        command = [sys.executable, "-P", "-m", "proxfed", "run", f"{form}.toml", "--out", str(tmp_path / form)]
        done = subprocess.run(command, cwd=beside, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "file") == rows(tmp_path / "module") != []


def test_a_module_beside_the_user_leaves_the_path_as_it_was(beside: Path, tmp_path: Path) -> None:
    """In Python, too, with other processes, which import it as well."""
    write(beside / "module.toml", experiment(lambda kind: f"mine:{PARTS[kind]}"))
    code = f"""
import sys
sys.path[:0] = {[p for p in sys.path if p]!r}
import proxfed
before = list(sys.path)
study = proxfed.read_study("module.toml")
assert "mine" in sys.modules
assert sys.path == before, sys.path
assert proxfed.run_study(study, {str(tmp_path / "run")!r}, jobs=2, progress=False).complete
assert sys.path == before, sys.path
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=beside, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("installed")
def test_entry_points_of_every_kind(capsys: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "theirs.toml", experiment(lambda kind: f"their_{kind}"))
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "one"), "--jobs", "1")
    assert code == 0, said
    other = write(tmp_path / "named.toml", experiment(lambda kind: f"their_package:{PARTS[kind]}"))
    code, _, said = proxfed(capsys, "run", str(other), "--out", str(tmp_path / "two"), "--jobs", "1")
    assert code == 0, said
    assert rows(tmp_path / "one") == rows(tmp_path / "two") != []


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", PARTS)
def test_entry_points_are_listed(kind: str, capsys: Any) -> None:
    code, said, complaint = proxfed(capsys, "list", kind)
    assert code == 0, complaint
    assert f"their_{kind}" in said
    code, said, complaint = proxfed(capsys, "list", kind, f"their_{kind}", "--format", "json")
    assert code == 0, complaint
    assert json.loads(said)["name"] == f"their_{kind}"
    said = refused(capsys, "list", kind, f"their_{kind}x")
    assert f"did you mean 'their_{kind}'?" in said


@pytest.mark.usefixtures("installed")
def test_a_plugin_that_cannot_be_loaded_is_named(capsys: Any, tmp_path: Path) -> None:
    """When it is used, in one sentence; listing what there is still works."""
    file = tmp_path / "site" / "their_package.py"
    file.write_text("import nothing_of_that_name\n")
    table = small(algorithms=[{"name": "their_algorithms", "eta": 0.1, "K": 1}])
    said = refused(capsys, "run", str(write(tmp_path / "x.toml", table)), "--out", str(tmp_path / "run"))
    assert "the plug-in 'their_algorithms' (their_package:MyAvg) cannot be loaded" in said
    assert "nothing_of_that_name" in said
    code, said, complaint = proxfed(capsys, "list", "algorithms")
    assert code == 0, complaint
    assert "fedavg" in said
    assert "nothing_of_that_name" in said


WRONG = {
    "./nowhere.py:Mine": r"algorithms\.x: there is no file .*nowhere\.py",
    "./mine.py:MyAvgg": r"algorithms\.x: .*mine\.py has no 'MyAvgg'; did you mean 'MyAvg'\?",
    "./mine.py:a_number": r"is 7, which is neither a class nor a function",
    "./broken.py:Mine": r"broken\.py cannot be imported: ZeroDivisionError: division by zero",
    "./syntax.py:Mine": r"syntax\.py cannot be imported: SyntaxError",
    "./missing.py:Mine": r"missing\.py cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    "no_such_module:Mine": r"no_such_module cannot be imported: ModuleNotFoundError",
    "json:Mine": r"json has no 'Mine'",
    "json:": r"json has no ''",
    ":Mine": r"cannot be imported",
    "./mine.py:MyL1": r"is not an algorithm|unknown key 'eta'",
    "builtins:dict": r"has no signature|unknown key|is not an algorithm",
    "fedavgg": r"algorithms\.x: there is no 'fedavgg'; did you mean 'fedavg'\?",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_names_are_one_sentence(name: str, capsys: Any, beside: Path, tmp_path: Path) -> None:
    (beside / "broken.py").write_text("1 / 0\n")
    (beside / "syntax.py").write_text("class Mine(\n")
    (beside / "missing.py").write_text("import nothing_of_that_name\n")
    file = write(beside / "x.toml", small(algorithms=[{"name": name, "label": "x", "eta": 0.1, "K": 1}]))
    said = refused(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert re.search(WRONG[name], said), said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["datasets", "models", "regularisers", "topologies", "participations", "compressors"])
def test_wrong_names_of_every_kind(kind: str, beside: Path) -> None:
    table = experiment(lambda k: "nowhere:Mine" if k == kind else f"{beside / 'mine.py'}:{PARTS[k]}")
    with pytest.raises(InputError, match="nowhere cannot be imported"):
        build_study(parse(table, "test"))


def test_texts_are_no_names(beside: Path) -> None:
    """Only names are: a description may well speak of a file."""
    text = "as in mine.py: the demo"
    experiment_ = small(description=text, algorithms=[{"name": "fedavg", "label": "x.py:y", "eta": 0.1, "K": 1}])
    found = read(str(write(beside / "x.toml", experiment_)))
    assert found.description == text
    assert found.algorithms[0]["label"] == "x.py:y"


def test_names_in_cases_are_beside_the_file_too(beside: Path, tmp_path: Path) -> None:
    cases = {"other": {"algorithms.x.name": "./mine.py:MyAvg"}}
    table = small(algorithms=[{"name": "fedavg", "label": "x", "eta": 0.1, "K": 1}], cases=cases)
    found = read(str(write(beside / "x.toml", table)))
    assert found.cases["other"]["algorithms.x.name"] == f"{beside / 'mine.py'}:MyAvg"
