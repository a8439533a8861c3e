"""What cannot be tuned is refused in one sentence with exit code 2, and nothing is computed or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import proxfed
from proxfed import InputError, Study, tune
from proxfed.schedules import InverseRoot
from proxfed.types import Local, Measure, Smooth

from support.cli import refused
from support.tuning import convex, digits

OVER = ["--over", "FedAvg.eta=log(1e-3,1)"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("file") / "digits.toml")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--over KEY=SPACE is missing"),
        (["--over", "FedAvg.eta"], "--over 'FedAvg.eta' is not of the form KEY=SPACE"),
        (["--over", "FedAvg.etta=log(1e-3,1)"], "FedAvg has no setting 'etta'; did you mean 'eta'?"),
        (["--over", "algorithms.FedAvgg.eta=log(1e-3,1)"], "there is no algorithm 'FedAvgg'; did you mean 'FedAvg'?"),
        (["--over", "*.alpha=log(1e-3,1)"], "no algorithm has a setting 'alpha'"),
        (["--over", "problem.l2=log(1e-3,1)"], "there is no algorithm 'problem'"),
        (["--over", "FedAvg.eta=log(0,1)"], "log(0.0, 1.0): both bounds must be > 0"),
        (["--over", "FedAvg.eta=log(1,1)"], "has only one point"),
        (["--over", "FedAvg.eta=[0.1]"], "has only one point"),
        (["--over", "FedAvg.eta=0.1"], "'0.1' is not a search space; allowed are log(a,b)"),
        (["--over", "FedAvg.K=log(1,20)"], "algorithms.FedAvg.K = "),
        (["--over", "FedNAG.gamma=linear(0,2)"], "gamma = 1.25 must be in [0, 1]"),
        (["--over", "FedAvg.eta=[0.1, 'a']"], "algorithms.FedAvg.eta = 'a' is not allowed"),
        ([*OVER, *OVER], "--over FedAvg.eta is given twice"),
        ([*OVER, "--over", "algorithms.FedAvg.eta=[1.0, 2.0]"], "FedAvg.eta is given twice"),
        ([*OVER, "--over", "fedavg.eta=[1.0, 2.0]"], "FedAvg.eta is given twice"),
        ([*OVER, "--budget", "0"], "budget = 0 must be a whole number >= 1"),
        ([*OVER, "--budget", "17"], "budget = 17 rounds per algorithm is too little"),
        ([*OVER, "--seeds", "0"], "seeds = 0 must be a whole number >= 1"),
        ([*OVER, "--measure", "acuracy"], "measure = 'acuracy' cannot be measured here"),
        ([*OVER, "--measure", "nonzeros"], "it is not known whether lower or higher values are better"),
        ([*OVER, "--measure", "gap", "-c", "problem.name='network'", "-c", "problem.model='mlp'"], "measure = 'gap'"),
        ([*OVER, "--target", "accuracy"], "target = 'accuracy' is not of the form MEASURE=NUMBER"),
        ([*OVER, "--target", "auc=0.9"], "target = 'auc' cannot be measured here"),
        ([*OVER, "--target", "accuracy=0.9", "--measure", "objective"], "are not of one measure"),
        ([*OVER, "--target", "accuracy=0.9", "--axis", "seconds"], "axis = 'seconds' is not one of round, bytes"),
        ([*OVER, "--axis", "bytes"], "needs a target: it is"),
        ([*OVER, "--validation", "1"], "validation = 1.0 must be a fraction of the training rows"),
        ([*OVER, "--search", "grid"], "search = 'grid' is not one of 'halving', 'optuna'"),
        ([*OVER, "--resume"], "there is no tuning to resume in"),
    ],
)
def test_commands(
    options: list[str], says: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "tune", str(file), *options)
    assert says in said
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--over", "problem.l3=[0.1, 0.2]"], "unknown key 'l3'; did you mean 'l2'?"),
        (["--over", "data.partition.alpah=[0.1, 0.2]"], "unknown key 'alpah'; did you mean 'alpha'?"),
        (["--over", "roundz=[1, 2]"], "neither a setting nor an algorithm 'roundz'; did you mean 'rounds'?"),
        (["--over", "seeds=[1, 2]"], "'seeds' cannot be swept"),
        (["--over", "*.nothing=[1, 2]"], "no algorithm has a setting 'nothing'"),
        (["--over", "problem.l2=0.1"], "'0.1' is not a search space"),
        ([*OVER], "how many points"),
        (["--over", "problem.l2=[0.1, 0.2]", "--resume"], "there is no sweep to resume in"),
    ],
)
def test_sweeps(
    options: list[str], says: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, "sweep", str(file), *options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("over", "how", "says"),
    [
        ({}, {}, "must say what to tune"),
        ("FedAvg.eta", {}, "must say what to tune"),
        ({"FedAvg.eta": 0.1}, {}, "0.1 is not a search space"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"target": {"accuracy": 0.9}}, "target = 'accuracy' cannot be measured here"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"target": {"objective": "low"}}, "must be a measure and a number"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"target": {"objective": 0.5}, "axis": "sim_seconds"}, "no [time]"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"budget": 1.5}, "budget = 1.5 must be a whole number >= 1"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"out": 3}, "out = 3 must be the path of a folder"),
        ({"FedAvg.eta": "log(1e-3,1)"}, {"seed": "a"}, "seed = 'a' must be a whole number"),
    ],
)
def test_python(over: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as e:
        tune(convex(), over, progress=False, **how)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_a_schedule_has_nothing_around_it() -> None:
    study = convex()
    decaying = Study(study.problem, {"FedAvg": proxfed.FedAvg(InverseRoot(0.5), 2)}, 9)
    with pytest.raises(InputError, match=r"around\(10\) needs a number > 0 in the study"):
        tune(decaying, {"FedAvg.eta": "around(10)"}, progress=False)
    tuned = tune(decaying, {"FedAvg.eta.start": "around(10)"}, 18, progress=False)
    assert isinstance(tuned.study.entries["FedAvg"].algorithm.eta, InverseRoot)  # type: ignore[union-attr]


class Targets(Local):
    """f_i(x) = |x - i|^2 / 2."""

    def __init__(self, t: int, ids: Any, seed: int) -> None:
        self.t, self.ids, self.seed = t, ids, seed
        self.c = torch.tensor([[float(i)] for i in ids], dtype=torch.float64)

    def full_grad(self, x: Tensor) -> Tensor:
        return x - self.c

    def value(self, x: Tensor) -> Tensor:
        return (x - self.c).square().sum(-1) / 2


class Own(Smooth):
    """A user's own f, with a measure on rows that the package knows nothing of."""

    n, d, measures = 3, 1, (Measure("auc", "higher"),)

    def local(self, t: int, ids: Any, seed: int = 0) -> Targets:
        return Targets(t, ids, seed)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        return {"auc": 0.5}


def test_what_may_look_at_test_rows_is_not_tuned_on_them() -> None:
    study = Study(Own(), {"FedAvg": proxfed.FedAvg(0.1, 2)}, 5)
    with pytest.raises(InputError, match="cannot be held out: give a measure on training data"):
        tune(study, {"FedAvg.eta": [0.1, 0.5]}, progress=False)
    tuned = tune(study, {"FedAvg.eta": [0.1, 0.5]}, measure="objective", progress=False)
    assert tuned.of("FedAvg")[0].values == {"eta": 0.5}, "the larger step is nearer to the mean after five rounds"


def test_a_study_of_objects_has_no_file() -> None:
    tuned = tune(convex(), {"FedAvg.eta": [0.1, 1.0]}, progress=False)
    with pytest.raises(InputError, match="a study that was made of objects has no file"):
        tuned.to_toml()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not the folder of a tuning"):
        tune(convex(), {"FedAvg.eta": [0.1, 1.0]}, out=tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
