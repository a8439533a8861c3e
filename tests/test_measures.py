"""Measures of the clients' states that an experiment asks for by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxfed import Federated, Linear
from proxfed.algorithms import Depositum, DFedAvg, FedAvg
from proxfed.data.survival import survival_labels
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked
from proxfed.engine.state_measures import check_names
from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.compare import run_study
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.study import Study
from proxfed.keyed_random import Ids
from proxfed.problems import PROBLEMS
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import Zero
from proxfed.topologies import Ring
from proxfed.types import Local, Smooth, directions

from support import toy_problems as toy
from support.image_data import images, point
from support.small_experiment import SMALL

MORE = ("consensus_y", "estimation_y")


def test_measures_of_a_field_are_what_they_say() -> None:
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    x, y = torch.randn(2, p.f.n, p.f.d, dtype=torch.float64)
    m = Measures(p, Stacked(p.f.n, p.f.d), more=MORE)(x[0], {"x": x, "y": y})
    gradient = sum(w * toy.gradient(p)(i, x[i].numpy()) for i, w in enumerate(p.f.weights.numpy()))
    assert m["consensus_y"] == pytest.approx(float((y - y.mean(0)).square().sum() / p.f.n), rel=1e-12)
    assert m["estimation_y"] == pytest.approx(((y.mean(0).numpy() - gradient) ** 2).sum(), rel=1e-10)


def test_a_field_that_agrees_and_is_the_gradient_measures_zero() -> None:
    p = toy.problem()
    x = torch.randn(p.f.d, dtype=torch.float64).expand(p.f.n, -1)
    g = torch.tensor(toy.mean_gradient(p)(x[0].numpy())).expand(p.f.n, -1)
    m = Measures(p, Stacked(p.f.n, p.f.d), more=MORE)(x[0], {"x": x, "y": g})
    assert m["consensus_y"] < 1e-28
    assert m["estimation_y"] < 1e-28


def test_tracked_gradients_become_the_gradient() -> None:
    """With full gradients and beta = 1, the mean of y is that of the gradients, and the momentum becomes it."""
    p = toy.problem()
    run = toy.begin(p, Depositum(0.5, T0=2), Ring(p.f.n))
    measures = Measures(p, run.network, more=(*MORE, "estimation_m"))
    run.round(1)
    begin = measures(run.model(), run.fields())
    for t in range(2, 2001):
        run.round(t)
    end = measures(run.model(), run.fields())
    assert begin["estimation_y"] < 1e-28
    assert end["estimation_y"] < 1e-28
    for name in ("consensus_y", "estimation_m"):
        assert end[name] < 1e-16 < begin[name]


def test_every_clients_own_model_is_evaluated() -> None:
    p = Neural(images((6, 6, 6), test=40), "mlp", batch=5)
    rows = point(p)
    found = Measures(p + Zero(), Stacked(p.n, p.d), more=("accuracy_x", "worst_x"))(rows.mean(0), {"x": rows})
    accuracies = [p.evaluate(row)["accuracy"] for row in rows]
    assert len(set(accuracies)) > 1
    assert found["accuracy_x"] == pytest.approx(np.mean(accuracies), rel=1e-12)
    assert found["worst_x"] == min(accuracies)
    assert found["accuracy"] == p.evaluate(rows.mean(0))["accuracy"]


def test_accuracies_need_test_data_with_classes() -> None:
    with pytest.raises(InputError, match="'worst_x' needs test data with classes"):
        check_names(["worst_x"], [Depositum(0.5)], toy.problem())
    with pytest.raises(InputError, match="'accuracy_x' needs test data with classes"):
        check_names(["accuracy_x"], [Depositum(0.5)], Neural(images(test=0), "mlp") + Zero())
    check_names(["accuracy_x"], [Depositum(0.5)], Neural(images(), "mlp") + Zero())


LABELS = {
    "numbers": np.linspace(-2, 2, 20),
    "signs": np.resize([-1.0, 1.0], 20),
    "classes": np.arange(20) % 3,
    "counts": np.arange(20.0) % 5,
    "times": survival_labels(np.arange(1.0, 21.0), np.arange(20) % 2),
}
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("least_squares", "numbers", {}),
    ("logistic", "signs", {}),
    ("softmax", "classes", {}),
    ("huber", "numbers", {}),
    ("poisson", "counts", {}),
    ("cox", "times", {}),
    ("linear", "signs", {"loss": "logistic"}),
    ("network", "classes", {"model": "mlp"}),
    ("network", "signs", {"model": "mlp"}),
    ("network", "classes", {"model": "linear", "loss": "squared"}),
    ("network", "numbers", {"model": "linear", "loss": "squared"}),
]


@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize(("kind", "labels", "options"), KINDS)
def test_a_problem_names_what_it_evaluates(kind: str, labels: str, options: dict[str, Any], test: bool) -> None:
    A, b = np.random.default_rng(0).normal(size=(20, 3)), LABELS[labels]
    data = Federated(A, b, [12, 8], (A, b) if test else None, 3 if labels == "classes" else None)
    p = PROBLEMS[kind](data=data, **options)
    assert list(directions(p.measures)) == list(p.evaluate(p.initial(0)))
    assert bool(p.measures) == test


def test_every_kind_of_problem_is_tested() -> None:
    assert {kind for kind, _, _ in KINDS} == PROBLEMS.keys()


def test_nothing_is_evaluated_before_the_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any) -> None:
        raise AssertionError("evaluated")

    data = {"name": "digits", "partition": {"name": "iid", "num_partitions": 7}}
    more = {"data": data, "problem": {"name": "softmax"}, "measures": ["worst_x"], "targets": {"accuracy": [0.9]}}
    resolved = _experiment(**more)
    monkeypatch.setattr(Linear, "evaluate", evaluate)
    resolved.check()
    assert resolved.own_measures == ["worst_x", "accuracy", "test_loss"]


def test_a_state_without_the_field_has_no_such_measure() -> None:
    p = toy.problem()
    run = toy.begin(p, DFedAvg(0.1, 2), Ring(p.f.n))
    found = Measures(p, run.network, more=MORE)(run.x0, run.fields())
    assert not set(MORE) & set(found)
    assert "consensus" in found


@pytest.mark.parametrize("name", ["consensus_q", "consensus", "y", "estimate_y", "consensus_"])
def test_unknown_measures_are_refused(name: str) -> None:
    check_names(MORE, [Depositum(0.5), DFedAvg(0.1, 2), FedAvg(0.1, 2)], toy.problem())
    with pytest.raises(InputError, match=f"no algorithm here has '{name}'"):
        check_names([name], [Depositum(0.5), DFedAvg(0.1, 2), FedAvg(0.1, 2)], toy.problem())


def test_measures_of_a_state_need_a_state() -> None:
    check_names([], [FedAvg(0.1, 2)], toy.problem())
    with pytest.raises(InputError, match="keep nothing"):
        check_names(["consensus_x"], [FedAvg(0.1, 2)], _NothingToLearnFrom() + Zero())


class _NothingToLearnFrom(Smooth):
    """An f of which nothing is known but f_i(x) = |x|^2 / 2."""

    n, d = 2, 3

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return _Square(t, ids, seed)


class _Square(Local):
    def __init__(self, t: int, ids: Ids, seed: int) -> None:
        self.t, self.ids, self.seed = t, ids, seed

    def full_grad(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(len(self.ids), -1)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return self.full_grad(x).square().sum(1) / 2


def _experiment(**changes: Any) -> Study:
    table = copy.deepcopy(SMALL) | {"seeds": [0], "rounds": 2, "reference": False} | changes
    return build_study(parse(table, "here"))


def test_requested_measures_are_columns_of_the_rows(tmp_path: Path) -> None:
    resolved = _experiment(measures=list(MORE))
    run_study(resolved, tmp_path)
    rows = RunFolder(tmp_path).rows()
    for row in rows:
        tracks = row["algorithm"].startswith("depositum")
        assert (row["estimation_y"] is not None) == tracks
        extrapolates = row["algorithm"].startswith("pledge") and "peers" not in row["algorithm"]
        assert (row["consensus_y"] is not None) == (tracks or extrapolates)
    last = [row for row in rows if row["algorithm"] == "depositum"][-1]
    assert np.isfinite([last[name] for name in MORE]).all()


def test_an_experiment_with_an_unknown_measure_does_not_start() -> None:
    with pytest.raises(InputError, match="consensus_mu"):
        _experiment(measures=["consensus_mu"]).check()
