"""What a user is told beside the results."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed import FedAvg, Federated, Linear, Neural, Squared, compare, run
from proxfed.algorithms import FedComposite, GradientDescent, Pledge, PledgePeers
from proxfed.harness.remarks import UNEQUAL
from proxfed.regularisers import L1, MCP
from proxfed.topologies import Ring

from support.cli import proxfed
from support.image_data import images
from support.small_experiment import small, write

QUIET: dict[str, Any] = {"progress": False}


def problem(sizes: tuple[int, ...], **options: Any) -> Linear:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(sum(sizes), 3))
    return Linear(Federated(A, A @ np.ones(3), list(sizes)), Squared(), **options)


UNIFORM = "{} clients with {} to {} samples; all count the same (weighting = 'uniform')"


def test_clients_of_very_different_sizes_that_count_the_same_are_told() -> None:
    least = 20
    most = round(UNEQUAL * least)
    same = problem((least, 30, most), weighting="uniform")
    assert UNIFORM.format(3, least, most) in run(same, FedAvg(0.1, 2), 3, **QUIET).message
    for fine in (problem((least, 30, most - 1), weighting="uniform"), problem((least, 30, most))):
        assert "count the same" not in run(fine, FedAvg(0.1, 2), 3, **QUIET).message


def test_clients_count_by_their_samples_unless_asked() -> None:
    assert problem((20, 60)).weights.tolist() == [0.25, 0.75]
    assert problem((20, 60), weighting="uniform").weights.tolist() == [0.5, 0.5]
    assert Neural(images((4, 12)), "mlp").weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("sizes", "options", "says"),
    [
        ((20, 60), {}, "2 clients with 20 to 60 samples, weighted by their samples (weighting = 'size')"),
        ((20, 60), {"weighting": "uniform"}, UNIFORM.format(2, 20, 60)),
        ((20, 20), {}, "2 clients with 20 samples each; all count the same"),
        ((20,), {}, "1 client with 20 samples"),
    ],
)
def test_the_first_line_of_a_run_says_how_clients_are_weighted(
    sizes: tuple[int, ...], options: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(problem(sizes, **options), {"a": FedAvg(0.1, 2)}, 1)
    assert capsys.readouterr().err.splitlines()[0] == says


def test_a_study_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algorithms = {"a": FedAvg(0.1, 2), "b": FedAvg(0.05, 2)}
    results = compare(problem((20, 200), weighting="uniform"), algorithms, 2, seeds=2)
    assert capsys.readouterr().err.count(UNIFORM.format(2, 20, 200)) == 1
    assert not any(s["message"] for s in results.status)
    compare(problem((20, 200), weighting="uniform"), algorithms, 2, **QUIET)
    assert "count the same" not in capsys.readouterr().err
    data = {"name": "digits", "partition": {"name": "sizes", "partition_sizes": [10, 90]}}
    file = write(
        tmp_path / "a.toml",
        small(
            rounds=1,
            data=data,
            problem={"name": "softmax", "weighting": "uniform"},
            algorithms=[{"name": "fedavg", "eta": 0.1, "K": 2}],
        ),
    )
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert (code, said.count("count the same")) == (0, 1), said


def test_epochs_say_how_many_steps_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"name": "digits", "partition": {"name": "sizes", "partition_sizes": [20, 180]}}
    algorithms = [
        {"name": "fedavg", "eta": 0.1, "K": {"epochs": 2}},
        {"name": "fedavg", "label": "alike", "eta": 0.1, "K": {"mean_epochs": 2}},
    ]
    table = small(rounds=1, data=sizes, problem={"name": "softmax", "batch": 10}, algorithms=algorithms)
    _, _, said = proxfed(capsys, "run", str(write(tmp_path / "a.toml", table)), "--out", str(tmp_path / "run"))
    assert "fedavg: K = {epochs = 2} is 4 to 36 steps of a client, by its own samples" in said
    assert "alike: K = {mean_epochs = 2} is 20 steps for each client: 1.1 to 10 passes over its own samples" in said


def test_simulated_seconds_say_where_their_constants_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = "the profile 'phones_4g': a step of 0.15 to 0.5 s, and the links, are assumed for phones"
    results = compare(problem((20, 20)), {"a": FedAvg(0.1, 2)}, 2, timing="phones_4g")
    assert capsys.readouterr().err.count(origin) == 1
    assert escape(origin) in results.report(tmp_path / "report.html").read_text()
    file = write(tmp_path / "a.toml", small(rounds=1, seeds=[0], time={"profile": "phones_4g", "step_scale": 0.01}))
    _, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert said.count(origin) == 1
    assert "time.step_scale = 0.01 multiplies a step" in said


def test_a_network_that_blew_up_got_worse() -> None:
    result = run(Neural(images(), "mlp", batch=4), FedAvg(20.0, 3), 2, **QUIET)
    first, last = result.rows[0]["test_loss"], result.rows[-1]["test_loss"]
    assert last > 2 * first
    assert result.message.startswith(f"got worse: its loss on the test data went from {first:.6g} to {last:.6g}")


def test_a_comparison_says_who_got_worse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the status of the results and on stderr, in Python as on the command line."""
    results = compare(Neural(images(), "mlp", batch=4), {"wild": FedAvg(20.0, 3)}, 2)
    first, last = results.rows[0]["test_loss"], results.rows[-1]["test_loss"]
    assert last > 10 * first
    (status,) = results.status
    assert status["message"].startswith("got worse: its loss on the test data went from ")
    assert capsys.readouterr().err.count(f"wild, seed 0: {status['message']}") == 1
    compare(Neural(images(), "mlp", batch=4), {"wild": FedAvg(20.0, 3)}, 2, **QUIET)
    assert "got worse" not in capsys.readouterr().err
    table = small(
        rounds=2,
        seeds=[0],
        reference=False,
        data={"name": "digits", "partition": {"name": "iid", "num_partitions": 4}},
        problem={"name": "network", "model": "mlp", "batch": 10},
        regulariser={"name": "zero"},
        algorithms=[{"name": "fedavg", "label": "wild", "eta": 20.0, "K": 3}],
    )
    code, _, said = proxfed(capsys, "run", str(write(tmp_path / "a.toml", table)), "--out", str(tmp_path / "run"))
    assert (code, said.count("wild, seed 0: got worse: its loss on the test data went from ")) == (0, 1), said


def test_a_run_that_stands_still_made_no_progress() -> None:
    result = run(Neural(images(), "mlp", batch=4), FedAvg(1e-12, 3), 3, **QUIET)
    assert result.message.startswith("made no progress: its loss on the test data went from ")


def test_an_exact_method_that_stalls_says_so() -> None:
    """With a step of 2/L gradient descent arrives in the flat direction, and goes to and fro in the steep one."""
    f = Linear(Federated.from_clients([(np.diag([2.0, 1.0]), np.array([1.0, 5.0]))] * 2), Squared())
    L = f.smoothness().L_f
    assert run(f, GradientDescent(1 / L), 60, **QUIET).message == ""
    message = run(f, GradientDescent(2 / L), 60, **QUIET).message
    assert message.startswith("stalled: in the second half of the rounds its stationarity fell no lower than "), message
    assert "try a shorter step" in message
    assert "stalled" not in run(f, GradientDescent(2 / L), 15, **QUIET).message, "too few rows to tell"


def test_pledge_names_the_extrapolation_that_a_bad_condition_number_asks_for() -> None:
    """With theta = 0.7 it creeps; with the theta that the remark names it is done in the same number of rounds."""
    A = np.diag(np.logspace(0, -1.6, 8))
    f = Linear(Federated.from_clients([(A, A @ np.ones(8))] * 2), Squared())
    L = f.smoothness().L
    kappa = L / f.smoothness().mu
    message = run(f, Pledge(1 / L), 150, **QUIET).message
    named = re.search(rf"slow: .*; for L/mu = {kappa:.0f} try theta = (0\.\d+)$", message)
    assert named, message
    assert run(f, Pledge(1 / L, theta=float(named[1])), 150, **QUIET).rows[-1]["stationarity"] < 1e-3 * float(
        run(f, Pledge(1 / L), 150, **QUIET).rows[-1]["stationarity"]
    )
    assert "theta" not in run(f, Pledge(1 / L, theta=0.0, restart=False, beta=0.5), 150, **QUIET).message


def test_prox_steps_that_a_regulariser_hardly_allows_are_told_before_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    f = problem((20, 30), l2=0.1)
    eta = 0.2 / f.smoothness().L
    for part, told in ((0.4, False), (0.9, True)):
        h = MCP(0.1, 4 * eta / part)
        compare(f + h, {"a": FedComposite(eta, 4)}, 2)
        said = f"a: its prox steps reach {part:.2g} of the step from which on h has no prox: up to one half is safer"
        assert (said in capsys.readouterr().err) == told


@pytest.mark.parametrize(("algorithm", "graph"), [(Pledge("auto"), None), (PledgePeers("auto"), Ring(3))], ids=repr)
def test_where_L_is_known_PLEDGE_takes_it_and_sends_nothing_more(algorithm: Any, graph: Any) -> None:
    p = problem((20, 20, 20), l2=0.1) + L1(0.1)
    L = p.f.smoothness().L
    found = run(p, algorithm, 40, topology=graph, **QUIET)
    plain = run(p, algorithm.resolve(eta=1 / L), 40, topology=graph, **QUIET)
    assert found.algorithm.eta == pytest.approx(1 / L)
    assert found.rows[-1]["objective"] == plain.rows[-1]["objective"]
    for way in ("bytes_up", "bytes_down", "bytes_edge", "gradients"):
        assert found.rows[-1][way] == plain.rows[-1][way]
    assert found.message == f"took eta = {1 / L:.4g}, from 1/L, without a search"
    concave = MCP(0.1, 3 / L)
    assert run(p.f + concave, algorithm, 1, topology=graph, **QUIET).algorithm.S * concave.weak_convexity <= 0.5 + 1e-12
