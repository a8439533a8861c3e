"""Which values of a measure are better is said by it, kept in the run folder, and never guessed from its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from proxfed import FedAvg, Federated, Linear, Patience, Results, Squared, Study, Target, compare, run, sweep, tune
from proxfed.engine import state_measures
from proxfed.errors import InputError
from proxfed.papers.claims import judge
from proxfed.papers.paper_schema import Said, make_claim
from proxfed.problems.losses import Loss
from proxfed.report.columns import FAMILIES, agreed, column, direction
from proxfed.report.targets import first_reached
from proxfed.types import Local, Measure, Smooth, directions


class Near(Local):
    def __init__(self, t: int, ids: Any, seed: int) -> None:
        self.t, self.ids, self.seed = t, ids, seed

    def full_grad(self, x: Tensor) -> Tensor:
        return self.spread(x - 1) if x.ndim == 1 else x - 1

    def value(self, x: Tensor) -> Tensor:
        return self.full_grad(x).square().sum(-1) / 2


class Own(Smooth):
    """f_i(x) = |x - 1|^2 / 2; its measure grows from 0 to 1 on the way to the solution, or falls."""

    n, d = 3, 1

    def __init__(self, *measures: Measure | str) -> None:
        self._measures = measures

    @property
    def measures(self) -> tuple[Measure | str, ...]:
        return self._measures

    def local(self, t: int, ids: Any, seed: int = 0) -> Near:
        return Near(t, ids, seed)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        good = 1 - float((x - 1).abs().sum())
        return {name: 1 - good if better == "lower" else good for name, better in directions(self.measures).items()}


SLOW, FAST = FedAvg(0.01, 2), FedAvg(0.3, 2)
HOW = r"it is not known whether lower or higher values are better; .*Measure\('r2', 'higher'\)"


def study(*measures: Measure | str, **more: Any) -> Study:
    return Study(Own(*measures), {"slow": SLOW, "fast": FAST}, 4, **more)


@pytest.mark.parametrize(
    ("name", "better"),
    [("r2", "higher"), ("concordance", "higher"), ("brier_score", "lower"), ("log_score", "lower"), ("auc", "lower")],
)
def test_an_own_measure_is_tuned_as_it_says(name: str, better: Any, tmp_path: Path) -> None:
    class Score(Squared):
        measures = (Measure(name, better),)

        def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
            good = 1 - float((s[:, 0] - b).square().mean() / b.square().mean())
            return {name: 1 - good if better == "lower" else good}

    A = np.random.default_rng(0).normal(size=(60, 3))
    f = Linear(Federated(A, A @ [1.0, -2.0, 3.0], [20, 20, 20], (A, A @ [1.0, -2.0, 3.0])), Score())
    it = Study(f, {"FedAvg": FedAvg(0.01, 2)}, 4)
    tuned = tune(it, {"FedAvg.eta": [0.001, 0.01, 0.1]}, progress=False)
    assert tuned.of("FedAvg")[0].values == {"eta": 0.1}
    swept = sweep(it, {"FedAvg.eta": [0.001, 0.1], "FedAvg.K": [1, 2]}, out=tmp_path / "sweep", progress=False)
    assert swept.judge.measure == name
    assert direction(name, swept.judge.directions) == better


def test_a_measure_without_a_direction_is_refused_where_one_is_needed() -> None:
    for f in (Own("r2"), Own(Measure("r2"))):
        bare = Study(f, {"fast": FAST}, 4)
        with pytest.raises(InputError, match=f"measure = 'r2': {HOW}"):
            tune(bare, {"fast.eta": [0.1, 0.5]}, progress=False)
        with pytest.raises(InputError, match=f"target = 'r2': {HOW}"):
            tune(bare, {"fast.eta": [0.1, 0.5]}, target="r2=0.5", progress=False)
        with pytest.raises(InputError, match=f"targets = 'r2': {HOW}"):
            Study(f, {"fast": FAST}, 4, targets={"r2": [0.5]}).check()
        for rule in (Patience(2, "r2"), Target("r2", 0.5)):
            with pytest.raises(InputError, match=HOW):
                Study(f, {"fast": FAST}, 4, hooks=[rule]).check()
            with pytest.raises(InputError, match=HOW):
                run(f, FAST, 4, hooks=[rule], progress=False)
        assert run(f, FAST, 4, progress=False).rows[-1]["r2"] > 0.5  # it is measured all the same


CLAIMS = (
    {"order": ["fast", "slow"]},
    {"label": "fast", "target": 0.5, "below": 3},
    {"label": "fast", "best": True, "above": 0.5},
    {"label": "fast", "case": "a", "lost_from": "b", "below": 0.1},
)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_are_judged_by_the_direction_or_refused(claim: dict[str, Any]) -> None:
    made = make_claim(says="so", measure="r2", **claim)
    known, unknown = (
        {case: compare(Own(each), {"slow": SLOW, "fast": FAST}, 4, progress=False) for case in ("a", "b")}
        for each in (Measure("r2", "higher"), "r2")
    )
    assert judge(made, known, quick=False).status == "confirmed"
    with pytest.raises(InputError, match=HOW):
        judge(made, unknown, quick=False)
    asked = Said(claims=[made]).asked("a")
    with pytest.raises(InputError, match=f"claims = 'r2': {HOW}"):  # before anything is run
        study("r2", asked=asked).check()
    study(Measure("r2", "higher"), asked=asked).check()


def test_a_claim_that_needs_no_direction_takes_any_measure() -> None:
    found = {"": compare(Own("r2"), {"fast": FAST}, 4, progress=False)}
    assert judge(make_claim(says="so", measure="r2", label="fast", above=0.5), found, quick=False).status == "confirmed"


def test_early_stopping_goes_by_what_the_measure_says() -> None:
    up = run(Own(Measure("r2", "higher")), FAST, 50, hooks=[Target("r2", 0.9)], progress=False)
    down = run(Own(Measure("loss_score", "lower")), FAST, 50, hooks=[Target("loss_score", 0.1)], progress=False)
    assert 1 < up.rows[-1]["round"] == down.rows[-1]["round"] < 50
    for way, stops in (("higher", 4), ("lower", 2)):
        rule = Patience(2, "r2").rule({"r2": way})
        assert [bool(rule({"r2": value})) for value in (0.1, 0.2, 0.3, 0.2, 0.3)].index(True) == stops


def test_the_folder_alone_knows_it(tmp_path: Path) -> None:
    f, out = Own(Measure("r2", "higher")), tmp_path / "run"
    compare(f, {"slow": SLOW, "fast": FAST}, 4, out=out, targets={"r2": [0.3]}, progress=False)
    kept = Results.read(out)
    assert kept.directions == {"r2": "higher"}
    slow, fast = kept.table()
    assert (slow["reached"][0]["rounds"], fast["reached"][0]["rounds"]) == (None, 1)
    page = kept.report(tmp_path / "page.html").read_text()
    assert f'class="best" data-value="{fast["r2"]!r}"' in page
    assert f'class="best" data-value="{slow["r2"]!r}"' not in page


def test_a_resumed_run_may_say_it_later(tmp_path: Path) -> None:
    out = tmp_path / "run"
    compare(Own("r2"), {"fast": FAST}, 4, out=out, progress=False)
    assert direction_of(out) == ""
    compare(Own(Measure("r2", "higher")), {"fast": FAST}, 4, out=out, resume=True, progress=False)
    assert direction_of(out) == "higher"


def direction_of(folder: Path) -> str:
    return column("r2", Results.read(folder).directions).better


def test_what_the_table_of_columns_knows_need_not_be_kept() -> None:
    assert study(Measure("accuracy", "higher"), Measure("test_loss", "lower")).directions == {}
    assert study("accuracy", "average_length").directions == {"accuracy": "", "average_length": ""}
    for name in ("accuracy_lyon", "accuracy_x", "worst_x", "average_x", "train_accuracy"):
        assert direction(name) == "higher"
    for name in (
        "test_loss",
        "test_loss_lyon",
        "train_loss",
        "consensus",
        "consensus_y",
        "epsilon",
        "epsilon_nu",
        "gap",
    ):
        assert direction(name) == "lower"
    for name in ("r2", "auc", "f1", "log_score", "my_accuracy", "worstcase", "nonzeros", "size_y"):
        with pytest.raises(InputError, match="it is not known whether"):
            direction(name)


def test_every_measure_of_states_and_losses_is_in_the_table() -> None:
    assert {*state_measures.FAMILIES} <= {*FAMILIES}
    for loss in Loss.__subclasses__():
        for name, better in directions(loss.measures).items():
            assert column(name).better == column(f"{name}_lyon").better == better != ""


def test_runs_that_contradict_each_other_have_no_best() -> None:
    assert agreed([{"r2": "higher"}, {}, {"r2": "higher", "q": "lower"}]) == {"r2": "higher", "q": "lower"}
    assert agreed([{"r2": "higher"}, {"r2": "lower"}, {"r2": "higher"}])["r2"] == ""


def test_what_is_no_direction_is_refused() -> None:
    with pytest.raises(InputError, match="better = 'max' must be 'lower', 'higher' or ''"):
        Measure("r2", "max")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be a tuple, such as"):
        directions("r2")
    with pytest.raises(InputError, match="target = 'r2'"):
        first_reached([{"round": 0, "r2": 0.5}], "r2", 0.3)
