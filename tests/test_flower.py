"""Our algorithms inside Flower: the iterates of `proxfed.run`, the bytes that travel, lost messages, and refusals."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr", reason="Flower is not installed: make test-carriers installs it")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from proxfed import InputError, Linear, Logistic, RunError, run
from proxfed.algorithms import (
    ALGORITHMS,
    DPSGD,
    FedAvg,
    FedCEF,
    FedComposite,
    FedNAG,
    Pledge,
    Scaffold,
)
from proxfed.compressors import NaturalCompressor, RandK, TopK
from proxfed.flower import ProxfedStrategy, Training, arrays, client_app
from proxfed.hosts.training import OneClient
from proxfed.participation import Dropouts
from proxfed.regularisers import L1, Zero
from proxfed.testing import toy as laws
from proxfed.types import Graph, Star

from support.algorithm_settings import PARTIAL, algorithm
from support.flower_grid import Here

logging.getLogger("flwr").setLevel(logging.ERROR)

N, D = laws.N, laws.D
NAMED = ("fedcomposite", "fedcef", "pledge", "scaffold", "fednag")
SERVERS = [name for name in ALGORITHMS if not issubclass(ALGORITHMS[name], Graph)]


def logistic(outputs: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return nn.functional.softplus(-b * outputs[:, 0]).mean()


def module(x0: torch.Tensor) -> nn.Module:
    layer = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(x0[None])
    return layer


P = laws.problem(sizes=laws.RAGGED)
F = Linear(P.f.data, Logistic(), l2=laws.L2, weighting="uniform")  # as a strategy does by default


def training(context: Any, batch: int | None = None) -> Training:
    A, b = P.f.data.client(context.node_config["partition-id"])
    rows = TensorDataset(torch.from_numpy(np.array(A)), torch.from_numpy(np.array(b)))
    loader = DataLoader(rows, batch_size=batch or len(b), shuffle=batch is not None)
    return Training(module(torch.zeros(D)), logistic, loader, l2=laws.L2)


def started(a: Star[Any, Any], h: Any = P.h, **options: Any) -> tuple[ProxfedStrategy, Here]:
    return ProxfedStrategy(a, h, min_available_nodes=N, **options), Here(client_app(a, h, training), N)


def models(a: Star[Any, Any], rounds: int, grid: Here | None = None, h: Any = P.h, **options: Any) -> list[np.ndarray]:
    """The model after each round, inside Flower."""
    strategy, here = started(a, h, **options)
    found: list[np.ndarray] = []

    def look(t: int, record: ArrayRecord) -> None:
        found.append(record["weight"].numpy()[0])

    strategy.start(grid or here, arrays(module(P.start(0))), num_rounds=rounds, evaluate_fn=look)
    return found[1:]


def ours(a: Star[Any, Any], rounds: int, f: Any = F, **how: Any) -> list[np.ndarray]:
    """The same by `proxfed.run`."""
    found = []
    how = {"progress": False, "hooks": [lambda moment: found.append(moment.model.numpy())]} | how
    run(f + P.h if P.x0 is None else (f + P.h).starting_at(P.x0), a, rounds, **how)
    return found[1:]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other) > 1
    assert max(np.abs(a - b).max() for a, b in zip(one, other, strict=True)) <= 1e-12
    assert np.abs(one[-1] - one[0]).max() > 1e-3


# ---- the same iterates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SERVERS if not ALGORITHMS[name].needs.hessian])
def test_iterates_are_those_of_run(name: str) -> None:
    a, rounds = algorithm(name), 6 if name in NAMED else 2
    assert_same(models(a, rounds), ours(a, rounds))


@pytest.mark.parametrize("c", [TopK(k=2), RandK(k=3), NaturalCompressor(contractive=True)], ids=repr)
def test_compressed_messages_travel_as_their_bytes(c: Any) -> None:
    a = FedCEF(0.6, 3, compressor=c)
    strategy, grid = started(a)
    result = strategy.start(grid, arrays(module(P.start(0))), num_rounds=3)
    rows = run(P, a, 3, progress=False).rows
    best = [row["bytes_best"] for row in rows]
    for t in (1, 2, 3):
        said = result.train_metrics_clientapp[t]
        dense = N * 8 * D
        head = 20 * N  # what tells the parts of a message apart
        down = said["bytes-down"] - (N * 8 * D if t == 1 else 0)
        assert said["clients"] == N
        assert 0 <= said["bytes-up"] + down - (best[t] - best[t - 1]) <= 2 * head + 16 * N
        assert said["bytes-up"] < dense


def test_algorithm_without_prox_takes_a_subgradient() -> None:
    a = FedAvg(0.5, 3)
    assert np.abs(models(a, 5)[-1] - models(a, 5, h=Zero())[-1]).max() > 1e-3


def test_weighted_by_rows() -> None:
    a = FedComposite(1.5, 3)
    assert_same(models(a, 5, weighting="size"), ours(a, 5, P.f))


# ---- messages that do not arrive ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaffold", "fedcef", "fedcomposite", "fednag"])
def test_a_client_whose_message_was_lost_goes_back(name: str) -> None:
    """As `Dropouts` with a rollback does: the server's mean is over those it hears."""
    a, participation = PARTIAL.get(name, algorithm(name)), Dropouts(0.3)
    _, grid = started(a)
    for t in range(1, 9):
        heard = participation.arrived(t, range(N), 0)
        grid.lost |= {(t, 100 + k) for k in range(N) if k not in heard}
    assert len(grid.lost) > 3
    assert_same(models(a, 8, grid), ours(a, 8, participation=participation))


def test_who_needs_everybody_stops() -> None:
    a = Pledge(2.5, 3)
    _, grid = started(a)
    grid.silent = {(3, 102)}
    with pytest.raises(RunError, match="needs every client in every round, but 1 of 5 did not answer in round 3"):
        models(a, 5, grid)


def test_some_take_part() -> None:
    strategy, grid = started(Scaffold(1.0, 3), fraction_train=0.6)
    result = strategy.start(grid, arrays(module(P.start(0))), num_rounds=30)
    assert all(said["clients"] == 3 for said in result.train_metrics_clientapp.values())
    assert strategy.server is not None
    assert laws.error(strategy.server.model, P.solve()) < 0.5


def test_a_node_that_forgot_says_so() -> None:
    _, grid = started(Scaffold(1.0, 3))
    strategy, _ = started(Scaffold(1.0, 3))
    strategy.start(grid, arrays(module(P.start(0))), num_rounds=2)
    grid.contexts[101].state = RecordDict()
    with pytest.raises(RunError, match="this node has no state of round 2"):
        list(grid.send_and_receive(strategy.configure_train(3, ArrayRecord(), ConfigRecord(), grid)))


# ---- minibatches and modules ----------------------------------------------------------------------------------------


class WithDropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(D, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 1))
        same = torch.Generator().manual_seed(0)
        for p in self.parameters():
            nn.init.normal_(p, std=0.3, generator=same)


def test_shuffling_and_dropout_follow_from_the_seed() -> None:
    def own(context: Any) -> Training:
        A, b = P.f.data.client(context.node_config["partition-id"])
        rows = TensorDataset(torch.tensor(A, dtype=torch.float32), torch.tensor(b, dtype=torch.float32))
        return Training(WithDropout(), logistic, DataLoader(rows, 3, shuffle=True))

    found = []
    for noise, seed in ((1, 0), (2, 0), (1, 1)):
        torch.manual_seed(noise)
        a = FedComposite(0.1, 4)
        strategy = ProxfedStrategy(a, L1(1e-3), seed=seed, min_available_nodes=N)
        grid = Here(client_app(a, L1(1e-3), own, seed=seed), N)
        result = strategy.start(grid, arrays(WithDropout()), num_rounds=2)
        found.append(np.concatenate([x.numpy().ravel() for x in result.arrays.values()]))
        assert list(result.arrays) == list(WithDropout().state_dict())
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_gradients_of_a_training_are_those_of_autograd() -> None:
    client = SimpleNamespace(node_config={"partition-id": 1})
    x = torch.randn(D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for batch in (None, 6):
        local = OneClient(training(client, batch)).local(1, [1])
        value, g = local.value_and_grad(x)
        here = P.f.local(1, [1])
        assert torch.allclose(g, here.full_grad(x), rtol=0, atol=1e-14)
        assert torch.allclose(value, here.value(x), rtol=0, atol=1e-14)
        before = torch.get_rng_state()
        assert torch.equal(local.grad(x, 3), local.grad(x, 3))
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(local.grad(x, 3), local.grad(x, 4))


APPS = {
    "FedComposite": ("algorithms.FedComposite(0.3, 5)", 1.01),
    "FedCEF": ("algorithms.FedCEF(0.3, K=5, compressor=compressors.TopK(fraction=0.05))", 0.1),
    "PLEDGE": ("algorithms.Pledge(0.3, 5)", 0.1),
    "SCAFFOLD": ("algorithms.Scaffold(0.3, 5)", 2.01),
    "FedNAG": ("algorithms.FedNAG(0.15, 0.5, 5)", 2.01),
}


@pytest.mark.parametrize(("algorithm", "part"), APPS.values(), ids=APPS)
def test_an_app_of_thirty_lines(algorithm: str, part: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/flower/app.py with another algorithm in its one line; `part`: how many models each client sends up."""
    lines = (Path(__file__).parents[1] / "examples" / "flower" / "app.py").read_text().splitlines()
    assert len(lines) <= 30
    lines = [f"ALGORITHM = {algorithm}" if line.startswith("ALGORITHM = ") else line for line in lines]
    (tmp_path / "another_app.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    app = importlib.import_module("another_app")
    try:
        strategy = ProxfedStrategy(app.ALGORITHM, app.H, min_available_nodes=10)
        result = strategy.start(Here(app.client, 10), arrays(app.NETWORK), num_rounds=2)
    finally:
        del sys.modules["another_app"]
    assert list(result.arrays) == list(app.NETWORK.state_dict())
    whole = 10 * sum(x.numel() * 4 for x in app.NETWORK.parameters())
    assert result.train_metrics_clientapp[2]["bytes-up"] <= part * whole


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "options", "says"),
    [
        (DPSGD(0.1), {}, "DPSGD has no server"),
        (FedComposite("auto", 3), {}, "FedComposite: eta = 'auto': steps are found in a simulation only"),
        (FedComposite(0.1, 3), {"fraction_train": 0.5}, "FedComposite needs every client in every round"),
        (FedNAG(0.1, 0.5, 3), {"fraction_train": 0.0}, "fraction_train = 0.0 must be in"),
        (FedNAG(0.1, 0.5, 3), {"fraction_train": 0.5, "weighting": "size"}, "weighting = 'size' needs"),
        (FedNAG(0.1, 0.5, 3), {"weighting": "rows"}, "weighting = 'rows'"),
    ],
)
def test_refused_before_anything_is_sent(a: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        models(a, 1, **options)


def test_batch_normalisation_is_refused() -> None:
    with pytest.raises(InputError, match="'1' is a batch normalisation: no algorithm averages"):
        Training(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), logistic, [])


@pytest.mark.parametrize("damage", ["cut", "longer", "form", "nan", "twice", "record", "other model"])
def test_a_message_that_is_wrong_is_refused_in_one_sentence(damage: str) -> None:
    a = FedCEF(0.6, 3, compressor=TopK(k=2))
    strategy, grid = started(a)
    replies = grid.send_and_receive(strategy.configure_train(1, arrays(module(P.start(0))), ConfigRecord(), grid))
    said, message = replies[2].content["said"], replies[2].content["message"]
    body = message["body"].data
    if damage == "cut":
        message["body"].data = body[:-3]
    elif damage == "longer":
        message["body"].data = body + b"x"
    elif damage == "form":
        said["form"] = "(" * 400
    elif damage == "nan":
        message["body"].data = body[:-8] + np.array([np.nan]).tobytes()
    elif damage == "twice":
        said["client"] = 1
    elif damage == "record":
        del replies[2].content["said"]
    else:
        from proxfed.silos.wire.message import pack

        said["form"], message["body"].data = pack(torch.zeros(1, D + 1, dtype=torch.float64), [])
    with pytest.raises((RunError, InputError)) as e:
        strategy.aggregate_train(1, replies)
    assert str(e.value).count("\n") == 0
