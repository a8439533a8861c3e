"""On another device than the CPU everything runs, by CUDA's rules, and has the bits of the CPU (pretend_device.py)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxfed import Federated, InputError, Linear, Logistic, Problem, keyed_random, machine, run
from proxfed.algorithms import ALGORITHMS, FISTA, FedAvg, FedComposite, LocalAdam, Pledge
from proxfed.engine.halves import Clients, Work
from proxfed.fit.solve import Solver
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.participation import BernoulliSampling, Dropouts, UniformSampling
from proxfed.problems.linear.cox import Cox
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1, GroupLasso
from proxfed.testing import toy as laws
from proxfed.topologies import Ring, SpanningTree
from proxfed.types import Algorithm, Compressor, Graph, Regulariser

from support import compressor_cases, regulariser_cases, shakespeare
from support import toy_problems as toy
from support.algorithm_settings import PARTIAL, algorithm
from support.cli import proxfed
from support.image_data import images
from support.pretend_device import NAME, OnDevice, present
from support.resumed import same
from support.small_experiment import SMALL, Crash, execute, small, write

SERVERS = [name for name in ALGORITHMS if not issubclass(ALGORITHMS[name], Graph)]
COMPRESSORS = [case.compressor for cases in compressor_cases.CASES.values() for case in cases]
ROUNDS = 3
PATH = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is there. Compiled loops add up in an order of their own and only on the CPU, so they are left out."""
    monkeypatch.setenv("PROXFED_KERNELS", "torch")
    with present(double="no_double" not in request.keywords):
        yield


no_double = pytest.mark.no_double


def outcome(device: str, a: Algorithm, rounds: int = ROUNDS, f: Any = laws.problem, **how: Any) -> tuple[list, Tensor]:
    """The rows of a run, without the time they took, and its model."""
    problem = {key: how.pop(key) for key in ("batch", "sizes", "dtype", "h") if key in how}
    if isinstance(a, Graph):
        how.setdefault("topology", Ring(laws.N))
    result = run(f(device=device, **problem), a, rounds, progress=False, **how)
    assert result.model.device.type == device
    return [row | {"wall_seconds": 0} for row in result.rows], result.model.cpu()


def assert_same(a: Algorithm, rounds: int = ROUNDS, **how: Any) -> None:
    (rows, model), (there, other) = (outcome(device, a, rounds, **how) for device in ("cpu", NAME))
    assert rows == there
    assert torch.equal(model, other)


# ---- the device itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0).view(2, 3).to(NAME)


def test_the_device_refuses_what_cuda_refuses(x: Tensor) -> None:
    here, index = torch.ones(2, 3), torch.tensor([1, 0])
    for refused in (
        lambda: x + here,
        lambda: here.add_(x),
        lambda: torch.cat([x, here]),
        lambda: torch.stack([x[0, 0], torch.tensor(1.0)]),
        lambda: torch.tensor(1.0).add_(x[0, 0]),
        lambda: x @ here.mT,
        lambda: x.index_add_(0, index, x),
        lambda: x.index_select(0, index),
        lambda: x.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
        lambda: here[index.to(NAME)],
        lambda: x.__setitem__(index, here),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            refused()
    for refused in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="numpy"):
            refused()


def test_the_device_takes_what_cuda_takes(x: Tensor) -> None:
    index = torch.tensor([1, 0])
    assert isinstance(x, OnDevice)
    assert x.device.type == NAME
    assert x[index].tolist() == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]
    assert (x + torch.tensor(1.0)).sum().item() == 21.0
    x[index] = x.clone()
    x[0] = torch.full((3,), 2.0)  # a copy
    assert x.cpu().numpy().tolist() == [[2.0, 2.0, 2.0], [0.0, 1.0, 2.0]]
    assert torch.tensor([1.0, 2.0], device=NAME).device.type == NAME
    assert x[:1].squeeze_(0).shape == (3,)


@no_double
def test_it_may_have_no_float64(x: Tensor) -> None:
    with pytest.raises(TypeError, match="no float64"):
        x.double()
    assert machine.with_double(NAME) == "cpu"
    with pytest.raises(InputError, match=f"device = '{NAME}' has no float64: use dtype = 'float32' or device = 'cpu'"):
        laws.problem(device=NAME)


# ---- algorithms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm(name: str) -> None:
    assert_same(algorithm(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_on_minibatches_of_clients_of_all_sizes(name: str) -> None:
    assert_same(algorithm(name), batch=4, sizes=laws.RAGGED)


@pytest.mark.parametrize("name", SERVERS)
def test_some_take_part_and_some_of_them_are_lost(name: str) -> None:
    """Those that need every client in every round are refused, whatever the device."""
    a, some = PARTIAL.get(name, algorithm(name)), Dropouts(0.3, UniformSampling(3))
    if a.requires().everyone:
        with pytest.raises(InputError, match="needs every client in every round"):
            outcome(NAME, a, participation=some)
        return
    assert_same(a, participation=some)


@pytest.mark.parametrize("participation", [BernoulliSampling(0.5), Dropouts(0.3, rollback=False)])
def test_participation(participation: Any) -> None:
    assert_same(PARTIAL["fedcomposite"], 5, participation=participation)


@pytest.mark.parametrize("name", ["fedcomposite", "fedcef", "pledge"])
def test_tree(name: str) -> None:
    assert_same(algorithm(name), topology=SpanningTree(Ring(laws.N)))


def test_step_that_is_found() -> None:
    assert_same(FedComposite("auto", 3), 6)


@pytest.mark.parametrize("a", [FISTA(1.0), FedAvg(0.5, 3)], ids=["prox", "subgradient"])
def test_noisy_messages(a: Algorithm) -> None:
    class Privacy:
        clip, noise = 1.0, 0.5

    sent = []
    for device in ("cpu", NAME):
        p = laws.problem(device=device)
        clients = Clients(p, a, 3, Privacy())
        own, _ = clients.begin(a, range(laws.N), Work())
        sent.append(clients.answer(a, own, p.start(0), 1, range(laws.N), Work())[1].cpu())
    assert torch.equal(*sent)


# ---- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", COMPRESSORS, ids=repr)
def test_compressor(c: Compressor) -> None:
    v = torch.from_numpy(np.random.default_rng(0).normal(size=(3, compressor_cases.D)))
    key = keyed_random.keys(0, "message", range(3), 1)
    here, there = c(v, key), c(v.to(NAME), key)
    assert isinstance(there.dense, OnDevice)
    assert all(isinstance(part, OnDevice) for part in there.parts.values())
    assert torch.equal(here.dense, there.dense.cpu())
    assert here.compressor.encode(here) == there.compressor.encode(there)
    assert (here.nbytes, here.best) == (there.nbytes, there.best)


@pytest.mark.parametrize("h", regulariser_cases.EVERY, ids=repr)
def test_regulariser(h: Regulariser) -> None:
    v = torch.from_numpy(np.random.default_rng(0).normal(size=(3, regulariser_cases.D)))
    assert torch.equal(h.value(v), h.value(v.to(NAME)).cpu())
    assert torch.equal(h.prox(v, 0.3), h.prox(v.to(NAME), 0.3).cpu())


@pytest.mark.parametrize(("model", "side"), [("mlp", 8), ("dfedadmm_cnn", 16)])
def test_network(model: str, side: int) -> None:
    data, a = images((6, 6), side=side), Pledge(0.01, 2)
    found = []
    for device in ("cpu", NAME):
        f = Neural(data, model, batch=3, device=device)
        result = run(f + L1(1e-3), a, 2, progress=False)
        rows = [row | {"wall_seconds": 0} for row in result.rows]
        found.append((rows, result.model.tolist(), f.predict(result.model, data.features).tolist()))
    assert found[0] == found[1]


def texts() -> Federated:
    tokens = np.random.default_rng(0).integers(0, 30, (24, shakespeare.LONG))
    return Federated.of(tokens, tokens[:, -1], client=np.arange(24) % 3, classes=30)


def layers() -> nn.Module:
    normal = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4)
    return nn.Sequential(*normal, nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 64, 4))


WEIGHTED = nn.CrossEntropyLoss(torch.linspace(1, 2, 30), label_smoothing=0.1)
NETWORKS: dict[str, tuple[Algorithm, Any, Any, dict[str, Any]]] = {
    "transformer": (LocalAdam(0.01, 2), texts, lambda: shakespeare.Transformer(30), {"clip": 1.0}),
    "own loss": (FedAvg(0.1, 2), texts, lambda: shakespeare.Transformer(30), {"loss": WEIGHTED.double()}),
    "batch norm": (FedAvg(0.1, 2), lambda: images((6, 6)), layers, {"normalise": "standard", "augment": "crop_flip"}),
}


@pytest.mark.parametrize("which", NETWORKS.values(), ids=NETWORKS)
def test_networks_of_users_draw_the_same_and_agree_to_rounding(which: Any) -> None:
    """torch has kernels of its own for attention and normalisation on the CPU, which round differently."""
    a, data, make, settings = which
    found = []
    for device in ("cpu", NAME):
        torch.manual_seed(0)
        module = make()
        f = Neural(data(), module, batch=3, device=device, dtype=torch.float64, **settings)
        found.append(run(f, a, 2, progress=False).model.cpu())
    assert (found[0] - found[1]).abs().max() <= 1e-10


# ---- fits -----------------------------------------------------------------------------------------------------------


def sparse(data: Federated) -> Federated:
    from scipy.sparse import csr_array

    return Federated.from_clients([(csr_array(A * (np.abs(A) > 0.2)), b) for A, b in map(data.client, range(laws.N))])


def survival() -> Federated:
    rng = np.random.default_rng(3)
    return Federated.from_clients([(rng.normal(size=(12, 4)), rng.normal(size=12)) for _ in range(3)])


FITS = {
    "logistic": lambda device: laws.problem(device=device).f,
    "least squares": lambda device: toy.problem("least_squares", intercept=True, sizes=laws.RAGGED, device=device).f,
    "softmax": lambda device: toy.problem("softmax", device=device).f,
    "sparse features": lambda device: Linear(sparse(laws.problem().f.data), Logistic(), l2=0.1, device=device),
    "Cox": lambda device: Linear(survival(), Cox("efron"), l2=0.1, device=device),
}


@pytest.mark.parametrize("f", FITS.values(), ids=FITS)
def test_fit(f: Any) -> None:
    here, there = (Problem(f(device), L1(0.01)) for device in ("cpu", NAME))
    assert here.f.smoothness() == there.f.smoothness()
    assert here.alpha_max() == there.alpha_max()
    assert torch.equal(here.solve(1e-2), there.solve(1e-2).cpu())
    a, b = (Solver(1e-2).path(p, 2, 0.3) for p in (here, there))
    assert [fit.traffic for fit in a] == [fit.traffic for fit in b]
    assert all(torch.equal(x.x, y.x.cpu()) for x, y in zip(a, b, strict=True))
    x = a[-1].x
    assert np.array_equal(here.f.predict(x, here.f.data.features), there.f.predict(x.to(NAME), here.f.data.features))


def test_groups_of_features() -> None:
    assert_same(FedComposite(0.5, 3), f=lambda device: laws.problem(device=device).f + GroupLasso(0.05, size=2))


# ---- folders, checkpoints, the command line -------------------------------------------------------------------------


LOST = {"participation": {"name": "dropouts", "p": 0.2}, "partial": True, "label": "fedcef, dropouts"}


def test_resumed_to_the_bit(tmp_path: Path) -> None:
    """With all clients, some of them (whose states are in a journal), some that are lost, and on a graph."""
    named = {a.get("label", a["name"]): a for a in SMALL["algorithms"]}
    chosen = [*(named[label] for label in ("fedavg", "fedcef", "depositum")), named["fedcef"] | LOST]
    table = small(rounds=3, seeds=[0], reference=False, measures=["largest_c"], algorithms=chosen)
    execute(tmp_path / "cpu", table | {"device": "cpu"})
    execute(tmp_path / "at once", table | {"device": NAME})
    same(tmp_path / "cpu", tmp_path / "at once")
    for crash_after, resume in ((2, False), (3, True), (3, True), (None, True)):
        if crash_after is None:
            execute(tmp_path / "killed", table | {"device": NAME}, resume=resume)
        else:
            with pytest.raises(Crash):
                execute(tmp_path / "killed", table | {"device": NAME}, resume=resume, crash_after=crash_after)
    same(tmp_path / "cpu", tmp_path / "killed")


def test_device_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algorithms = [{"name": "fedcomposite", "eta": 0.5, "tau": 2}]
    file = write(tmp_path / "small.toml", small(rounds=2, seeds=[0], algorithms=algorithms))
    for out, device in (("a", "cpu"), ("b", NAME)):
        asked = ("run", str(file), "--out", str(tmp_path / out), "--device", device, "--jobs", "1")
        code, _, said = proxfed(capsys, *asked)
        assert code == 0, said
    same(tmp_path / "a", tmp_path / "b")


RANK = """
from support.pretend_device import present
from proxfed.cli.main import main
with present():
    main()
"""


def test_ranks_with_a_device_each(tmp_path: Path) -> None:
    named = {a.get("label", a["name"]): a for a in SMALL["algorithms"]}
    chosen = [
        named[label] for label in ("fedavg", "fedcomposite", "fedcef", "depositum", "pledge, tree", "pledge_peers")
    ]
    table = small(rounds=2, seeds=[0], reference=False, measures=["largest_c"], algorithms=chosen)
    execute(tmp_path / "alone", table)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    file, out = write(tmp_path / "small.toml", table), tmp_path / "ranks"
    command = [sys.executable, "-c", RANK, "run", str(file), "--out", str(out), "--device", NAME]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": PATH}
    ranks = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=240)
        assert rank.returncode == 0, said
    rows, alone = RunFolder(out).rows(), RunFolder(tmp_path / "alone").rows()
    counted = ("algorithm", "round", "bytes_up", "bytes_down", "bytes_best")
    assert [[row.get(k) for k in counted] for row in rows] == [[row.get(k) for k in counted] for row in alone]
    models = RunFolder(tmp_path / "alone").models()[0]
    assert all((x - models[name]).abs().max() <= 1e-12 for name, x in RunFolder(out).models()[0].items())


def test_auto_is_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    double, single = torch.float64, torch.float32
    assert machine.device_here("auto", double) == ("cuda" if torch.cuda.is_available() else "cpu")
    assert parse(small() | {"device": "auto"}, "here").device == machine.device_here("auto", double)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(machine, "_has", lambda device, dtype: (device, dtype) != ("mps", double))
    assert machine.device_here("auto", single) == "mps"
    assert machine.device_here("auto", double) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine.device_here("auto", double) == "cuda"


# ---- a device without float64 ---------------------------------------------------------------------------------------


@no_double
@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_float64(name: str) -> None:
    if algorithm(name).needs.hessian:
        with pytest.raises(InputError, match="computes its server's step in float64, and device = 'pretend"):
            assert_same(algorithm(name), dtype=torch.float32)
        return
    assert_same(algorithm(name), dtype=torch.float32)


@no_double
def test_fit_without_float64() -> None:
    here, there = (laws.problem(device=device, dtype=torch.float32) for device in ("cpu", NAME))
    assert here.f.smoothness() == there.f.smoothness()
    assert torch.equal(here.solve(), there.solve().cpu())
    assert here.alpha_max() == there.alpha_max()
