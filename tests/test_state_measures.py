"""Measures of the clients' states against their definitions, written out in NumPy."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from proxfed import run
from proxfed.algorithms import CompressedDownlink, Depositum, FedCEF, FedComposite, Scaffold
from proxfed.compressors import Identity, TopK
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.engine.state_measures import check_names
from proxfed.errors import InputError
from proxfed.participation import UniformSampling
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1, Zero
from proxfed.report.columns import direction
from proxfed.topologies import Ring

from support import numpy_references as ref
from support import toy_problems as toy
from support.image_data import images, point

DEPOSITUM = ("stationarity_x", "approximate_nu", "epsilon_nu", "estimation_nu", "consensus_nu")


def _definitions(p: Any, s: float, x: list[np.ndarray], nu: list[np.ndarray]) -> dict[str, float]:
    """Definitions 2 and 3 of DEPOSITUM, divided by n; uniform weights."""
    n, prox, f, grad = p.f.n, ref.prox_l1(p.h.weight), toy.mean_gradient(p), toy.gradient(p)
    G = [(xi - prox(xi - s * f(xi), s)) / s for xi in x]
    near = [(xi - prox(xi - s * v, s)) / s for xi, v in zip(x, nu, strict=True)]
    error = sum(grad(i, xi) for i, xi in enumerate(x)) / n - sum(nu) / n
    apart = sum(np.sum((xi - sum(x) / n) ** 2) for xi in x)
    stacked, L = sum(np.sum(g**2) for g in G), p.f.smoothness().L
    return {
        "stationarity_x": stacked / n,
        "approximate_nu": sum(np.sum(g**2) for g in near) / n,
        "estimation_nu": np.sum(error**2),
        "consensus_nu": sum(np.sum((v - sum(nu) / n) ** 2) for v in nu) / n,
        "epsilon_nu": (stacked + L**2 * apart + n * np.sum(error**2)) / n,
    }


@pytest.mark.parametrize("option", ["polyak", "nesterov"])
@pytest.mark.parametrize("step", [None, 0.3])
def test_depositums_measures_are_those_of_its_definitions(option: str, step: float | None) -> None:
    """Along a run of its own: x^t stands beside nu^{t+1}, and with OPTION II nu is not the field m."""
    p = toy.problem()
    alpha, beta, gamma, T0 = 0.4, 0.7, 0.6, 3
    W = ref.mixing("ring", p.f.n)(1)
    states = ref.depositum(
        toy.gradient(p), ref.prox_l1(p.h.weight), lambda k: W, p.f.n, toy.start(p),
        alpha=alpha, beta=beta, gamma=gamma, T0=T0, option=option, s=alpha * beta,
    )  # fmt: skip
    pairs = list(pairwise(islice(states, 5 * T0 + 2)))
    run = toy.begin(p, Depositum(alpha, beta, gamma, T0, option), Ring(p.f.n))
    measures = Measures(p, run.network, step=step, more=DEPOSITUM)
    s = 1 / p.f.smoothness().L_f if step is None else step
    for t in range(6):
        if t > 0:
            run.round(t)
        now, after = pairs[t * T0]
        found = measures(run.model(), run.fields(measures.fields))
        for name, value in _definitions(p, s, now.x, after.nu).items():
            assert found[name] == pytest.approx(value, rel=1e-10, abs=1e-24), (name, t)


def test_the_parts_of_a_stationary_point_go_to_zero_together() -> None:
    p = toy.problem()
    rows = run(p, Depositum(0.5, T0=2, option="nesterov"), topology=Ring(p.f.n), rounds=1500, every=1500,
               measures=DEPOSITUM, progress=False).rows  # fmt: skip
    for name in DEPOSITUM:
        assert rows[-1][name] < 1e-16 < 1e-6 < rows[0][name] or name == "consensus_nu"
    assert rows[-1]["consensus_nu"] < 1e-16


@pytest.mark.parametrize("many", [False, True])
def test_rows_of_a_servers_clients_are_measured(many: bool) -> None:
    """Also where clients are met one after the other: who has not taken part is where it began."""
    p = toy.problem()
    algorithm = Scaffold(0.3, 3)
    participation = UniformSampling(2) if many else None
    run = run_of(p, algorithm, Stacked(p.f.n, p.f.d), *([participation] if participation else []))
    measures = Measures(p, run.network, more=("largest_c", "mean_c", "size_c", "consensus_c"))
    for t in range(1, 3):
        run.round(t)
    c = run.state.clients.c.numpy()
    assert (np.abs(c).sum(1) == 0).any() == many
    found = measures(run.model(), run.fields(measures.fields))
    assert found["largest_c"] == pytest.approx(max(np.linalg.norm(row) for row in c), rel=1e-12)
    assert found["mean_c"] == pytest.approx(np.linalg.norm(c.mean(0)), rel=1e-12)
    assert found["size_c"] == pytest.approx((c**2).sum() / p.f.n, rel=1e-12)
    assert found["consensus_c"] == pytest.approx(((c - c.mean(0)) ** 2).sum() / p.f.n, rel=1e-12)
    assert "consensus" not in found


def test_nothing_is_gathered_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy.begin(toy.problem(), Scaffold(0.3, 3))
    monkeypatch.setattr(type(run.rows), "all", lambda self: pytest.fail("gathered"))
    assert run.fields(Measures(run.problem, run.network).fields) == {}


def test_what_fedcef_has_not_sent_goes_to_zero() -> None:
    p = toy.problem()
    ends = {}
    for label, C in {"exact": Identity(), "top": TopK(0.3)}.items():
        rows = run(p, FedCEF(0.3, 3, compressor=C), rounds=300, every=1, measures=["size_unsent"], progress=False).rows
        ends[label] = [row["size_unsent"] for row in rows[1:]]
    assert max(ends["exact"]) < 1e-30
    assert ends["top"][0] > 1e-4
    assert ends["top"][-1] < 1e-14


@pytest.mark.parametrize("partial", [False, True])
def test_fedcomposite_shows_its_corrections(partial: bool) -> None:
    """They add up to zero, and are the mean of all gradients less the own one."""
    p = toy.problem()
    run = toy.begin(p, FedComposite(0.3, 1, partial=partial))
    z = run.model().numpy()
    run.round(1)
    c, grad = run.fields(["c"])["c"].numpy(), toy.gradient(p)
    expected = np.array([toy.mean_gradient(p)(z) - grad(i, z) for i in range(p.f.n)])
    assert np.abs(c - expected).max() < 1e-13
    assert np.abs(c.sum(0)).max() < 1e-13


def test_an_algorithm_inside_another_shows_its_own() -> None:
    p = toy.problem()
    run = toy.begin(p, CompressedDownlink(FedCEF(0.1, 2, compressor=TopK(0.5), partial=True), TopK(0.5)))
    run.round(1)
    assert {"c", "v", "unsent"} <= run.fields().keys()
    check_names(["size_unsent"], [run.algorithm], p)


def test_training_data_are_scored_like_test_data() -> None:
    p = Neural(images((6, 6, 6), test=40), "mlp", batch=5)
    x = point(p)[0]
    names = ("train_loss", "train_accuracy")
    found = Measures(p + Zero(), Stacked(p.n, p.d), more=names)(x)
    module = p.module(x)
    scores = module(p.A(torch.arange(18))).detach()
    assert found["train_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, p.b)), rel=1e-5)
    assert found["train_accuracy"] == pytest.approx(float((scores.argmax(1) == p.b).double().mean()), rel=1e-12)
    assert not {*names} & Measures(p + Zero(), Stacked(p.n, p.d))(x).keys()


def test_training_data_of_a_linear_model() -> None:
    p = toy.problem(sizes=toy.RAGGED)
    found = p.f.training_score(p.start(0))
    A, b = np.asarray(p.f.data.features), p.f.data.labels
    margins = b * (A @ toy.start(p))
    assert found["train_loss"] == pytest.approx(np.log1p(np.exp(-margins)).mean(), rel=1e-12)
    assert found["train_accuracy"] == (margins > 0).mean()


def test_at_most_so_many_training_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxfed.problems.empirical_risk.TRAINING", 3)
    p = toy.problem(sizes=toy.RAGGED)
    total = len(p.f.data.labels)
    rows = [0, total // 3, 2 * total // 3]
    margins = p.f.data.labels[rows] * (np.asarray(p.f.data.features)[rows] @ toy.start(p))
    assert p.f.training_score(p.start(0))["train_accuracy"] == (margins > 0).mean()


def test_the_mean_of_the_clients_models_beside_the_model_that_is_evaluated() -> None:
    p = Neural(images((6, 6, 6), test=40), "mlp", train_measures=True) + L1(1e-2)
    run = toy.begin(p, Depositum(0.1), Ring(3))
    run.round(1)
    measures = Measures(p, run.network, more=("average_x", "objective_x"))
    found = measures(run.model(), run.fields(measures.fields))
    mean = run.state.x.mean(0)
    assert (run.model() - mean).norm() > 1e-3
    assert found["average_x"] == p.f.evaluate(mean)["accuracy"]
    assert found["objective_x"] == pytest.approx(measures.objective(mean), rel=1e-12)
    assert found["objective_x"] != pytest.approx(found["objective"], rel=1e-6)
    assert direction("average_x") == "higher"
    with pytest.raises(InputError, match="'average_x' needs test data"):
        check_names(["average_x"], [Depositum(0.5)], toy.problem())


def test_what_cannot_be_measured_is_refused() -> None:
    network = Neural(images(), "mlp")
    check_names(["stationarity_x"], [Depositum(0.5)], network + Zero(), step=0.1)
    with pytest.raises(InputError, match=r"'stationarity_x' needs a smoothness constant.*give a stationarity_step"):
        check_names(["stationarity_x"], [Depositum(0.5)], network + Zero())
    with pytest.raises(InputError, match="'epsilon_nu' needs a smoothness constant"):
        check_names(["epsilon_nu"], [Depositum(0.5)], network + Zero(), step=0.1)
    with pytest.raises(InputError, match="no algorithm here has 'estimation_c'"):
        check_names(["estimation_c"], [Scaffold(0.1, 2)], toy.problem())
    with pytest.raises(InputError, match="no algorithm here has 'train_accuracy'"):
        check_names(["train_accuracy"], [Scaffold(0.1, 2)], toy.problem("least_squares"))
